"""`Table` of plain Parquet files with a manifest, for readers that support only Parquet.

    <folder>/[<column>=<value>/]<name>.parquet       what readers see
    <folder>/_strandlog/manifest.json                version, schema, progress, list of files
    <folder>/_strandlog/staged/…                     files before their commit
    <folder>/_strandlog/lock                         held during a commit

A commit has three steps: the data files are staged and fsynced; the manifest is replaced, which is
the commit; the files are renamed into place. If a process dies after the second step, the next
`load` completes the third. A reader that lists `*.parquet` therefore never sees an uncommitted
row or the same row twice; at worst, the newest files are still missing. A reader that needs exactly
one version reads the file list in the manifest, which has a checksum.

A sync names its files `<topic>-<partition>-<start>-<end>`; a name can be in the table only once.

`compact` removes the small files before it renames the merged ones. A reader that lists files may
miss rows until all are renamed, but never sees them twice.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from strandlog.clock import Clock, SystemClock
from strandlog.errors import (
    TableConflictError,
    TableDamagedError,
    TableError,
    TableNotFoundError,
)
from strandlog.storage.files import Lock
from strandlog.tables import schema as schemas
from strandlog.tables.formats.merging import merge_small_files
from strandlog.tables.layout import (
    STAGED_SUFFIX,
    SUFFIX,
    TEMP_SUFFIX,
    DataFile,
    Layout,
    check_is_empty,
    make_durable_folder,
    old_files,
    table_files,
)
from strandlog.tables.reading import check_present, damaged, read_files
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

STATE_FOLDER: Final = "_strandlog"
MANIFEST: Final = f"{STATE_FOLDER}/manifest.json"
LOCK: Final = f"{STATE_FOLDER}/lock"
STAGING: Final = f"{STATE_FOLDER}/staged"
CHECKSUM: Final = "checksum"
MAX_HISTORY: Final = 100  # commits that the manifest remembers
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class Listed:
    """A data file in the manifest. `staged` is its path until it is renamed."""

    name: str
    size_bytes: int
    row_count: int
    partition: list[list[str | None]]
    staged: str = ""


@dataclass(frozen=True)
class Manifest:
    """The state of the table."""

    version: int = 0
    schema: str = ""  # as an Arrow IPC message, in base64
    partition_by: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    progress: dict[str, int] = field(default_factory=dict)
    files: list[Listed] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)  # files that the newest commit removes
    history: list[list[Any]] = field(default_factory=list)  # [version, operation, metadata]

    def next(self, operation: str, metadata: Metadata, **changes: Any) -> Manifest:
        """Return the manifest of the next version."""
        version = self.version + 1
        entry = [version, operation, dict(metadata)]
        history = [entry, *self.history][:MAX_HISTORY]
        return replace(self, version=version, history=history, **{"removed": [], **changes})


def _packed(schema: Any) -> str:
    return base64.b64encode(schemas.plain(schema).serialize().to_pybytes()).decode()


def _compact_json(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def _checksum(manifest: dict[str, Any]) -> str:
    return f"{zlib.crc32(_compact_json(manifest).encode()):08x}"


def _check_checksum(found: dict[str, Any]) -> None:
    """Remove the checksum from a manifest; raise `ValueError` if it is wrong.

    A manifest without a checksum is accepted: an earlier version wrote it.
    """
    checksum = found.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(found):
        raise ValueError("its checksum is wrong")


class ParquetTable:
    """A table of Parquet files in a folder."""

    format: Format = "parquet"

    def __init__(self, folder: str, clock: Clock | None = None) -> None:
        self.folder = folder
        self._clock = clock or SystemClock()
        self._files = table_files()

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def exists(self) -> bool:
        return os.path.lexists(self._path(MANIFEST))

    def create(
        self,
        schema: Any,
        *,
        partition_by: Sequence[str] = (),
        properties: Metadata = NO_METADATA,
    ) -> None:
        if not self.exists():
            try:
                check_is_empty(self.folder)
            except TableError:
                if not self.exists():  # another process may just have created it
                    raise
        make_durable_folder(self._path(STATE_FOLDER))
        with self._locked():
            if self.exists():
                return
            first = Manifest(
                1, _packed(schemas.checked(schema)), list(partition_by), dict(properties)
            )
            self._save(replace(first, history=[[1, "CREATE TABLE", {}]]))

    def load(self) -> ParquetSnapshot:
        manifest = self._read()
        self._complete(manifest)
        return ParquetSnapshot(self, manifest)

    def _read(self) -> Manifest:
        path = self._path(MANIFEST)
        try:
            found = json.loads(self._files.read(path))
            _check_checksum(found)
            listed = [Listed(**each) for each in found.pop("files")]
            return Manifest(files=listed, **found)
        except FileNotFoundError:
            raise TableNotFoundError(
                f"{self.folder} contains no table: there is no {MANIFEST}"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(self.folder, ValueError(f"{path}: {error}")) from error

    def _save(self, manifest: Manifest) -> None:
        found = asdict(manifest)
        text = _compact_json({CHECKSUM: _checksum(found), **found})
        self._files.replace(self._path(MANIFEST), text.encode())

    def _complete(self, manifest: Manifest) -> None:
        """Bring the files into the state that the manifest describes (step 3 of a commit)."""
        for name in manifest.removed:
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self._path(name))
        changed = set()
        for each in manifest.files:
            if not each.staged or os.path.lexists(self._path(each.name)):
                continue
            target = self._path(each.name)
            make_durable_folder(os.path.dirname(target))
            with contextlib.suppress(FileNotFoundError):  # another process has renamed the file
                self._files.rename(self._path(each.staged), target)
            changed.add(os.path.dirname(target))
        for folder in changed:
            self._files.sync_dir(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Lock]:
        lock = self._files.lock(self._path(LOCK))
        if lock is None:
            raise TableConflictError(f"another process is writing to the table in {self.folder}")
        try:
            yield lock
        finally:
            lock.release()

    def commit(self, before: Manifest, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest and put its files in place; raise `TableConflictError` if another
        process is committing or the manifest has changed since `before`."""
        with self._locked():
            now = self._read()
            if now.version != before.version:
                raise TableConflictError(
                    f"the table in {self.folder} has version {now.version}, not {before.version}: "
                    "another process has changed it"
                )
            after = change(now)
            self._save(after)
            self._complete(after)

    def extend(self, schema: Any) -> None:
        snapshot = self.load()
        wanted = schemas.merged(snapshot.layout.schema, schema)
        if wanted != snapshot.layout.schema:
            self.commit(
                snapshot.manifest, lambda now: now.next("ADD COLUMN", {}, schema=_packed(wanted))
            )

    def set_properties(self, properties: Metadata) -> None:
        def change(now: Manifest) -> Manifest:
            return now.next("SET PROPERTIES", {}, properties=now.properties | dict(properties))

        self.commit(self._read(), change)

    def make_durable(self, known: Durable | None = None) -> Durable:
        snapshot = self.load()  # completes the renames and fsyncs their folders
        found = Durable(snapshot.version, frozenset(snapshot.data_files()))
        if known is None or known.version != found.version:
            self._files.sync_dir(self._path(STATE_FOLDER))
        return found

    def compact(self, target_bytes: int) -> Compacted:
        snapshot = self.load()
        listed = snapshot.manifest.files
        old = {each.name: each for each in listed}
        candidates = [
            DataFile(
                self._path(each.name),
                each.name,
                each.size_bytes,
                each.row_count,
                tuple((name or "", value) for name, value in each.partition),
                "",
            )
            for each in listed
        ]
        attempt = f"v{snapshot.version}-{self._clock.now_ms()}"
        try:
            check_present(self.folder, snapshot.data_files())
            merged = merge_small_files(snapshot.layout, candidates, target_bytes, attempt)
        except TableDamagedError as error:
            if self._read().version == snapshot.version:
                raise
            raise TableConflictError(
                f"another process has changed the table in {self.folder} since it was loaded"
            ) from error
        gone = {each.name for group in merged for each in group.removed}
        added = [each for group in merged for each in group.added]
        if not gone:
            return Compacted(0, 0)

        def change(now: Manifest) -> Manifest:
            kept = [each for name, each in old.items() if name not in gone]
            files = kept + [self._listed(each) for each in added]
            return now.next("OPTIMIZE", {}, files=files, removed=sorted(gone))

        self.commit(snapshot.manifest, change)
        return Compacted(len(gone), len(added))

    def _listed(self, each: DataFile) -> Listed:
        partition = [list(value) for value in each.partition]
        staged = os.path.relpath(each.path, self.folder)
        return Listed(each.name, each.size_bytes, each.row_count, partition, staged)

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        snapshot = self.load()
        needed = set(snapshot.data_files())
        limit_ms = self._clock.now_ms() - older_than_hours * HOUR_MS
        found = [
            path
            for path in old_files(self.folder, limit_ms)
            if path.endswith((SUFFIX, STAGED_SUFFIX, TEMP_SUFFIX)) and path not in needed
        ]
        if not dry_run:
            for path in found:
                self._files.remove(path)
        return sorted(found)


class ParquetSnapshot:
    """One version of a `ParquetTable`."""

    def __init__(self, table: ParquetTable, manifest: Manifest) -> None:
        self._table = table
        self.manifest = manifest
        self.version = manifest.version

    @cached_property
    def layout(self) -> Layout:
        data = base64.b64decode(self.manifest.schema)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
        except pa.ArrowException as error:
            raise damaged(self._table.folder, error) from error
        by = tuple(self.manifest.partition_by)
        return Layout(self._table.folder, schema, by, staging_folder=STAGING)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.manifest.properties)

    def progress(self, app_id: str) -> int | None:
        return self.manifest.progress.get(app_id)

    def row_count(self) -> int:
        return sum(each.row_count for each in self.manifest.files)

    def data_files(self) -> list[str]:
        return sorted(os.path.join(self._table.folder, each.name) for each in self.manifest.files)

    def read(self, columns: Sequence[str]) -> Any:
        schema, folder = self.layout.schema, self._table.folder
        if set(self.layout.partition_by).isdisjoint(columns):
            return read_files(folder, self.data_files(), schema, columns)
        found = {
            os.path.join(folder, each.name): {
                name or "": pa.scalar(text, pa.string()).cast(schema.field(name).type)
                for name, text in each.partition
            }
            for each in self.manifest.files
        }
        return read_files(folder, sorted(found), schema, columns, found)

    def history(self, limit: int) -> list[Commit]:
        return [
            Commit(version, operation, metadata)
            for version, operation, metadata in self.manifest.history[:limit]
        ]

    def add_files(
        self, files: Sequence[DataFile], *, progress: Progress, metadata: Metadata = NO_METADATA
    ) -> None:
        check_progress(self, progress)
        known = {each.name for each in self.manifest.files}
        for each in files:
            if each.name in known:
                raise TableConflictError(
                    f"the table in {self._table.folder} already has {each.name}; load the table "
                    "again and continue after its progress"
                )

        def change(now: Manifest) -> Manifest:
            return now.next(
                "WRITE",
                metadata,
                files=now.files + [self._table._listed(each) for each in files],
                progress=now.progress | dict(progress),
            )

        self._table.commit(self.manifest, change)
