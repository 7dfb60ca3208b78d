"""`StoredColumns` converts decoded values that a table stores to the newest version of a schema.

Three schemas determine a row: the *writer's*, which the value names; the *stored* one, the newest
version when the row was decoded; and the *wanted* one, the newest version now. A converted row
equals the result of decoding the value with the wanted schema. If the stored row does not determine
this result, for example because the table lacks a written field, the conversion fails: it never
returns other values.

This assumes that every value matches the schema that it names. In particular, JSON and Protobuf
values must not contain fields that their schema does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strandlog.errors import TableSchemaError
from strandlog.formats.evolution.steps import Fields, InexactError, origin_column
from strandlog.formats.registered_schema import AVRO, JSON, RegisteredSchema

Find = Callable[[int], RegisteredSchema | None]


class StoredColumns:
    """Converts stored values to columns of the wanted schema."""

    def __init__(self, wanted: RegisteredSchema, kinds: pa.Schema, find: Find) -> None:
        """`kinds` is the schema of the wanted columns; `find` returns a schema by its id."""
        self._wanted = wanted
        self._kinds = kinds
        self._find = find
        self._fields: dict[tuple[int, int], Fields] = {}

    def convert(self, values: Any, writer: int, stored: int) -> dict[str, Any]:
        """Return the wanted columns of values that were written with the schema `writer` and
        decoded with the schema `stored`; no value may be null. Raise `TableSchemaError` if the
        values do not determine the columns."""
        if stored == self._wanted.id:
            return {field.name: values.field(field.name).cast(field.type) for field in self._kinds}
        fields = self._fields.get((writer, stored))
        if fields is None:
            fields = self._fields[writer, stored] = self._compared(writer, stored)
        return {
            field.name: origin_column(fields.origins[field.name], values, field.type)
            for field in self._kinds
        }

    def _compared(self, writer: int, stored: int) -> Fields:
        schemas = [self._schema(each) for each in (writer, stored)]
        try:
            if any(each.kind != self._wanted.kind for each in schemas):
                raise InexactError("the value", "its schema has another type")
            return _comparison(self._wanted.kind)(*schemas, self._wanted, self._kinds)
        except InexactError as error:
            raise TableSchemaError(
                f"rows with values of schema {writer}, decoded with schema {stored}, cannot be "
                f"converted to schema {self._wanted.id}: {error}"
            ) from None

    def _schema(self, schema_id: int) -> RegisteredSchema:
        found = self._find(schema_id)
        if found is None:
            raise TableSchemaError(
                f"the registry no longer has schema {schema_id}, which was used to decode rows"
            )
        return found


def _comparison(kind: str) -> Callable[..., Fields]:
    # These are imported here because each language needs its own library.
    if kind == AVRO:
        from strandlog.formats.evolution import avro  # noqa: PLC0415

        return avro.fields_of_values
    if kind == JSON:
        from strandlog.formats.evolution import json  # noqa: PLC0415

        return json.fields_of_values
    from strandlog.formats.evolution import protobuf  # noqa: PLC0415

    return protobuf.fields_of_values
