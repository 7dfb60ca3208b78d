"""Typed columns from registry schemas: the fields of each value are in the struct `value`.

The newest version of the subject `<topic>-value` defines the fields; each value is parsed with the
schema whose id it starts with. An id that was not seen before may belong to a newer version, so the
subject's newest version is then read again, and the values are parsed again if it has changed. The
table keeps fields that a newer schema no longer has; they are null in new rows, even for old
records that are synced later.

A value that cannot be decoded becomes a row with the reason in `error` and the original bytes in
`raw_value`. A null value stays null and is not an error.

`writer_schema_id` is the id that the value starts with, and `reader_schema_id` the id of the newest
version, which defined the fields when the row was written. With both schemas, a reader computes the
fields that a later version has and the row lacks (formats/evolution).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from strandlog.errors import InvalidSchemaError, SchemaNotFoundError, TableSchemaError
from strandlog.formats.columns.registry import RegistryColumns
from strandlog.formats.columns.values import schema_ids
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.tables.schema import plain
from strandlog.tables.topics.column_names import SCHEMA_IDS
from strandlog.tables.topics.columns import POSITION, RawColumns


class Registry(Protocol):
    """The part of `client.registry.api.ReadableRegistry` that `TypedColumns` needs."""

    def by_id(self, schema_id: int) -> RegisteredSchema: ...
    def version(self, subject: str, version: int | None = None) -> Any: ...


class TypedColumns:
    """`Columns` with typed values."""

    def __init__(self, registry: Registry, topic: str) -> None:
        self._registry = registry
        self._subject = f"{topic}-value"
        self._has_new_id = False
        self._columns = self._newest()

    def _newest(self) -> RegistryColumns:
        try:
            found = self._registry.version(self._subject)
        except SchemaNotFoundError as error:
            raise TableSchemaError(
                f"the registry has no subject {self._subject!r}, so the columns of the values are "
                "unknown; register a schema, or use --values raw"
            ) from error
        return RegistryColumns(found.schema, look_up=self._look_up)

    def _look_up(self, schema_ids: Sequence[int]) -> dict[int, RegisteredSchema]:
        self._has_new_id = True
        found: dict[int, RegisteredSchema] = {}
        for schema_id in schema_ids:
            with contextlib.suppress(SchemaNotFoundError):
                found[schema_id] = self._registry.by_id(schema_id)
        return found

    def _parse(self, values: Any) -> Any:
        """Parse values into the columns of the newest known schema."""
        while True:
            self._has_new_id = False
            parsed = self._columns.parse(values, self._columns.schema)
            if not self._has_new_id:
                return parsed
            newest = self._newest()
            if newest.reader.id == self._columns.reader.id:
                return parsed
            self._columns = newest

    @property
    def schema(self) -> Any:
        try:
            fields = plain(self._columns.schema)
        except InvalidSchemaError as error:
            reason = str(error).partition(";")[0]
            raise TableSchemaError(
                f"values of {self._subject!r} cannot become columns: {reason}; use --values raw"
            ) from error
        if not fields.names:
            raise TableSchemaError(
                f"the schema of {self._subject!r} has no fields; use --values raw"
            )
        return pa.schema(
            [
                *POSITION,
                pa.field("value", pa.struct(list(fields))),
                pa.field("error", pa.string()),
                pa.field("raw_value", pa.binary()),
                *(pa.field(name, pa.int64()) for name in SCHEMA_IDS),
            ]
        )

    def decode(self, records: Any) -> Any:
        raw = RawColumns().decode(records)
        values = raw.column("value").combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], pa.binary())
        parsed = self._parse(values)
        schema = self._columns.schema
        bad = pa.array(parsed.bad, pa.int64())
        is_bad = pc.is_in(pa.array(range(len(values)), pa.int64()), value_set=bad)
        arrays = [parsed.columns[field.name] for field in schema]
        typed = pa.StructArray.from_arrays(
            [_whole(array) for array in arrays], fields=list(schema), mask=values.is_null()
        )
        reasons = pa.nulls(len(values), pa.string())
        if parsed.bad:
            reasons = pc.replace_with_mask(reasons, is_bad, pa.array(parsed.reasons, pa.string()))
        kept = pc.if_else(is_bad, values, pa.scalar(None, pa.binary()))
        columns = [raw.column(field.name) for field in POSITION]
        return pa.Table.from_arrays(
            [*columns, typed, reasons, kept, *self._schema_ids(values)], names=self.schema.names
        )

    def _schema_ids(self, values: Any) -> list[Any]:
        """Return the columns `SCHEMA_IDS`; both are null for a value without a schema id."""
        ids = schema_ids(values)
        writers = pa.array(ids, pa.int64(), mask=ids < 0)
        reader = pa.scalar(self._columns.reader.id, pa.int64())
        return [writers, pc.if_else(writers.is_valid(), reader, pa.scalar(None, pa.int64()))]


def _whole(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
