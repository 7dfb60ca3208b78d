"""Encodes columns as values with a registered schema, and derives schemas from columns.

    described(columns, kind, name, latest)   the text of a schema that fits the columns
    value_encoder(schema, columns)           rows ─▶ values with the prefix of a registered schema

A nullable column is a union with null in Avro (default null), a list of types with null in
JSON Schema, and `optional` in Protobuf, so columns can be added later without breaking
compatibility. A JSON schema allows no other properties, for the same reason.

| Arrow                  | Avro                   | JSON Schema         | Protobuf        |
|------------------------|------------------------|---------------------|-----------------|
| bool, string           | boolean, string        | boolean, string     | bool, string    |
| int8 … int32 · int64   | int · long             | integer             | int32 · int64   |
| float32 · float64      | float · double         | number              | float · double  |
| binary                 | bytes                  | string: base64      | bytes           |
| decimal128             | decimal in bytes       | number              | none            |
| date32                 | date                   | string: date        | none            |
| timestamp[us, UTC]     | timestamp-micros       | string: date-time   | Timestamp       |
| timestamp[us]          | local-timestamp-micros | string              | none            |
| list · map<string, …>  | array · map            | array · object      | repeated · map  |
| struct                 | record                 | object              | message         |

Columns without a counterpart raise `InvalidSchemaError`: types that the table omits or marks as
"none", structs without fields and, in Protobuf, lists of lists or maps.
JSON has no NaN and no infinity: such a number raises `DataError`.
"""

from __future__ import annotations

import json
from typing import Protocol

import pyarrow as pa

from strandlog.errors import InvalidSchemaError
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema


class ValueEncoder(Protocol):
    """Encodes rows as values."""

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a value for each row. `rows` contains the columns passed to the constructor."""


def described(columns: pa.Schema, kind: str, name: str, latest: RegisteredSchema | None) -> str:
    """Return the text of a schema for columns.

    `name` is the name of the Avro record or Protobuf message, or the title of the JSON schema. An
    Avro record instead keeps the name that it has in `latest`, the newest version of the subject,
    because all versions must have the same name.
    """
    if not len(columns):
        raise InvalidSchemaError("the value needs at least one column")
    if kind == AVRO:
        from strandlog.formats.columns.avro_encode import avro_document  # noqa: PLC0415

        return json.dumps(avro_document(columns, name, latest))
    if kind == JSON:
        from strandlog.formats.columns.json_encode import json_document  # noqa: PLC0415

        return json.dumps(json_document(columns, name))
    if kind == PROTOBUF:
        from strandlog.formats.columns.protobuf_encode import protobuf_text  # noqa: PLC0415

        return protobuf_text(columns, name)
    raise InvalidSchemaError(f"unknown schema type {kind!r}")


def value_encoder(schema: RegisteredSchema, columns: pa.Schema) -> ValueEncoder:
    """Return an encoder for a schema from `described`, or for any Protobuf schema."""
    if schema.kind == AVRO:
        from strandlog.formats.columns.avro_encode import AvroValueEncoder  # noqa: PLC0415

        return AvroValueEncoder(schema, columns)
    if schema.kind == JSON:
        from strandlog.formats.columns.json_encode import JsonValueEncoder  # noqa: PLC0415

        return JsonValueEncoder(schema, columns)
    from strandlog.formats.columns.protobuf_encode import ProtobufValueEncoder  # noqa: PLC0415

    return ProtobufValueEncoder(schema, columns)


def nullable(columns: pa.Schema) -> pa.Schema:
    """Return the columns with all fields nullable, including nested ones."""
    return pa.schema([_nullable(field) for field in columns])


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_nullable(each) for each in kind])
    return pa.field(field.name, kind, True)
