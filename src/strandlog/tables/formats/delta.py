"""`Table` in Delta's format, without Java.

    <folder>/_delta_log/<version>.json          one commit; the name is claimed atomically
    <folder>/_delta_log/*.checkpoint.parquet    the state at a version, written by the library
    <folder>/[<column>=<value>/]*.parquet       data files, written by `Layout.write` or, in a
                                                compaction or a merge, by the library
    <folder>/_compaction/lock                   held by the one process that compacts files

Progress is Delta's `txn` action: (application id, version), in the same commit as the files. The
library reports a conflict only with commits made after the committing handle loaded its snapshot.
It would accept a repeated commit from a newer handle, so `check_progress` rejects that.

The library fsyncs neither the log nor the data files that it writes. `_sync_log` and `_sync_files`
do so after each commit, before the commit is reported.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake import exceptions as delta_errors
from deltalake.transaction import AddAction, CommitProperties

from strandlog.errors import (
    TableChangedError,
    TableConflictError,
    TableError,
    TableNotFoundError,
    TableSchemaError,
)
from strandlog.storage.files import disk_error
from strandlog.tables import schema as schemas
from strandlog.tables.formats.replacing import check_partitions
from strandlog.tables.layout import (
    DataFile,
    Layout,
    check_is_empty,
    make_durable_folder,
    partition_values,
    table_files,
)
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

LOG_FOLDER: Final = "_delta_log"
LOG_RETENTION: Final = "interval 30 days"
COMPACTION_FOLDER: Final = "_compaction"  # holds the lock; readers ignore names that start with "_"
UNSUPPORTED: Final = frozenset({"deletionVectors", "columnMapping", "rowTracking"})


@contextmanager
def _errors(folder: str) -> Iterator[None]:
    """Translate the library's errors."""
    try:
        yield
    except delta_errors.TableNotFoundError as error:
        raise TableNotFoundError(f"{folder} contains no Delta table") from error
    except delta_errors.CommitFailedError as error:
        raise full(folder, error) or TableConflictError(
            f"another writer has changed the table in {folder} since it was loaded: {error}"
        ) from error
    except delta_errors.SchemaMismatchError as error:
        raise TableSchemaError(f"{folder}: {error}") from error
    except FileNotFoundError as error:
        raise damaged(folder, error) from error
    except OSError as error:
        raise full(folder, error) or disk_error("write the table in", folder, error) from error
    except delta_errors.DeltaProtocolError as error:
        raise damaged(folder, error) from error
    except delta_errors.DeltaError as error:
        if (no_space := full(folder, error)) is not None:
            raise no_space from error
        # The library raises the same error for a log that is not JSON and for a missing log.
        raise damaged(folder, Exception(str(error).partition("\n")[0])) from error


class DeltaLakeTable:
    """A Delta table in a folder."""

    format: Format = "delta"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def exists(self) -> bool:
        with _errors(self.folder):
            return bool(deltalake.DeltaTable.is_deltatable(self.folder))

    def create(
        self,
        schema: Any,
        *,
        partition_by: Sequence[str] = (),
        properties: Metadata = NO_METADATA,
    ) -> None:
        if self.exists():
            return
        try:
            check_is_empty(self.folder)
            with _errors(self.folder):
                deltalake.DeltaTable.create(
                    self.folder,
                    schemas.checked(schema),
                    mode="error",
                    partition_by=list(partition_by),
                    configuration={"delta.logRetentionDuration": LOG_RETENTION, **properties},
                    raise_if_key_not_exists=False,
                )
        except TableError:
            if not self.exists():
                raise
            return  # another process has just created the table
        _sync_log(self.folder, -1)

    def load(self) -> DeltaSnapshot:
        if not os.path.isdir(os.path.join(self.folder, LOG_FOLDER)):
            raise TableNotFoundError(f"{self.folder} contains no Delta table")
        with _errors(self.folder):
            return DeltaSnapshot(self.folder, deltalake.DeltaTable(self.folder))

    def extend(self, schema: Any) -> None:
        snapshot = self.load()
        wanted = schemas.merged(snapshot.layout.schema, schema)
        known = {field.name: field for field in snapshot.layout.schema}
        changed = [field for field in wanted if field not in known.values()]
        if not changed:
            return
        for column in schemas.widened(snapshot.layout.schema, wanted):
            raise TableSchemaError(
                f"column {column.path} has type {column.type} in the table but needs "
                f"{column.wanted}, and Delta cannot change it; write the table again with "
                "--rebuild, or write to another table"
            )
        fields = deltalake.Schema.from_arrow(pa.schema(changed)).fields
        self._change(lambda table: table.alter.add_columns(fields))

    def set_properties(self, properties: Metadata) -> None:
        given = dict(properties)
        self._change(
            lambda table: table.alter.set_table_properties(given, raise_if_not_exists=False)
        )

    def _change(self, change: Callable[[Any], None]) -> None:
        snapshot = self.load()
        with _errors(self.folder):
            change(snapshot.handle)
        _sync_log(self.folder, snapshot.version)

    def make_durable(self, known: Durable | None = None) -> Durable:
        snapshot = self.load()
        found = Durable(snapshot.version, frozenset(snapshot.data_files()))
        version, files = known or Durable(-1, frozenset())
        if found.version != version:
            _sync_files(self.folder, found.files - files)
            _sync_log(self.folder, version if version < found.version else -1)
        return found

    def compact(self, target_bytes: int) -> Compacted:
        """Merge small files, unless another process is doing so.

        The library accepts a second compaction of the same files, although the first one has
        removed them, and so doubles their rows. A lock therefore lets only one compaction run at a
        time, on the newest version.
        """
        folder = os.path.join(self.folder, COMPACTION_FOLDER)
        make_durable_folder(folder)
        lock = table_files().lock(os.path.join(folder, "lock"))
        if lock is None:
            return Compacted(0, 0)
        try:
            return self._compact(target_bytes)
        finally:
            lock.release()

    def _compact(self, target_bytes: int) -> Compacted:
        snapshot = self.load()
        before = set(snapshot.data_files())
        with _errors(self.folder):
            found = snapshot.handle.optimize.compact(target_size=target_bytes)
        _sync_files(self.folder, set(self.load().data_files()) - before)
        _sync_log(self.folder, snapshot.version)
        return Compacted(found["numFilesRemoved"], found["numFilesAdded"])

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        snapshot = self.load()
        with _errors(self.folder):
            found = snapshot.handle.vacuum(
                retention_hours=older_than_hours,
                dry_run=dry_run,
                enforce_retention_duration=False,
                full=True,
            )
        return sorted(os.path.join(self.folder, unquote(name)) for name in found)


class DeltaSnapshot:
    """One version of a Delta table."""

    def __init__(self, folder: str, handle: Any) -> None:
        self._folder = folder
        self.handle = handle
        self.version: int = handle.version()
        features = set(handle.protocol().reader_features or ())
        if features & UNSUPPORTED:
            raise TableChangedError(
                f"the table in {folder} uses {', '.join(sorted(features & UNSUPPORTED))}, which "
                "strandlog does not support; sync to another table"
            )

    @cached_property
    def layout(self) -> Layout:
        found = schemas.plain(pa.schema(self.handle.schema().to_arrow()))
        return Layout(self._folder, found, tuple(self.handle.metadata().partition_columns))

    @cached_property
    def properties(self) -> dict[str, str]:
        return dict(self.handle.metadata().configuration)

    def progress(self, app_id: str) -> int | None:
        with _errors(self._folder):
            found: int | None = self.handle.transaction_version(app_id)
        return found

    def row_count(self) -> int:
        with _errors(self._folder):
            counts = pa.table(self.handle.get_add_actions(flatten=True)).column("num_records")
            if counts.null_count:  # another writer's files, without statistics
                return int(self.handle.count())
        return sum(counts.to_pylist())

    def data_files(self) -> list[str]:
        with _errors(self._folder):
            actions = pa.table(self.handle.get_add_actions())
        # `file_uris` would also escape the folder name: a space in it would become "%20".
        paths = actions.column("path").to_pylist()
        return sorted(os.path.join(self._folder, unquote(path)) for path in paths)

    def read(self, columns: Sequence[str]) -> Any:
        schema, by = self.layout.schema, self.layout.partition_by
        if set(by).isdisjoint(columns):
            return read_files(self._folder, self.data_files(), schema, columns)
        with _errors(self._folder):
            actions = pa.table(self.handle.get_add_actions(flatten=True))
        found = {
            os.path.join(self._folder, unquote(action["path"])): {
                name: pa.scalar(action[f"partition.{name}"], schema.field(name).type) for name in by
            }
            for action in actions.to_pylist()
        }
        return read_files(self._folder, sorted(found), schema, columns, found)

    def history(self, limit: int) -> list[Commit]:
        with _errors(self._folder):
            found = self.handle.history(limit)
        return [
            Commit(
                int(entry.get("version", -1)),
                str(entry.get("operation", "")),
                {name: value for name, value in entry.items() if isinstance(value, str)},
            )
            for entry in found
        ]

    def add_files(
        self, files: Sequence[DataFile], *, progress: Progress, metadata: Metadata = NO_METADATA
    ) -> None:
        check_progress(self, progress)
        actions = [
            AddAction(
                each.name,  # unescaped; the library escapes it
                each.size_bytes,
                partition_values(each.partition),
                int(os.path.getmtime(each.path) * 1000),
                True,
                each.statistics,
            )
            for each in files
        ]
        with _errors(self._folder):
            self.handle.create_write_transaction(
                actions,
                "append",
                self.handle.schema(),
                list(self.layout.partition_by),
                commit_properties=self._commit(progress, metadata),
            )
        _sync_log(self._folder, self.version)

    def _commit(self, progress: Progress, metadata: Metadata) -> Any:
        # The library's retries only try the next version number; they do not ignore conflicts.
        return CommitProperties(
            custom_metadata=dict(metadata),
            app_transactions=[deltalake.Transaction(name, at) for name, at in progress.items()],
        )

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
        these two rows come from different partitions.
        """
        check_progress(self, progress)
        before = set(self.data_files())
        if not before:  # there is nothing to match
            files = self.layout.write(rows, f"upsert-{self.version}", uuid.uuid4().hex[:12])
            self.add_files(files, progress=progress, metadata=metadata)
            return
        check_partitions(self.layout, sorted(before), rows, deleted)
        mark = "strandlog_is_deleted"
        parts = []
        for part, is_deleted in ((rows, False), (deleted, True)):
            fitted = schemas.conformed(part, self.layout.schema)
            marks = pa.chunked_array([pa.array([is_deleted] * part.num_rows, pa.bool_())])
            parts.append(fitted.append_column(mark, marks))
        columns = {name: f"s.{_quoted(name)}" for name in self.layout.schema.names}
        is_newer = 's."offset" > t."offset"'
        with _errors(self._folder):
            (
                self.handle.merge(
                    pa.concat_tables(parts),
                    't."key" = s."key"',
                    source_alias="s",
                    target_alias="t",
                    commit_properties=self._commit(progress, metadata),
                )
                .when_matched_delete(f"s.{mark} and {is_newer}")
                .when_matched_update(_targets(columns), f"not s.{mark} and {is_newer}")
                .when_not_matched_insert(_targets(columns), f"not s.{mark}")
                .execute()
            )
        if self.handle.version() == self.version:  # a merge that changes no row commits nothing
            self.add_files([], progress=progress, metadata=metadata)
            return
        _sync_files(self._folder, set(DeltaLakeTable(self._folder).load().data_files()) - before)
        _sync_log(self._folder, self.version)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _targets(columns: Mapping[str, str]) -> dict[str, str]:
    return {_quoted(name): value for name, value in columns.items()}


def _sync_files(table_folder: str, paths: Iterable[str]) -> None:
    """Fsync data files, and their folders up to and including the table's."""
    files = table_files()
    folders = {table_folder}
    for path in paths:
        files.sync_file(path)
        folder = path
        while (folder := os.path.dirname(folder)) not in folders:
            folders.add(folder)
    for folder in folders:
        files.sync_dir(folder)


def _sync_log(folder: str, version: int) -> None:
    """Fsync the commits and checkpoints after `version`."""
    files = table_files()
    log = os.path.join(folder, LOG_FOLDER)
    for name in files.list_dir(log):
        number = name.split(".", 1)[0]
        if number.isdigit() and int(number) > version:
            files.sync_file(os.path.join(log, name))
    files.sync_dir(log)
    files.sync_dir(folder)
