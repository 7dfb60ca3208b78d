"""Finds the latest record per key, for tables that mirror a compacted topic.

Within a round, the record with the highest offset of a key wins; a null value is a tombstone, which
deletes the row. Each key must stay in one partition, so that the offsets of its records can be
compared; `decisions.check_partitions` stops a sync if the partition count changes. A key in two
partitions is an error, whether both records are in one round or the table already has a row of the
key (replacing.py).

As in Kafka's compacted topics, a record without a key is an error.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandlog.errors import TableSchemaError
from strandlog.tables.schema import conformed
from strandlog.tables.table import in_two_partitions


class Upserts:
    """Collects the records of a round, one partition after the other."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, rows: Any) -> None:
        """Add the records of one partition; raise `TableSchemaError` if one has no key."""
        if not rows.num_rows:
            return
        if rows.column("key").null_count:
            index = pc.index(rows.column("key").is_null(), True).as_py()
            at = f"{rows.column('partition')[index]} at offset {rows.column('offset')[index]}"
            raise TableSchemaError(
                f"the record in partition {at} has no key; a table in upsert mode has one row per "
                "key: use append mode, and another folder"
            )
        newest = rows.select(["key", "offset"]).group_by("key").aggregate([("offset", "max")])
        is_newest = pc.is_in(rows.column("offset"), newest.column("offset_max").combine_chunks())
        self._parts.append(rows.filter(is_newest))

    def latest(self, schema: Any) -> tuple[Any, Any]:
        """Return the rows to insert or replace, and the tombstones of the keys to delete; raise
        `TableSchemaError` if a key is in two partitions."""
        if not self._parts:
            return schema.empty_table(), schema.empty_table()
        rows = pa.concat_tables([conformed(part, schema) for part in self._parts])
        if len(self._parts) > 1:
            _check_keys(rows.column("key"))
        is_deleted = _tombstones(rows)
        return rows.filter(pc.invert(is_deleted)), rows.filter(is_deleted)


def _check_keys(keys: Any) -> None:
    """Raise an error if a key occurs twice, which means that it is in two partitions."""
    counts = keys.value_counts()
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        raise in_two_partitions(repeated.field("values")[0].as_py())


def _tombstones(rows: Any) -> Any:
    """Return which rows are tombstones: their value is null, and not because decoding failed."""
    is_null = rows.column("value").is_null()
    if "error" in rows.schema.names:
        return pc.and_(is_null, rows.column("error").is_null())
    return is_null
