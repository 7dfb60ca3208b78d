"""Converts rows of a table with typed values to the rows that decoding the log would give.

    value in the table      row of the query
    null                    null columns
    decoded                 converted from the schema that decoded it to the query's
                            (formats/evolution)
    not decoded             decoded again from its bytes: its schema may be known by now

If a table lacks data that the query's schema needs, the query fails: rows never depend on whether
they come from the table or from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandlog.errors import TableSchemaError
from strandlog.tables.topics.column_names import SCHEMA_IDS

if TYPE_CHECKING:
    import pyarrow as pa

    from strandlog.formats.columns.registry import RegistryColumns
    from strandlog.formats.columns.values import Parsed

COLUMNS = ("value", "error", "raw_value", *SCHEMA_IDS)  # the columns that `parsed` reads
ADVICE = (
    "leave the column out with .schema(), read without the option history, or write the table "
    "again with `strandlog table sync --rebuild` while the topic has its records"
)


class TypedRows:
    """Converts batches of a table into the columns of a query."""

    def __init__(self, registered: RegistryColumns, fields: pa.Schema) -> None:
        from strandlog.formats.evolution.columns import StoredColumns  # noqa: PLC0415 - slow to load

        self._registered = registered
        self._fields = fields
        self._stored = StoredColumns(registered.reader, fields, registered.find)

    def parsed(self, batch: pa.RecordBatch) -> Parsed:
        """Return the values of a batch with the columns `COLUMNS`, in the form of parsed values."""
        import numpy as np  # noqa: PLC0415 - only tasks need it

        from strandlog.formats.columns.registry import joined  # noqa: PLC0415 - slow to load

        is_bad = batch.column("error").is_valid().to_numpy(zero_copy_only=False)
        is_decoded = batch.column("value").is_valid().to_numpy(zero_copy_only=False) & ~is_bad
        pieces: list[Parsed] = []
        rows: list[Any] = []
        others = np.flatnonzero(~is_decoded)
        if len(others):
            pieces.append(self._registered.parse(self._bytes(batch, others), self._fields))
            rows.append(others)
        for ids, at in self._groups(batch, np.flatnonzero(is_decoded)):
            pieces.append(self._converted(batch, ids, at))
            rows.append(at)
        return joined(pieces, rows, len(batch), self._fields)

    def _bytes(self, batch: pa.RecordBatch, rows: Any) -> pa.Array:
        """Return the bytes of values that were not decoded; those of null values are null."""
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it

        return batch.column("raw_value").take(pa.array(rows)).cast(pa.binary())

    def _groups(self, batch: pa.RecordBatch, rows: Any) -> list[tuple[tuple[int, int], Any]]:
        """Group rows by the ids of the writer's and the reader's schema that decoded them."""
        import numpy as np  # noqa: PLC0415 - only tasks need it

        columns = [batch.column(name) for name in SCHEMA_IDS]
        found = [each.fill_null(-1).to_numpy(zero_copy_only=False)[rows] for each in columns]
        pairs, group = np.unique(np.stack(found), axis=1, return_inverse=True)
        if (pairs < 0).any():
            raise TableSchemaError(
                "option history: the table has rows without the id of the schema used to "
                f"decode them, because an older version of strandlog wrote them; {ADVICE}"
            )
        return [
            ((int(writer), int(reader)), rows[group.reshape(-1) == number])
            for number, (writer, reader) in enumerate(pairs.T)
        ]

    def _converted(self, batch: pa.RecordBatch, ids: tuple[int, int], rows: Any) -> Parsed:
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it

        from strandlog.formats.columns.values import Parsed  # noqa: PLC0415 - slow to load

        values = batch.column("value")
        if len(rows) < len(batch):
            values = values.take(pa.array(rows))
        try:
            return Parsed(self._stored.convert(values, *ids), [], [])
        except TableSchemaError as error:
            raise TableSchemaError(f"option history: {error}; {ADVICE}") from None
