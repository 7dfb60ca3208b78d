"""Writes a table's Parquet files, split by partition column and fsynced before they are renamed.

    <folder>/[<column>=<value>/]<name>-<attempt>.parquet

A `Layout` describes a table to the writers of its data files. It can be pickled, so that tasks in
other processes can write files that one process commits.

Pages have checksums, which strandlog's own reads verify (reading.py). Parquet has no checksum for
the footer, where a flipped bit can hide or change rows or crash the reading process. So each file
written here contains a checksum of its footer in front of the footer. Other readers ignore it:

    PAR1 | pages | "strandlog footer crc32:" CRC-32 | footer | length | PAR1

`write` converts the rows to the table's schema, splits them by partition value, and for each part
writes a temporary file, fsyncs it, and renames it. Another writer may already have committed a file
with the same rows and `name`; each call must therefore have its own pair of `name` and `attempt`,
so that nothing is overwritten. A crash may leave temporary files and files that no version of the
table lists; `vacuum` deletes them.

In a table of plain Parquet files, readers may list the folder. Files are therefore staged as
`<staging folder>/…<name>-<attempt>.parquet.staged`, and become `<name>.parquet` after the commit
(parquet.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandlog.errors import StorageError, TableError, TableSchemaError
from strandlog.storage.files import DiskFiles, disk_error
from strandlog.tables.schema import conformed
from strandlog.tables.table import READABLE_DIR_MODE

SUFFIX: Final = ".parquet"
TEMP_SUFFIX: Final = ".writing"
STAGED_SUFFIX: Final = ".staged"
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
COMPRESSION: Final = "zstd"
LAST_MILLISECOND: Final = datetime.max.replace(microsecond=999_000, tzinfo=UTC)
SEAL: Final = b"strandlog footer crc32:"  # marks the checksum that follows
FOOTER_END: Final = 8  # size of the footer's length field and the magic bytes
MAX_STATISTICS_TEXT: Final = 64  # columns with longer bounds have no minimum and maximum

PartitionValues = tuple[tuple[str, str | None], ...]


class DataFile(NamedTuple):
    """A finished data file; `Layout.write` returns it before a version of the table lists it."""

    path: str  # its current absolute path
    name: str  # its final path, relative to the table's folder
    size_bytes: int
    row_count: int
    partition: PartitionValues
    statistics: str  # in Delta's JSON form; empty for a file that is to be merged


def table_files() -> DiskFiles:
    """Return access to the disk, with file modes that let other users read tables."""
    return DiskFiles(READABLE_DIR_MODE)


@dataclass(frozen=True)
class Layout:
    """Describes how to write the data files of a table, and writes them."""

    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    keeps_partition_columns: bool = False  # whether the files contain them, or only the paths
    data_folder: str = ""  # below `folder`
    staging_folder: str = ""  # below `folder`; if empty, files immediately get their final name

    def write(self, rows: pa.Table, name: str, attempt: str) -> list[DataFile]:
        """Write the rows to one file per combination of partition values, and return the files.

        `name` identifies the rows. `name` and `attempt` become parts of file names; no two calls
        may have the same pair.
        """
        assert "/" not in name + attempt, "a part of a file name"
        rows = conformed(rows, self.schema)
        return [self._write(part, values, name, attempt) for values, part in self._split(rows)]

    def _split(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        if not rows.num_rows:
            return
        if not self.partition_by:
            yield (), rows
            return
        texts = [_texts(rows.column(name)) for name in self.partition_by]
        for name, column in zip(self.partition_by, texts, strict=True):
            self._check_values(name, column)
        codes = np.zeros(rows.num_rows, np.int64)
        for column in texts:
            # Null counts as a value and gets its own code.
            encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")  # rows keep their order within a file
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = [*starts[1:], len(order)]
        for start, end in zip(starts, ends, strict=True):
            picked = order[start:end]
            part = rows if len(starts) == 1 else rows.take(pa.array(picked))
            first = int(picked[0])
            values = [column[first].as_py() for column in texts]
            yield tuple(zip(self.partition_by, values, strict=True)), part

    def _check_values(self, name: str, texts: pa.ChunkedArray) -> None:
        """Raise `TableSchemaError` for a value that readers would take for null: Hive writes "" and
        null to the same folder, and Delta stores null as ""."""
        reserved = [NULL_FOLDER] if self.keeps_partition_columns else [NULL_FOLDER, ""]
        for value in reserved:
            if pc.any(pc.equal(texts, value)).as_py():
                raise TableSchemaError(
                    f"column {name} has the value {value!r}, and readers of a table partitioned by "
                    f"this column take it for null: write null instead, like "
                    f"nullif({name}, {value!r}), or partition the table by another column"
                )

    def _write(self, rows: pa.Table, values: PartitionValues, name: str, attempt: str) -> DataFile:
        unique = f"{name}-{attempt}{SUFFIX}"
        places = [self.data_folder, *map(_folder_of, values)]
        relative = staged = "/".join(filter(None, [*places, unique]))
        if self.staging_folder:
            relative = "/".join(filter(None, [*places, name + SUFFIX]))
            staged = f"{self.staging_folder}/{staged}{STAGED_SUFFIX}"
        path = os.path.join(self.folder, staged)
        if not self.keeps_partition_columns:
            rows = rows.drop_columns(list(self.partition_by))
        info = _write_durably(path, rows)
        statistics = json.dumps(statistics_of(info), separators=(",", ":"))
        size_bytes = os.path.getsize(path)
        return DataFile(path, relative, size_bytes, rows.num_rows, values, statistics)


def _write_durably(path: str, rows: pa.Table) -> Any:
    """Write and fsync a temporary file, rename it to `path`, and return its Parquet metadata."""
    files = table_files()
    folder, temp = os.path.dirname(path), path + TEMP_SUFFIX
    if not os.path.isdir(folder):
        _make_durable_folder(files, folder)
    try:
        info = _write_parquet(temp, rows)
        files.sync_file(temp)
    except (OSError, StorageError) as error:
        if os.path.lexists(temp):
            os.unlink(temp)  # so that it does not occupy space on a disk that may be full
        if isinstance(error, StorageError):
            raise
        raise disk_error("write", temp, error) from error
    assert not os.path.lexists(path), f"{path} exists: names of data files are never reused"
    files.rename(temp, path)
    files.sync_dir(folder)
    return info


def _write_parquet(path: str, rows: pa.Table) -> Any:
    """Write a file with a sealed footer, and return its Parquet metadata.

    Columns with bounds that Python cannot represent get no statistics: Iceberg's library fails if
    the statistics of a file contain a time after the year 9999.
    """
    options: dict[str, Any] = {"compression": COMPRESSION, "write_page_checksum": True}
    pq.write_table(rows, path, **options)
    info = pq.read_metadata(path)
    bounded = _bounded_columns(info)
    if len(bounded) < info.num_columns:
        pq.write_table(rows, path, **options, write_statistics=bounded)
        info = pq.read_metadata(path)
    _seal_footer(path)
    return info


def _seal_footer(path: str) -> None:
    """Insert a checksum of the footer in front of the footer."""
    files = table_files()
    tail = _footer(files, path)
    assert tail is not None, "the file was just written"
    files.truncate(path, files.size(path) - len(tail))
    files.append_to(path, SEAL + zlib.crc32(tail).to_bytes(4, "big") + tail)


def _footer(files: DiskFiles, path: str) -> bytes | None:
    """Return the footer with its length and magic bytes, or None if the length is invalid."""
    size = files.size(path)
    end = files.read_at(path, max(0, size - FOOTER_END), FOOTER_END)
    length = int.from_bytes(end[:4], "little") + FOOTER_END
    return files.read_at(path, size - length, length) if FOOTER_END < length <= size else None


def has_damaged_footer(path: str) -> bool:
    """Return whether a data file's footer does not match its checksum or has an invalid length.

    A footer without a checksum, written by Delta's library or another program, counts as undamaged
    if its length is valid.
    """
    files = table_files()
    tail = _footer(files, path)
    if tail is None:
        return True
    before = files.size(path) - len(tail) - len(SEAL) - 4
    seal = files.read_at(path, before, len(SEAL) + 4) if before >= 0 else b""
    return seal.startswith(SEAL) and seal[len(SEAL) :] != zlib.crc32(tail).to_bytes(4, "big")


def _bounded_columns(info: Any) -> list[str]:
    """Return the columns of a file, nested ones included, except columns with bounds that Python
    cannot represent."""
    found = []
    for index in range(info.num_columns):
        try:
            for row in range(info.num_row_groups):
                part = info.row_group(row).column(index).statistics
                if part is not None and part.has_min_max:
                    _ = part.min, part.max
        except (OverflowError, ValueError):
            continue
        found.append(info.schema.column(index).path)
    return found


def _make_durable_folder(files: DiskFiles, folder: str) -> None:
    missing = [folder]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    files.make_dir(folder)
    for made in reversed(missing):
        files.sync_dir(os.path.dirname(made))


def make_durable_folder(folder: str) -> None:
    """Create a folder and its missing parents, and fsync their directory entries."""
    if not os.path.isdir(folder):
        _make_durable_folder(table_files(), folder)


def check_is_empty(folder: str) -> None:
    """Raise `TableError` if the folder of a new table contains files of other programs, which
    `vacuum` would delete. Names that start with "." or "_", and lost+found, are ignored."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error("list", folder, error) from error
    names = sorted(name for name in names if name[0] not in "._" and name != "lost+found")
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise TableError(f"{folder} contains no table, but {names[0]!r}{more}; use an empty folder")


def old_files(folder: str, limit_ms: int) -> Iterator[str]:
    """Yield the files below a folder that were last changed at `limit_ms` or before; skip files
    that another process renames or deletes before they are checked."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(FileNotFoundError):
                if os.path.getmtime(path) * 1000 <= limit_ms:
                    yield path


def _folder_of(value: tuple[str, str | None]) -> str:
    name, text = value
    return f"{name}={NULL_FOLDER if text is None else quote(text, safe=' ')}"


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return partition values as Delta and Hive write them."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    if pa.types.is_boolean(kind):
        return column.cast(pa.string())
    raise TableSchemaError(
        f"a table cannot be partitioned by a column of type {kind}; use a string, an integer, a "
        "boolean or a date"
    )


# -- statistics ----------------------------------------------------------------------------------


def statistics_of(info: Any) -> dict[str, Any]:
    """Return the statistics of a Parquet file's top-level columns in Delta's form, except for
    columns with a dot in their name."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(info.num_columns):
        name = info.schema.column(index).path
        if "." in name:
            continue
        parts = [info.row_group(row).column(index).statistics for row in range(info.num_row_groups)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or not all(part.has_null_count for part in known):
            continue
        nulls[name] = sum(part.null_count for part in known)
        bounded = [part for part in known if part.has_min_max]
        if len(bounded) == len(known) and bounded:
            low = _bound(min(part.min for part in bounded), is_upper=False)
            high = _bound(max(part.max for part in bounded), is_upper=True)
            if low is not None and high is not None:
                least[name], most[name] = low, high
    return {
        "numRecords": info.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _bound(value: object, *, is_upper: bool) -> object | None:
    """Return a bound in Delta's JSON form, or None if the statistics leave it out."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= MAX_STATISTICS_TEXT else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        # Delta's statistics are in milliseconds: round outwards, so that no value is excluded.
        value = value.astimezone(UTC)
        if is_upper and value.microsecond % 1000:
            if value > LAST_MILLISECOND:
                return None
            value += timedelta(milliseconds=1)
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return None


def partition_values(values: PartitionValues) -> Mapping[str, str | None]:
    """Return partition values by column."""
    return dict(values)
