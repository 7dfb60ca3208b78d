"""One interface for lake tables: Delta, Iceberg and plain Parquet files with a manifest.

    table = open_table("./lake/orders", "delta")            no I/O yet
    table.create(schema, partition_by=("date",))            an existing table stays unchanged
    snapshot = table.load()                                 the newest version
    done = snapshot.progress("app")                         the number that `app` committed last
    files = snapshot.layout.write(rows, "orders-0-0-500", attempt)
    snapshot.add_files(files, progress={"app": 500})        the commit: rows and progress together

**Progress** maps application ids to integers that only grow, such as the next offset of a partition
for `table sync`, or the batch id for a Spark query. A commit stores both rows and progress, or
neither. A writer that continues after the stored progress therefore loses no row and writes none
twice, no matter when it is killed.

Rules that make this true:

1. A `Snapshot` is one version, and its commits are relative to that version. If another process
   has since committed progress for one of the same ids, or changed the schema, the commit fails
   with `TableConflictError` and changes nothing that a reader sees. (It also fails after any other
   commit to a Parquet table, and after any other commit of files to an Iceberg table.) Load the
   table again, and read its progress again before deciding what to write: the rows may already be
   there.
2. Progress must grow: a commit whose progress is not greater than the snapshot's is rejected with
   the same error. So no batch is committed twice.
3. A snapshot serves one commit. Afterwards, and after an error, load the table again.
4. If a process dies inside a commit, the commit either happened completely or did not happen;
   `progress` shows which.

**Data files** are written before the commit, possibly by other processes: a `Layout` can be
pickled, and Spark's tasks call its `write` and return the `DataFile`s to the driver, which commits
them all. Files are fsynced before they are renamed, and invisible to readers until the commit.
`attempt` makes their names unique, so that no attempt overwrites another attempt's files. `vacuum`
removes old files of attempts that were not committed. `add_files([])` commits only progress.

Rows and the table are matched by column name; columns that the rows lack become null.
`extend` adds columns or widens their types in a commit of its own, so load the table again
afterwards. `properties` are strings stored with the table; `set_properties` changes them, also in a
commit of its own.

Tables are folders on a local or mounted file system. When a commit returns, its data files and the
log, manifest or catalog have been fsynced; a power failure may still undo the newest commits of an
Iceberg table as a whole. A process that is killed inside a commit may leave a version that is
visible but not yet durable. In both cases, `make_durable` makes the newest version durable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from strandlog.errors import (
    InvalidSettingError,
    MissingExtraError,
    TableConflictError,
    TableSchemaError,
)

if TYPE_CHECKING:
    from strandlog.tables.layout import DataFile, Layout

Format = Literal["delta", "iceberg", "parquet"]
FORMATS: tuple[Format, ...] = ("delta", "iceberg", "parquet")
UPSERT_FORMATS: tuple[Format, ...] = ("delta", "iceberg")  # formats whose snapshots have `upsert`
UNSUPPORTED_CHARACTERS = {  # not allowed in paths, because the libraries parse paths as URLs
    "delta": "%\\",
    "iceberg": "#?",
}
Progress = Mapping[str, int]
Metadata = Mapping[str, str]
NO_METADATA: Metadata = {}
READABLE_DIR_MODE: Final = 0o777  # lets other users read tables, unless the umask forbids it


class Commit(NamedTuple):
    """One entry of a table's history."""

    version: int
    operation: str
    metadata: dict[str, str]  # given to the commit, plus entries that the format adds


class Snapshot(Protocol):
    """One version of a table. The module docstring lists the rules for commits."""

    @property
    def version(self) -> int: ...
    @property
    def layout(self) -> Layout:
        """The schema, the partition columns and the folder, for the writers of data files."""

    @property
    def properties(self) -> dict[str, str]: ...
    def progress(self, app_id: str) -> int | None:
        """Return the progress of an application, or None if it has committed nothing."""

    def row_count(self) -> int: ...
    def data_files(self) -> list[str]:
        """Return the absolute paths of the Parquet files of this version."""

    def read(self, columns: Sequence[str]) -> Any:
        """Return a RecordBatchReader over all rows, with only these columns."""

    def history(self, limit: int) -> list[Commit]:
        """Return up to `limit` of the commits that the table still records, newest first.

        Iceberg records only commits that add or remove files. Its history starts with one more
        entry if another program has gone back to an older snapshot.
        """

    def add_files(
        self, files: Sequence[DataFile], *, progress: Progress, metadata: Metadata = NO_METADATA
    ) -> None:
        """Commit data files that `Layout.write` has written."""


class Durable(NamedTuple):
    """A version of a table that survives a power failure, with its data files."""

    version: int
    files: frozenset[str]


class Compacted(NamedTuple):
    """The result of a compaction: the number of files removed and added."""

    removed: int
    added: int


class Table(Protocol):
    """A table in a folder, which may not exist yet."""

    @property
    def folder(self) -> str: ...
    @property
    def format(self) -> Format: ...
    def exists(self) -> bool: ...
    def create(
        self,
        schema: Any,
        *,
        partition_by: Sequence[str] = (),
        properties: Metadata = NO_METADATA,
    ) -> None:
        """Create the table, unless it exists."""

    def load(self) -> Snapshot:
        """Return the newest version; raise `TableNotFoundError` if there is no table."""

    def extend(self, schema: Any) -> None:
        """Add the columns and struct fields of `schema` that the table does not have, and widen
        types where the format can. Raise `TableSchemaError` if a type does not fit."""

    def set_properties(self, properties: Metadata) -> None: ...

    def make_durable(self, known: Durable | None = None) -> Durable:
        """Make the newest version durable, whichever process committed it. `known` is the version
        that the last call returned; it need not be fsynced again."""

    def compact(self, target_bytes: int) -> Compacted:
        """Merge small data files. This can raise `TableConflictError` if another writer commits
        during the merge."""

    def vacuum(self, older_than_hours: int, *, dry_run: bool = False) -> list[str]:
        """Return the paths of files that no version within `older_than_hours` needs, and delete the
        files unless `dry_run` is set."""


def open_table(target: str | os.PathLike[str], table_format: str) -> Table:
    """Return the table in a folder; raise `MissingExtraError` if its library is not installed."""
    folder = local_folder(target)
    for character in UNSUPPORTED_CHARACTERS.get(table_format, ""):
        if character in folder:
            raise InvalidSettingError(
                "target", folder, f"the path of a table in this format cannot contain {character!r}"
            )
    try:  # a process imports only the library that it uses
        match table_format:
            case "delta":
                from strandlog.tables.formats.delta import DeltaLakeTable  # noqa: PLC0415

                return DeltaLakeTable(folder)
            case "iceberg":
                from strandlog.tables.formats.iceberg import IcebergTable  # noqa: PLC0415

                return IcebergTable(folder)
            case "parquet":
                from strandlog.tables.formats.parquet import ParquetTable  # noqa: PLC0415

                return ParquetTable(folder)
    except ImportError as error:
        extra = "iceberg" if table_format == "iceberg" else "delta"
        raise MissingExtraError(extra, error.name or extra) from error
    raise InvalidSettingError("format", table_format, f"expected one of {', '.join(FORMATS)}")


def local_folder(target: str | os.PathLike[str]) -> str:
    """Return the absolute path of a target; raise an error if it is a URL other than file://."""
    text = os.fspath(target)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        raise InvalidSettingError(
            "target", text, "expected a folder; mount the object store, or copy the table there"
        )
    return os.path.abspath(text)


def check_progress(snapshot: Snapshot, progress: Progress) -> None:
    """Raise `TableConflictError` unless the progress of every application grows (rule 2 above)."""
    for app_id, value in progress.items():
        known = snapshot.progress(app_id)
        if known is not None and value <= known:
            raise TableConflictError(
                f"the table already has {app_id!r} up to {known}, so {value} would repeat it; "
                "load the table again and continue after its progress"
            )


def in_two_partitions(key: bytes) -> TableSchemaError:
    """Return the error for a key in two partitions, whose latest value cannot be determined."""
    return TableSchemaError(
        f"the key {key[:100]!r} is in two partitions, whose offsets cannot be compared; a table in "
        "upsert mode needs a producer that sends each key to one partition: use append mode, and "
        "another folder"
    )


def detected_format(target: str | os.PathLike[str]) -> Format | None:
    """Return the format of the table in a folder, or None if the folder contains no table."""
    folder = local_folder(target)
    marks: dict[Format, str] = {
        "delta": "_delta_log",
        "iceberg": "catalog.db",
        "parquet": "_strandlog",
    }
    for name, mark in marks.items():
        if os.path.lexists(os.path.join(folder, mark)):
            return name
    return None
