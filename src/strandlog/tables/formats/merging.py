"""Chooses and merges small data files, for Parquet and Iceberg; Delta's library has its own
compaction.

Files with the same partition values are merged in name order, into files of at most about
`target_bytes`. Files of at least half that size are left alone. Merging reads one group at a time;
a group has at most `target_bytes` on disk, so memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from strandlog.tables.layout import DataFile, Layout
from strandlog.tables.reading import damaged, data_set
from strandlog.tables.schema import conformed


class Merged(NamedTuple):
    """Data files to remove, and data files with the same rows to add."""

    removed: list[DataFile]
    added: list[DataFile]


def groups(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Return groups of at least two small files; each group becomes one file."""
    found: list[list[DataFile]] = []
    by_value: dict[object, list[DataFile]] = {}
    for each in sorted(files, key=lambda file: file.name):
        if each.size_bytes < target_bytes // 2:
            by_value.setdefault(each.partition, []).append(each)
    for small in by_value.values():
        group: list[DataFile] = []
        size = 0
        for each in small:
            if group and size + each.size_bytes > target_bytes:
                found.append(group)
                group, size = [], 0
            group.append(each)
            size += each.size_bytes
        found.append(group)
    return [group for group in found if len(group) > 1]


def merge_small_files(
    layout: Layout, files: Sequence[DataFile], target_bytes: int, attempt: str
) -> list[Merged]:
    """Write the merged files, without removing or committing anything."""
    merged = []
    for number, group in enumerate(groups(files, target_bytes)):
        paths = [each.path for each in group]
        try:
            rows = data_set(paths, layout.schema).to_table()
        except (pa.ArrowException, OSError) as error:
            raise damaged(layout.folder, error) from error
        rows = conformed(_with_partition_values(rows, group[0], layout.schema), layout.schema)
        added = layout.write(rows, f"merged-{attempt}-{number}", "0")
        assert sum(each.row_count for each in added) == sum(each.row_count for each in group)
        merged.append(Merged(group, added))
    return merged


def _with_partition_values(rows: Any, first: DataFile, schema: Any) -> Any:
    """Restore the partition columns, which only Iceberg tables store in the files."""
    for name, text in first.partition:
        kind = schema.field(name).type
        value = pa.scalar(text, pa.string()).cast(kind)
        column = pa.chunked_array([pa.repeat(value, rows.num_rows)], kind)
        rows = rows.set_column(rows.schema.get_field_index(name), name, column)
    return rows
