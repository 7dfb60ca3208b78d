"""Replaces rows by key: which files have them, and how they are written again. For Iceberg; Delta's
library has its own.

Each file is read in two steps: key and offset of all rows, then, if some of them are replaced, the
whole file. Memory is bounded by the rows of the round and the largest file.
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
    """Files to remove, files with the rest of their rows, and the new rows to add."""

    paths: list[str]
    kept: list[DataFile]
    rows: Any


def without_keys(
    layout: Layout, paths: Sequence[str], rows: Any, deleted: Any, attempt: str
) -> Replaced:
    """Write files without the rows whose keys are among those of `rows` and `deleted`.

    A row that is not older, by its offset, than the given one stays, and the given one is left out.
    """
    given = pa.concat_tables([each.select(POSITION) for each in (rows, deleted)]).combine_chunks()
    found = Replaced([], [], rows)
    outdated: list[Any] = []  # keys of given rows that the table has in a newer form
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
    """Return which rows of a file are replaced, and the keys of rows that are not older."""
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
