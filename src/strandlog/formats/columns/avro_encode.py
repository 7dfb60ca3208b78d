"""Encodes columns as Avro values.

Rows of plain columns are written in compiled loops (avro_write_kernels.py). Rows with lists, maps,
structs or decimals of more than 18 digits go through fastavro one by one.
"""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from strandlog.errors import DataError
from strandlog.formats.columns import avro_write_kernels as kernels
from strandlog.formats.columns.values import PREFIX_BYTES, invalid_name, prefix_of, unsuitable
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.record.arrow.arrays import bytes_column, whole

LANGUAGE = "Avro"
PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
KINDS = {
    "boolean": kernels.BOOLEAN,
    "int": kernels.NUMBER,
    "long": kernels.NUMBER,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "string": kernels.TEXT,
    "bytes": kernels.TEXT,
}
NUMBER_DIGITS = 18  # every number with at most this many digits fits into 64 bits
LARGEST_ARRAY_BYTES = 2**31 - 1


def avro_document(columns: pa.Schema, name: str, latest: RegisteredSchema | None) -> dict[str, Any]:
    """Return a record schema for columns, with the name of `latest` if that is a record."""
    described = _Description()
    named: dict[str, Any] = {"name": word(name)}
    if latest is not None:
        document = json.loads(latest.text)
        if isinstance(document, dict) and document.get("type") == "record":
            named = {key: document[key] for key in ("name", "namespace") if key in document}
    return {"type": "record", **named, "fields": described.fields(columns, word(name))}


class _Description:
    def fields(self, columns: Any, path: str, shown: str = "") -> list[dict[str, Any]]:
        found = []
        for field in columns:
            kind = self.schema(field, f"{path}_{word(field.name)}", f"{shown}{field.name}")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field.name):
                raise invalid_name(field.name, LANGUAGE)
            row = {"name": field.name, "type": kind}
            found.append(row | {"default": None} if field.nullable else row)
        return found

    def schema(self, field: Any, path: str, shown: str) -> Any:
        """Return the schema of a field; `path` makes the names of nested records unique."""
        found = self._plain(field.type, path, shown)
        return ["null", found] if field.nullable else found

    def _plain(self, kind: pa.DataType, path: str, shown: str) -> Any:
        if kind in PLAIN:
            return PLAIN[kind]
        if pa.types.is_decimal128(kind):
            digits = {"precision": kind.precision, "scale": kind.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        if pa.types.is_list(kind):
            items = self.schema(kind.value_field, f"{path}_item", f"{shown}[]")
            return {"type": "array", "items": items}
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            values = self.schema(kind.item_field, f"{path}_value", f"{shown}{{}}")
            return {"type": "map", "values": values}
        if pa.types.is_struct(kind) and kind.num_fields:
            return {
                "type": "record",
                "name": path,
                "fields": self.fields(list(kind), path, f"{shown}."),
            }
        raise unsuitable(shown, kind, LANGUAGE)


def word(name: str) -> str:
    """Turn a name into one that Avro and Protobuf allow."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return found if found[:1].isalpha() or found.startswith("_") else f"_{found}"


class AvroValueEncoder:
    """Encodes rows with a schema from `avro_document`."""

    def __init__(self, schema: RegisteredSchema, columns: pa.Schema) -> None:
        self._document = json.loads(schema.text)
        self._prefix = np.frombuffer(prefix_of(schema.id), np.uint8)
        self._columns = columns
        program = [_program(field) for field in columns]
        self._program: Any = None  # None if a column has no compiled loop
        if None not in program:
            table = np.array(program, np.int64)
            self._program = table.reshape(-1, kernels.PROGRAM_WIDTH)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        if self._program is None:
            return self._encode_each(rows)
        shape = (len(self._columns), len(rows))
        numbers, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        contents: list[Any] = []
        end = 0
        for at, field in enumerate(self._columns):
            column = whole(rows.column(field.name))
            if not field.nullable and column.null_count:
                raise DataError(f"column {field.name} is not nullable, but a row has a null there")
            if self._program[at, kernels.KIND] == kernels.TEXT:
                given = bytes_column(field.name, column)
                numbers[at], lengths[at] = given.starts + end, given.sizes
                contents.append(given.content)
                end += len(given.content)
            else:
                numbers[at] = _numbers(column)
                lengths[at][column.is_null().to_numpy(zero_copy_only=False)] = -1
        content = np.concatenate(contents) if contents else np.empty(0, np.uint8)
        return self._written(numbers, lengths, content)

    def _written(self, numbers: Any, lengths: Any, content: Any) -> pa.Array:
        count = numbers.shape[1]
        sizes = np.full(count, PREFIX_BYTES, np.int64)
        kernels.measure_flat(self._program, numbers, lengths, sizes)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        if offsets[-1] > LARGEST_ARRAY_BYTES:
            raise DataError(
                f"{count} rows have {offsets[-1]} bytes; the maximum is {LARGEST_ARRAY_BYTES}: "
                f"reduce spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        out = np.empty(offsets[-1], np.uint8)
        kernels.write_flat(self._program, content, numbers, lengths, offsets, self._prefix, out)
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    def _encode_each(self, rows: pa.RecordBatch) -> pa.Array:
        from fastavro import parse_schema, schemaless_writer  # noqa: PLC0415 - only tasks need it

        schema = parse_schema(self._document)
        prefix = self._prefix.tobytes()
        found = []
        for row in rows.select(self._columns.names).to_pylist(maps_as_pydicts="strict"):
            stream = BytesIO()
            stream.write(prefix)
            schemaless_writer(stream, schema, row)
            found.append(stream.getvalue())
        return pa.array(found, pa.binary())


def _program(field: Any) -> list[int] | None:
    """Return the program row for a column, or None if no compiled loop can write it."""
    kind: Any = PLAIN.get(field.type)
    if kind is not None:
        name = kind["type"] if isinstance(kind, dict) else kind
        return [KINDS[name], int(field.nullable)]
    if pa.types.is_decimal128(field.type) and field.type.precision <= NUMBER_DIGITS:
        return [kernels.DECIMAL, int(field.nullable)]
    return None


def _numbers(column: pa.Array) -> Any:
    """Return the numbers of a column; for floats their bits, for decimals the unscaled value."""
    if pa.types.is_decimal128(column.type):
        buffer = column.buffers()[1]
        halves = np.frombuffer(buffer, np.int64).reshape(-1, 2)
        return halves[column.offset : column.offset + len(column), 0]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_float32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_float64(column.type):
        column = column.view(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    elif pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.cast(pa.int64()).fill_null(0).to_numpy()
