"""Finds and rewrites the files that contain replaced or deleted rows.

    check_partitions    for Delta, whose library has its own merge
    without_keys        for Iceberg

Both functions first read only the key, partition and offset columns of each file. `without_keys`
then reads the whole file, but only if it must remove some of the rows. Memory is bounded by the
rows of the round and the largest file.

Offsets of different partitions cannot be compared. Both functions therefore raise an error if the
table has a row of another partition for a given key.
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


def check_partitions(layout: Layout, paths: Sequence[str], rows: Any, deleted: Any) -> None:
    """Raise `TableSchemaError` if a file has a row of another partition for a key in `rows` or
    `deleted`."""
    given = _positions(rows, deleted)
    for path in paths:
        _found(layout, path, given)


def without_keys(
    layout: Layout, paths: Sequence[str], rows: Any, deleted: Any, attempt: str
) -> Replaced:
    """Rewrite files without the rows whose keys are in `rows` or `deleted`.

    If a stored row is not older, by offset, than the given row with its key, the stored row stays
    and the given row is left out. Raise `TableSchemaError` if these two rows come from different
    partitions.
    """
    given = _positions(rows, deleted)
    found = Replaced([], [], rows)
    outdated: list[Any] = []  # keys whose row in the table is at least as new as the given one
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


def _positions(rows: Any, deleted: Any) -> Any:
    return pa.concat_tables([each.select(POSITION) for each in (rows, deleted)]).combine_chunks()


def _found(layout: Layout, path: str, given: Any) -> tuple[Any, Any]:
    """Return the key, partition and offset of a file's rows and, for each row, the index of the
    given row with the same key. Raise `TableSchemaError` if the partitions of two such rows
    differ."""
    stored = _read(layout, path, POSITION)
    at = pc.index_in(stored.column("key"), value_set=given.column("key").chunk(0))
    partitions = given.column("partition").take(at)
    other = pc.fill_null(pc.not_equal(stored.column("partition"), partitions), False)
    if pc.any(other).as_py():
        key = stored.filter(other).column("key")[0].as_py()
        raise in_two_partitions(key)
    return stored, at


def _matches(layout: Layout, path: str, given: Any) -> tuple[Any, list[bytes]]:
    """Return which rows of a file to remove, and the keys of matching rows that stay."""
    stored, at = _found(layout, path, given)
    offsets = given.column("offset").take(at)
    is_older = pc.fill_null(pc.less(stored.column("offset"), offsets), False)
    stays = pc.and_(pc.is_valid(at), pc.invert(is_older))
    return is_older, stored.filter(stays).column("key").to_pylist()


def _read(layout: Layout, path: str, columns: Sequence[str]) -> Any:
    schema = pa.schema([layout.schema.field(name) for name in columns])
    try:
        return conformed(data_set([path], schema).to_table().combine_chunks(), schema)
    except (pa.ArrowException, OSError) as error:
        raise damaged(layout.folder, error) from error
