"""Reads data files, and translates the errors of libraries to ones with advice.

Reads verify the checksums of pages: a bit that flipped on disk is an error, not another value.
Files that Delta's library has written, in a compaction or a merge, have no checksums.

`DeltaTable.to_pyarrow_table` is not used anywhere: processes that call it often abort at exit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from strandlog.errors import DiskFullError, TableDamagedError


def damaged(folder: str, error: Exception) -> TableDamagedError:
    """Return the error for a table with a missing or unreadable file."""
    reason = " ".join(str(error).split())
    return TableDamagedError(
        f"the table in {folder} is damaged: {reason}; restore the file from a copy, or write the "
        "table again with `strandlog table sync --rebuild`"
    )


def full(folder: str, error: Exception) -> DiskFullError | None:
    """Return an error if a library failed because the disk is full; only its text tells."""
    text = str(error)
    if "No space left" in text or "disk is full" in text:
        return DiskFullError(f"could not write the table in {folder}: the disk is full")
    return None


def check_present(folder: str, paths: Sequence[str]) -> None:
    """Raise `TableDamagedError` if a data file is missing."""
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        count = f"{len(missing)} of {len(paths)} data files are missing, the first is {missing[0]}"
        raise damaged(folder, FileNotFoundError(count))


def data_set(paths: Sequence[str], schema: Any = None) -> Any:
    """Return data files as a data set whose reads verify checksums."""
    verified = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=verified)
    return ds.dataset(list(paths), schema=schema, format=parquet)


def read_files(folder: str, paths: Sequence[str], schema: Any, columns: Sequence[str]) -> Any:
    """Return a RecordBatchReader over some columns of data files."""
    check_present(folder, paths)
    wanted = pa.schema([schema.field(name) for name in columns])

    def batches() -> Iterator[Any]:
        if not paths:
            return
        try:
            yield from data_set(paths, schema).to_batches(columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            raise damaged(folder, error) from error

    return pa.RecordBatchReader.from_batches(wanted, batches())
