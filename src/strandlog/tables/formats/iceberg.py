"""`Table` in Iceberg's format (version 2), with a SQLite catalog in the table's folder.

    <folder>/catalog.db                      one row, the newest metadata file; updating it commits
    <folder>/metadata/*.metadata.json        schema, properties, snapshots
    <folder>/metadata/*.avro                 manifests and manifest lists: the files of snapshots
    <folder>/data/…/*.parquet                data files, written by `Layout.write`

Progress is a table property, `strandlog.progress.<application id>`, which changes in the same
commit as the files. Properties outlive the snapshots that set them.

pyiceberg would rebase a stale writer's append and retry it, so that both writers would succeed and
the rows would be in the table twice. Tables are therefore created with
`commit.retry.num-retries=0`, and a table without that value is rejected. Each commit of rows or
progress requires that the loaded snapshot is still the newest. It also requires that the schema and
the progress of the same applications have not changed: such a change creates no snapshot, and
pyiceberg itself would let a stale writer change properties.

An upsert rewrites the files that contain replaced or deleted rows (copy on write), so readers need
no support for delete files. It reads the keys of the whole table and rewrites only those files.

The catalog name is `strandlog` and the table is `strandlog.<folder name>`, with `_` in place of
every character that is not a letter or digit. Paths inside the metadata are absolute, so a table
that was moved must be rebuilt.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    SetPropertiesUpdate,
    ValidatableTableRequirement,
)
from sqlalchemy import URL
from sqlalchemy import exc as sql_errors

from strandlog.clock import Clock, SystemClock
from strandlog.errors import (
    StorageError,
    StrandlogError,
    TableChangedError,
    TableConflictError,
    TableNotFoundError,
    TableSchemaError,
)
from strandlog.storage.files import disk_error
from strandlog.tables import schema as schemas
from strandlog.tables.formats.merging import merge_small_files
from strandlog.tables.formats.replacing import without_keys
from strandlog.tables.layout import DataFile, Layout, make_durable_folder, old_files, table_files
from strandlog.tables.reading import damaged, full, read_files
from strandlog.tables.table import (
    NO_METADATA,
    Commit,
    Compacted,
    Durable,
    Format,
    Metadata,
    Progress,
    check_progress,
)

CATALOG: Final = "strandlog"
CATALOG_FILE: Final = "catalog.db"
DATA_FOLDER: Final = "data"
PROGRESS: Final = "strandlog.progress."
RETRIES: Final = "commit.retry.num-retries"
PROPERTIES: Final = {
    RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
FILE_IO_MODULE: Final = "strandlog.tables.formats.iceberg_io"
FILE_IO: Final = f"{FILE_IO_MODULE}.SyncedFileIO"  # the library imports it by name
# Another program went back to an older snapshot, which Iceberg does not record as a commit.
ROLLBACK: Final = "rollback"
HOUR_MS: Final = 3_600_000
IO_ERRORS: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR})  # not the contents


@contextmanager
def _errors(folder: str) -> Iterator[None]:
    """Translate the library's errors."""
    try:
        yield
    except iceberg_errors.NoSuchTableError as error:
        raise TableNotFoundError(f"{folder} contains no Iceberg table") from error
    except iceberg_errors.CommitFailedException as error:
        raise TableConflictError(
            f"another writer has changed the table in {folder} since it was loaded: {error}"
        ) from error
    except sql_errors.OperationalError as error:
        if "locked" in str(error):
            raise TableConflictError(f"another writer holds the catalog of {folder}") from error
        raise full(folder, error) or _io_error(folder, error) or damaged(folder, error) from error
    except sql_errors.DatabaseError as error:
        raise damaged(folder, error) from error
    except FileNotFoundError as error:
        raise damaged(folder, error) from error
    except OSError as error:
        raise full(folder, error) or disk_error("write the table in", folder, error) from error


def _io_error(folder: str, error: sql_errors.OperationalError) -> StorageError | None:
    """Return an error if SQLite could not open, read or write a file, else None.

    SQLite does not report the cause, such as a file system without free inodes. To find the cause,
    try to create a file in the same folder.
    """
    if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in IO_ERRORS:
        return None
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as cause:
        return disk_error("write the table in", folder, cause)
    return StorageError(f"could not use {os.path.join(folder, CATALOG_FILE)}: {error.orig}")


@contextmanager
def _reading(folder: str) -> Iterator[None]:
    """Translate errors from reading metadata. Damaged bytes can raise any exception."""
    try:
        with _errors(folder):
            yield
    except StrandlogError:
        raise
    except Exception as error:
        raise damaged(folder, Exception(f"{type(error).__name__}: {error}")) from error


class IcebergTable:
    """An Iceberg table in a folder."""

    format: Format = "iceberg"

    def __init__(self, folder: str, clock: Clock | None = None) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()

    @cached_property
    def _catalog(self) -> Any:
        try:
            return self._opened_catalog()
        except sql_errors.OperationalError as error:
            if "already exists" not in str(error):
                raise
            return self._opened_catalog()  # another process has just created the catalog

    def _opened_catalog(self) -> Any:
        path = os.path.join(self.folder, CATALOG_FILE)
        return SqlCatalog(
            CATALOG,
            **{
                "uri": URL.create("sqlite", database=path).render_as_string(),
                "warehouse": f"file://{self.folder}",
                "py-io-impl": FILE_IO,
            },
        )

    def _identifier(self) -> tuple[str, str]:
        name = re.sub(r"\W", "_", os.path.basename(self.folder)) or "table"
        return (CATALOG, name)

    def exists(self) -> bool:
        if not os.path.lexists(os.path.join(self.folder, CATALOG_FILE)):
            return False
        with _reading(self.folder):
            return bool(self._catalog.table_exists(self._identifier()))

    def create(
        self,
        schema: Any,
        *,
        partition_by: Sequence[str] = (),
        properties: Metadata = NO_METADATA,
    ) -> None:
        make_durable_folder(self.folder)
        if self.exists():
            return
        with _errors(self.folder):
            # An IntegrityError means that another process has just created it.
            with suppress(sql_errors.IntegrityError):
                self._catalog.create_namespace_if_not_exists(CATALOG)
            try:
                new = self._catalog.create_table_transaction(
                    self._identifier(),
                    schemas.checked(schema),
                    location=f"file://{self.folder}",
                    properties={**PROPERTIES, **properties},
                )
                with new as change, change.update_spec() as spec:
                    for name in partition_by:
                        spec.add_identity(name)
            except (
                iceberg_errors.TableAlreadyExistsError,
                iceberg_errors.CommitFailedException,
            ):
                if not self.exists():
                    raise
        table_files().sync_dir(self.folder)

    def load(self) -> IcebergSnapshot:
        if not os.path.lexists(os.path.join(self.folder, CATALOG_FILE)):
            raise TableNotFoundError(f"{self.folder} contains no Iceberg table")
        with _reading(self.folder):
            return IcebergSnapshot(self.folder, self._catalog.load_table(self._identifier()))

    def extend(self, schema: Any) -> None:
        snapshot = self.load()
        wanted = schemas.merged(snapshot.layout.schema, schema)
        if wanted == snapshot.layout.schema:
            return
        try:
            with _errors(self.folder), snapshot.handle.update_schema() as update:
                update.union_by_name(wanted)
        except (iceberg_errors.ValidationError, ValueError) as error:
            raise TableSchemaError(f"{self.folder}: {error}") from error

    def set_properties(self, properties: Metadata) -> None:
        snapshot = self.load()
        with _errors(self.folder), snapshot.handle.transaction() as change:
            change.set_properties(dict(properties))

    def make_durable(self, known: Durable | None = None) -> Durable:
        snapshot = self.load()
        found = Durable(snapshot.version, frozenset(snapshot.data_files()))
        if known is None or known.version != found.version:
            # Files are flushed before their commit. SQLite commits by deleting its journal; until
            # the folder is fsynced, a power failure can restore the journal and undo the commit.
            table_files().sync_dir(self.folder)
        return found

    def compact(self, target_bytes: int) -> Compacted:
        snapshot = self.load()
        listed = {_local_path(each.file_path): each for each in snapshot.listed()}
        candidates = [
            DataFile(
                path,
                os.path.relpath(path, self.folder),
                each.file_size_in_bytes,
                each.record_count,
                snapshot.partition_of(each),
                "",
            )
            for path, each in listed.items()
        ]
        attempt = uuid.uuid4().hex[:12]
        merged = merge_small_files(snapshot.layout, candidates, target_bytes, attempt)
        gone = [listed[each.path] for group in merged for each in group.removed]
        added = [each for group in merged for each in group.added]
        if not gone:
            return Compacted(0, 0)
        own = {"strandlog.compaction": attempt}
        with _errors(self.folder), snapshot.handle.transaction() as change:
            _replace_files(change, snapshot.handle, gone, added, own)
        return Compacted(len(gone), len(added))

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        """Expire old snapshots, then delete old files that no remaining snapshot needs. Return the
        paths of these files; with `dry_run`, change nothing."""
        limit_ms = self._clock.now_ms() - older_than_hours * HOUR_MS
        snapshot = self.load()
        if not dry_run:
            limit = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=limit_ms)
            with _errors(self.folder):
                snapshot.handle.maintenance.expire_snapshots().older_than(
                    limit.replace(tzinfo=None)
                ).commit()
            snapshot = self.load()
        with _reading(self.folder):
            needed = snapshot.needed_files(limit_ms)
        found = [
            path
            for place in (DATA_FOLDER, "metadata")
            for path in old_files(os.path.join(self.folder, place), limit_ms)
            if path not in needed
        ]
        if not dry_run:
            for path in found:
                table_files().remove(path)
        return sorted(found)


class IcebergSnapshot:
    """One version of an Iceberg table."""

    def __init__(self, folder: str, handle: Any) -> None:
        self._folder = folder
        self.handle = handle
        self.version: int = handle.metadata.last_sequence_number
        if self.properties.get(RETRIES) != "0":
            raise TableChangedError(
                f"the table in {folder} has {RETRIES}={self.properties.get(RETRIES, '4')}, which "
                f"would let two writers write the same rows; set it to 0"
            )

    @cached_property
    def layout(self) -> Layout:
        schema = self.handle.schema()
        found = schemas.plain(schema_to_pyarrow(schema, include_field_ids=False))
        names = tuple(schema.find_field(each.source_id).name for each in self.handle.spec().fields)
        return Layout(
            self._folder, found, names, keeps_partition_columns=True, data_folder=DATA_FOLDER
        )

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.handle.metadata.properties)

    def progress(self, app_id: str) -> int | None:
        found = self.handle.metadata.properties.get(PROGRESS + app_id)
        return None if found is None else int(found)

    def row_count(self) -> int:
        newest = self.handle.current_snapshot()
        return 0 if newest is None else int(newest.summary["total-records"])

    def listed(self) -> list[Any]:
        """Return the library's description of each data file."""
        with _reading(self._folder):
            tasks = list(self.handle.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise TableChangedError(
                f"the table in {self._folder} has delete files from another writer, which "
                "strandlog does not support; compact them with that writer"
            )
        return [task.file for task in tasks]

    def partition_of(self, file: Any) -> tuple[tuple[str, str | None], ...]:
        """Return the partition values of a data file, as text."""
        names = self.layout.partition_by
        values: list[str | None] = []
        for position, name in enumerate(names):
            value = file.partition[position]
            if value is not None and pa.types.is_date(self.layout.schema.field(name).type):
                value = pa.scalar(value, pa.int32()).cast(pa.date32()).as_py()
            values.append(None if value is None else str(value))
        return tuple(zip(names, values, strict=True))

    def data_files(self) -> list[str]:
        return sorted(_local_path(each.file_path) for each in self.listed())

    def needed_files(self, limit_ms: int) -> set[str]:
        """Return the metadata files, and the files of the snapshots that do not expire, because
        they are not older than `limit_ms` or because a branch or tag names them."""
        metadata = self.handle.metadata
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        found = {self.handle.metadata_location}
        found |= {entry.metadata_file for entry in metadata.metadata_log}
        for snapshot in metadata.snapshots:
            if snapshot.timestamp_ms < limit_ms and snapshot.snapshot_id not in named:
                continue
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self.handle.io):
                found.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(self.handle.io):
                    found.add(entry.data_file.file_path)
        return {_local_path(uri) for uri in found}

    def read(self, columns: Sequence[str]) -> Any:
        return read_files(self._folder, self.data_files(), self.layout.schema, columns)

    def history(self, limit: int) -> list[Commit]:
        newest = sorted(
            self.handle.metadata.snapshots, key=lambda each: each.sequence_number or 0, reverse=True
        )
        found = [
            Commit(
                each.sequence_number or 0,
                each.summary.operation.value,
                dict(each.summary.additional_properties),
            )
            for each in newest[:limit]
        ]
        current = self.handle.current_snapshot()
        if newest and (current is None or current.snapshot_id != newest[0].snapshot_id):
            found.insert(0, Commit(self.version, ROLLBACK, {}))
        return found

    def add_files(
        self, files: Sequence[DataFile], *, progress: Progress, metadata: Metadata = NO_METADATA
    ) -> None:
        check_progress(self, progress)
        try:
            with _errors(self._folder), self.handle.transaction() as change:
                self._set_progress(change, progress)
                if files:
                    change.add_files(
                        [f"file://{each.path}" for each in files],
                        snapshot_properties=dict(metadata),
                    )
        except pa.ArrowException as error:
            raise damaged(self._folder, error) from error
        except ValueError as error:
            if {each.path for each in files}.isdisjoint(self.data_files()):
                raise TableSchemaError(f"{self._folder}: {error}") from error
            raise TableConflictError(f"{self._folder}: {error}") from error

    def _set_progress(self, change: Any, progress: Progress) -> None:
        """Add progress to a transaction, and the checks that the module docstring describes."""
        updates = {PROGRESS + app_id: str(value) for app_id, value in progress.items()}
        metadata, newest = self.handle.metadata, self.handle.current_snapshot()
        checks = (
            AssertRefSnapshotId(
                ref="main", snapshot_id=None if newest is None else newest.snapshot_id
            ),
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            _AssertProgress(progress={name: metadata.properties.get(name) for name in updates}),
        )
        change._apply((SetPropertiesUpdate(updates=updates),), checks)

    def upsert(
        self,
        rows: Any,
        deleted: Any,
        *,
        progress: Progress,
        metadata: Metadata = NO_METADATA,
    ) -> None:
        """Insert `rows`, replacing rows with the same keys, and delete the keys of `deleted`.

        `rows` and `deleted` have the table's columns and one row per key. A row of the table stays
        if it is not older, by offset, than the given row with its key. Raise `TableSchemaError` if
        these two rows come from different partitions. One commit adds the new rows and rewrites the
        files that contain replaced or deleted rows. The library's own `upsert` is not used, because
        it makes two snapshots per call and cannot delete.
        """
        check_progress(self, progress)
        listed = {_local_path(each.file_path): each for each in self.listed()}
        attempt = uuid.uuid4().hex[:12]
        replaced = without_keys(self.layout, sorted(listed), rows, deleted, attempt)
        added = [
            *replaced.kept,
            *self.layout.write(replaced.rows, f"upsert-{self.version}", attempt),
        ]
        if not added and not replaced.paths:  # only the progress changes
            self.add_files([], progress=progress, metadata=metadata)
            return
        with _errors(self._folder), self.handle.transaction() as change:
            self._set_progress(change, progress)
            _replace_files(
                change, self.handle, [listed[each] for each in replaced.paths], added, metadata
            )


class _AssertProgress(ValidatableTableRequirement):  # type: ignore[misc]
    """Requires that properties with progress have not changed."""

    type: Literal["assert-strandlog-progress"] = "assert-strandlog-progress"
    progress: dict[str, str | None]

    def validate(self, base_metadata: Any) -> None:
        found = {} if base_metadata is None else base_metadata.properties
        for name, value in self.progress.items():
            if found.get(name) != value:
                raise iceberg_errors.CommitFailedException(f"{name} has changed")


def _replace_files(
    change: Any, handle: Any, gone: Sequence[Any], added: Sequence[DataFile], metadata: Metadata
) -> None:
    """Add to a transaction a snapshot that replaces the data files `gone` with `added`."""
    with change.update_snapshot(snapshot_properties=dict(metadata)).overwrite() as replace:
        for each in gone:
            replace.delete_data_file(each)
        for new in added:
            replace.append_data_file(
                parquet_file_to_data_file(handle.io, change.table_metadata, f"file://{new.path}")
            )


def _local_path(uri: str) -> str:
    return uri.removeprefix("file://")
