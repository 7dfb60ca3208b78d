"""Encodes columns as Protobuf values.

If the subject has no schema, one is derived from the columns: a message whose fields are numbered
in column order. If the subject has a schema, its first message is used unchanged, and every column
must be one of its fields, because numbers for new fields cannot be derived. Each row becomes one
message.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from strandlog.errors import DataError, InvalidSchemaError
from strandlog.formats.columns.avro_encode import word
from strandlog.formats.columns.descriptors import message_class
from strandlog.formats.columns.values import invalid_name, prefix_of, unsuitable, write_path
from strandlog.formats.registered_schema import RegisteredSchema

LANGUAGE = "Protobuf"
MICROS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP = ".google.protobuf.Timestamp"
# Field types of FieldDescriptorProto.
SCALARS = {
    pa.float64(): 1,
    pa.float32(): 2,
    pa.int64(): 3,
    pa.int8(): 5,
    pa.int16(): 5,
    pa.int32(): 5,
    pa.bool_(): 8,
    pa.string(): 9,
    pa.large_string(): 9,
    pa.binary(): 12,
    pa.large_binary(): 12,
}
MESSAGE = 11
OPTIONAL, REPEATED = 1, 3

Convert = Callable[[Any], Any]


def protobuf_text(columns: pa.Schema, name: str) -> str:
    """Return a base64 FileDescriptorProto with a message for the columns."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - optional dependency

    file = FileDescriptorProto(name=f"{word(name)}.proto", syntax="proto3")
    message = file.message_type.add(name=word(name))
    _fill(message, columns, f".{word(name)}", "")
    if TIMESTAMP.encode()[1:] in file.SerializeToString():
        file.dependency.append("google/protobuf/timestamp.proto")
    return base64.b64encode(file.SerializeToString(deterministic=True)).decode()


def _fill(message: Any, columns: Any, full_name: str, path: str) -> None:
    for number, column in enumerate(columns, 1):
        shown = f"{path}{column.name}"
        if word(column.name) != column.name:
            raise invalid_name(shown, LANGUAGE)
        field = message.field.add(name=column.name, number=number, label=OPTIONAL)
        kind = column.type
        if pa.types.is_list(kind):
            field.label, kind = REPEATED, kind.value_type
            if pa.types.is_list(kind) or pa.types.is_map(kind):
                raise unsuitable(shown, column.type, LANGUAGE)
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            field.label = REPEATED
            entry = message.nested_type.add(name=_entry(column.name))
            entry.options.map_entry = True
            pair = [pa.field("key", pa.string(), False), pa.field("value", kind.item_type, False)]
            _fill(entry, pair, f"{full_name}.{entry.name}", f"{shown}.")
            field.type, field.type_name = MESSAGE, f"{full_name}.{entry.name}"
            continue
        _set_type(message, field, kind, full_name, shown)
        if field.label == OPTIONAL and column.nullable and field.type != MESSAGE:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{column.name}")


def _set_type(message: Any, field: Any, kind: pa.DataType, full_name: str, path: str) -> None:
    if kind in SCALARS:
        field.type = SCALARS[kind]
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        field.type, field.type_name = MESSAGE, TIMESTAMP
    elif pa.types.is_struct(kind) and kind.num_fields:
        inner = message.nested_type.add(name=_entry(field.name).removesuffix("Entry") + "Row")
        _fill(inner, list(kind), f"{full_name}.{inner.name}", f"{path}.")
        field.type, field.type_name = MESSAGE, f"{full_name}.{inner.name}"
    else:
        raise unsuitable(path, kind, LANGUAGE)


def _entry(name: str) -> str:
    """Return the name that protoc gives the entries of a map field."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"


class ProtobufValueEncoder:
    """Encodes rows as the first message of a schema."""

    def __init__(self, schema: RegisteredSchema, columns: pa.Schema) -> None:
        self._schema = schema
        self._columns = columns
        message = message_class(schema, (0,)).DESCRIPTOR
        for column in columns:
            field = message.fields_by_name.get(column.name)
            if field is None:
                names = ", ".join(message.fields_by_name)
                raise InvalidSchemaError(
                    f"schema {schema.id}: message {message.full_name} has no field "
                    f"{column.name!r}; it has {names}. Register a version with this field first"
                )
            _check(field, column.type, column.name, schema.id)

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        prefix = prefix_of(self._schema.id) + write_path((0,))
        create = message_class(self._schema, (0,))
        names = self._columns.names
        lists = [
            _converted(rows.column(name).to_pylist(maps_as_pydicts="strict"), field.type)
            for name, field in zip(names, self._columns, strict=True)
        ]
        found = []
        for values in zip(*lists, strict=True):
            fields = {
                name: value for name, value in zip(names, values, strict=True) if value is not None
            }
            try:
                found.append(prefix + create(**fields).SerializeToString())
            except (TypeError, ValueError) as error:
                raise DataError(f"a row does not fit schema {self._schema.id}: {error}") from None
        return pa.array(found, pa.binary())


def _check(field: Any, kind: pa.DataType, path: str, schema_id: int) -> None:
    """Raise an error if a column cannot be written to a field."""
    message = field.message_type
    is_map = message is not None and message.GetOptions().map_entry
    if pa.types.is_map(kind):
        if is_map:
            _check(message.fields_by_name["value"], kind.item_type, f"{path}{{}}", schema_id)
            return
    elif pa.types.is_list(kind):
        if field.is_repeated and not is_map:
            _check_single(field, kind.value_type, f"{path}[]", schema_id)
            return
    elif not field.is_repeated:
        _check_single(field, kind, path, schema_id)
        return
    raise _misfit(path, kind, schema_id)


_FITTING = {
    **dict.fromkeys((1, 2), ("is_floating",)),
    **dict.fromkeys((3, 4, 5, 6, 7, 13, 15, 16, 17, 18), ("is_integer",)),
    8: ("is_boolean",),
    9: ("is_string", "is_large_string"),
    12: ("is_binary", "is_large_binary"),
    14: ("is_string", "is_integer"),
}


def _check_single(field: Any, kind: pa.DataType, path: str, schema_id: int) -> None:
    message = field.message_type
    if message is None:
        if any(getattr(pa.types, name)(kind) for name in _FITTING.get(field.type, ())):
            return
    elif message.full_name == TIMESTAMP[1:]:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return
    elif pa.types.is_struct(kind):
        for inner in kind:
            target = message.fields_by_name.get(inner.name)
            if target is None:
                raise _misfit(f"{path}.{inner.name}", inner.type, schema_id)
            _check(target, inner.type, f"{path}.{inner.name}", schema_id)
        return
    raise _misfit(path, kind, schema_id)


def _misfit(path: str, kind: pa.DataType, schema_id: int) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"schema {schema_id}: column {path} of type {kind} does not fit its field"
    )


def _converted(values: list[Any], kind: pa.DataType) -> list[Any]:
    convert = _converter(kind)
    if convert is None:
        return values
    return [None if each is None else convert(each) for each in values]


def _converter(kind: pa.DataType) -> Convert | None:
    """Return a function that prepares values for a message, or None if none is needed."""
    if pa.types.is_timestamp(kind):
        return _timestamp
    if pa.types.is_list(kind) and (item := _converter(kind.value_type)) is not None:
        return partial(_each, item)
    if pa.types.is_map(kind) and (item := _converter(kind.item_type)) is not None:
        return partial(_each_value, item)
    if pa.types.is_struct(kind):
        inner = {field.name: _converter(field.type) or _unchanged for field in kind}
        return lambda found: {
            name: inner[name](value) for name, value in found.items() if value is not None
        }
    return None


def _each(convert: Convert, found: list[Any]) -> list[Any]:
    return [None if each is None else convert(each) for each in found]


def _each_value(convert: Convert, found: dict[Any, Any]) -> dict[Any, Any]:
    return {key: None if each is None else convert(each) for key, each in found.items()}


def _unchanged(value: Any) -> Any:
    return value


def _timestamp(value: Any) -> dict[str, int]:
    micros = (value - EPOCH) // timedelta(microseconds=1)
    return {"seconds": micros // MICROS, "nanos": micros % MICROS * 1000}
