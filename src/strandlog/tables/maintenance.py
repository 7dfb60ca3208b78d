"""Merges small files of a table, with the limits that `table sync`, `table compact` and the broker
use.

`compact_if_many` counts the files below `SMALL_FILE_BYTES`; merged files have at most about
`TARGET_FILE_BYTES`. A compaction that conflicts with another writer is attempted up to
`MAX_ATTEMPTS` times. A compaction changes no rows, so nothing is lost if all attempts fail.
"""

from __future__ import annotations

import os
from typing import Final

from strandlog.errors import TableConflictError
from strandlog.tables.table import Compacted, Table

SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
TARGET_FILE_BYTES: Final = 128 * 1024 * 1024
MAX_ATTEMPTS: Final = 3


def small_files(table: Table) -> int:
    """Return the number of data files below `SMALL_FILE_BYTES`."""
    paths = table.load().data_files()
    return sum(os.path.exists(path) and os.path.getsize(path) < SMALL_FILE_BYTES for path in paths)


def compact_if_many(table: Table, limit: int) -> None:
    """Merge small files if there are more than `limit`. With a limit of 0, never merge."""
    if limit and small_files(table) > limit:
        compacted(table)


def compacted(table: Table) -> Compacted:
    """Merge small files, retrying after conflicts; return how many files were removed and added."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return table.compact(TARGET_FILE_BYTES)
        except TableConflictError:
            continue  # another writer has committed first
    return table.compact(TARGET_FILE_BYTES)
