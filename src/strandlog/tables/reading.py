"""Reads data files, and turns library errors into errors that say what to do.

Reads verify the checksums of pages and footers, so a bit that flipped on disk raises an error
instead of changing a value. This does not protect files without checksums, which Delta's library
writes in a compaction or a merge.

`DeltaTable.to_pyarrow_table` is not used anywhere: processes that call it often abort at exit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from strandlog.errors import DiskFullError, StorageError, TableDamagedError
from strandlog.tables.layout import has_damaged_footer

MAX_REASON_CHARACTERS: Final = 300


def damaged(folder: str, error: Exception) -> TableDamagedError:
    """Return the error for a table with a missing or unreadable file."""
    reason = " ".join(str(error).split())
    if len(reason) > MAX_REASON_CHARACTERS:
        reason = reason[:MAX_REASON_CHARACTERS] + "…"
    return TableDamagedError(
        f"the table in {folder} is damaged: {reason}; restore the file from a copy, or write the "
        "table again with `strandlog table sync --rebuild`"
    )


def full(folder: str, error: Exception) -> DiskFullError | None:
    """Return an error if the text of a library's error says that the disk is full, else None."""
    text = str(error)
    if "No space left" in text or "disk is full" in text:
        return DiskFullError(f"could not write the table in {folder}: the disk is full")
    return None


def check_present(folder: str, paths: Sequence[str]) -> None:
    """Raise `TableDamagedError` if a data file is missing."""
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        count = f"{len(missing)} of {len(paths)} data files are missing, first {missing[0]}"
        raise damaged(folder, FileNotFoundError(count))


def data_set(paths: Sequence[str], schema: Any = None) -> Any:
    """Return data files as an Arrow data set whose reads verify checksums.

    This function, and later reads of the data set, raise `OSError` or `pa.ArrowException` if a file
    is damaged.
    """
    for path in paths:
        try:
            is_damaged = has_damaged_footer(path)
        except StorageError as error:
            raise OSError(str(error)) from error
        if is_damaged:
            raise pa.ArrowInvalid(f"the footer of {path} does not match its checksum")
    verified = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=verified)
    return ds.dataset(list(paths), schema=schema, format=parquet)


PartitionColumns = Mapping[str, Mapping[str, Any]]  # path → columns that are not in the file


def read_files(
    folder: str,
    paths: Sequence[str],
    schema: Any,
    columns: Sequence[str],
    partitions: PartitionColumns | None = None,
) -> Any:
    """Return a RecordBatchReader over some columns of data files.

    If `columns` names columns that are not stored in the files, `partitions` maps each file to the
    values of these columns (Arrow scalars).
    """
    check_present(folder, paths)
    wanted = pa.schema([schema.field(name) for name in columns])

    def batches() -> Iterator[Any]:
        try:
            if partitions is None:
                if paths:
                    yield from data_set(paths, schema).to_batches(columns=list(columns))
                return
            for path in paths:
                yield from _with_values(path, wanted, partitions[path])
        except (pa.ArrowException, OSError) as error:
            raise damaged(folder, error) from error

    return pa.RecordBatchReader.from_batches(wanted, batches())


def _with_values(path: str, wanted: Any, values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the rows of a file, with the columns in `values` added as constants."""
    stored = pa.schema([field for field in wanted if field.name not in values])
    for batch in data_set([path], stored).to_batches(columns=stored.names):
        arrays = [
            pa.repeat(values[field.name], len(batch))
            if field.name in values
            else batch.column(field.name)
            for field in wanted
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
