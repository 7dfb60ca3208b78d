"""Finds and rewrites the files that contain replaced or deleted rows, for Iceberg; Delta's library
has its own merge.

Of each file, first only the key, partition and offset columns are read; then the whole file, if
some of its rows are to go. Memory is bounded by the rows of the round and the largest file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandlog.tables.layout import DataFile, Layout
from strandlog.tables.reading import damaged, data_set
from strandlog.tables.schema import conformed
from strandlog.tables.table import in_two_partitions

POSITION = ("key", "partition", "offset")


class Replaced(NamedTuple):
    """Files to remove, files with their remaining rows, and the new rows to add."""

    paths: list[str]
    kept: list[DataFile]
    rows: Any


def without_keys(
    layout: Layout, paths: Sequence[str], rows: Any, deleted: Any, attempt: str
) -> Replaced:
    """Rewrite files without the rows whose keys are in `rows` or `deleted`.

    If a stored row is not older, by offset, than the given row with its key, the stored row stays
    and the given row is left out. Raise `TableSchemaError` if the two are of different partitions.
    """
    given = pa.concat_tables([each.select(POSITION) for each in (rows, deleted)]).combine_chunks()
    found = Replaced([], [], rows)
    outdated: list[Any] = []  # keys for which the table already has a row at least as new
    for number, path in enumerate(paths):
        gone, newer = _matches(layout, path, given)
        outdated += newer
        if not pc.any(gone).as_py():
            continue
        found.paths.append(path)
        rest = _read(layout, path, layout.schema.names).filter(pc.invert(gone))
        found.kept.extend(layout.write(rest, f"rest-{attempt}-{number}", "0"))
    if not outdated:
        return found
    is_outdated = pc.is_in(rows.column("key"), pa.array(outdated, pa.binary()))
    return found._replace(rows=rows.filter(pc.invert(is_outdated)))


def _matches(layout: Layout, path: str, given: Any) -> tuple[Any, list[bytes]]:
    """Return which rows of a file to remove, and the keys of matching rows that stay."""
    stored = _read(layout, path, POSITION)
    at = pc.index_in(stored.column("key"), value_set=given.column("key").chunk(0))
    offsets, partitions = (given.column(name).take(at) for name in ("offset", "partition"))
    other = pc.fill_null(pc.not_equal(stored.column("partition"), partitions), False)
    if pc.any(other).as_py():
        key = stored.filter(other).column("key")[0].as_py()
        raise in_two_partitions(key)
    is_older = pc.fill_null(pc.less(stored.column("offset"), offsets), False)
    stays = pc.and_(pc.is_valid(at), pc.invert(is_older))
    return is_older, stored.filter(stays).column("key").to_pylist()


def _read(layout: Layout, path: str, columns: Sequence[str]) -> Any:
    schema = pa.schema([layout.schema.field(name) for name in columns])
    try:
        return conformed(data_set([path], schema).to_table().combine_chunks(), schema)
    except (pa.ArrowException, OSError) as error:
        raise damaged(layout.folder, error) from error
