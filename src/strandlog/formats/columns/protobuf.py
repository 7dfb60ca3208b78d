"""Decodes Protobuf values with registered schemas into columns.

The reader's message is the first one in the file of the reader's schema, or the one with a given
full name. A value names its message by a path into the file of the writer's schema; that message
must have the same full name. Its bytes are parsed with the reader's message: Protobuf identifies
fields by number, so no conversion is needed.

A missing field without presence (repeated, or proto3 without `optional`) has its default value; any
other missing field is null. Columns are built one at a time from all messages, so each value is
parsed once and each of its fields is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from strandlog.errors import InvalidSchemaError
from strandlog.formats.columns.descriptors import message_class, message_names, message_path
from strandlog.formats.columns.values import PREFIX_BYTES, Parsed, read_path
from strandlog.formats.registered_schema import RegisteredSchema

GOOGLE = "google.protobuf."
DIGITS_20 = pa.decimal128(20, 0)
MICROS = 1_000_000
PIECE_ROWS = 64
FIRST: tuple[int, ...] = (0,)

Build = Callable[[list[Any]], pa.Array]

# Raised by Arrow for a value outside the range of its type.
DAMAGE = (ArithmeticError, TypeError, ValueError, pa.ArrowException)


class _Column(NamedTuple):
    """The type of a field, and how to build its column from values, which may be None."""

    kind: pa.DataType
    build: Build


class ProtobufReader:
    """Reads values into the columns of one message of a Protobuf schema."""

    def __init__(self, schema: RegisteredSchema, message: str | None = None) -> None:
        self._schema = schema
        self._class = message_class(schema, message_path(schema, message))
        self._message = self._class.DESCRIPTOR
        self._fields = {field.name: field for field in self._message.fields}
        self._columns: dict[str, _Column] = {}
        self._paths: dict[int, dict[tuple[int, ...], str]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._fields if not self._is_dropped(name))

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self._fields if self._is_dropped(name))

    def _is_dropped(self, name: str) -> bool:
        try:
            return is_empty(self.type_of(name))
        except InvalidSchemaError:
            return False

    def type_of(self, name: str) -> pa.DataType:
        return self._column(name).kind

    def _column(self, name: str) -> _Column:
        if name not in self._columns:
            columns = _Columns(self._schema.id)
            self._columns[name] = columns.of(self._fields[name], name, (self._message.full_name,))
        return self._columns[name]

    def parse(self, values: pa.Array, writer: RegisteredSchema, schema: pa.Schema) -> Parsed:
        messages: list[Any] = []
        faults: dict[int, str] = {}
        names = self._paths.setdefault(writer.id, message_names(writer))
        read = self._class.FromString
        for row, value in enumerate(values.to_pylist()):
            try:
                path, at = FIRST, PREFIX_BYTES + 1
                if value[PREFIX_BYTES:at] != b"\0":
                    path, at = read_path(value)
                name = names.get(path)
                if name == self._message.full_name:
                    messages.append(read(value[at:]))
                    continue
                faults[row] = self._wrong_message(writer, path, name)
            except Exception as error:
                if not isinstance(error, ValueError) and type(error).__name__ != "DecodeError":
                    raise
                faults[row] = f"the value does not match schema {writer.id}"
            messages.append(None)
        columns = self._built(messages, schema, 0, faults, writer)
        bad = sorted(faults)
        return Parsed(
            dict(zip(schema.names, columns, strict=True)), bad, [faults[row] for row in bad]
        )

    def _wrong_message(
        self, writer: RegisteredSchema, path: tuple[int, ...], name: str | None
    ) -> str:
        if name is None:
            return f"schema {writer.id} has no message at {list(path)}"
        return f"the value is a {name}, not a {self._message.full_name}"

    def _built(
        self,
        messages: list[Any],
        schema: pa.Schema,
        start: int,
        faults: dict[int, str],
        writer: RegisteredSchema,
    ) -> list[pa.Array]:
        """Return the columns; rows that Arrow cannot represent become null and are added to
        `faults`."""
        try:
            return [
                self._column(field.name)
                .build(_values(messages, self._fields[field.name]))
                .cast(field.type)
                for field in schema
            ]
        except DAMAGE as error:
            if len(messages) == 1:
                faults[start] = f"the value does not fit its columns (schema {writer.id}): {error}"
                return [pa.nulls(1, field.type) for field in schema]
        step = PIECE_ROWS if len(messages) > PIECE_ROWS else 1
        pieces = [
            self._built(messages[at : at + step], schema, start + at, faults, writer)
            for at in range(0, len(messages), step)
        ]
        return [pa.concat_arrays(list(each)) for each in zip(*pieces, strict=True)]


def _values(messages: Sequence[Any], field: Any) -> list[Any]:
    """Return the field of each message, or None where the message is None or lacks the field."""
    name = field.name
    if field.has_presence:
        return [
            getattr(each, name) if each is not None and each.HasField(name) else None
            for each in messages
        ]
    if None in messages:
        return [None if each is None else getattr(each, name) for each in messages]
    return [getattr(each, name) for each in messages]


def absent_field(field: Any, schema_id: int) -> pa.Array:
    """Return a column with one row: the value of a field in a message that lacks it."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional dependency

    message = field.containing_type
    column = _Columns(schema_id).of(field, field.name, (message.full_name,))
    return column.build(_values([GetMessageClass(message)()], field))


class _Columns:
    """Creates a `_Column` for each field."""

    def __init__(self, schema_id: int) -> None:
        self._id = schema_id

    def of(self, field: Any, path: str, inside: tuple[str, ...]) -> _Column:
        """Return the column of a field; `inside` lists the enclosing messages."""
        if field.type == field.TYPE_GROUP or field.is_extension:
            raise self._unusable(path, "a group or an extension cannot be a column")
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key, item = message.fields_by_name["key"], message.fields_by_name["value"]
            return _map(
                self._single(key, path, inside),
                self._single(item, f"{path}{{}}", inside),
            )
        if field.is_repeated:
            return _list(self._single(field, f"{path}[]", inside))
        return self._single(field, path, inside)

    def _single(self, field: Any, path: str, inside: tuple[str, ...]) -> _Column:
        if field.message_type is not None:
            return self._message(field.message_type, path, inside)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        return _SCALARS[field.cpp_type] if field.type != field.TYPE_BYTES else _plain(pa.binary())

    def _message(self, message: Any, path: str, inside: tuple[str, ...]) -> _Column:
        name = message.full_name
        if name.startswith(GOOGLE):
            known = name.removeprefix(GOOGLE)
            if known in _WELL_KNOWN:
                return _WELL_KNOWN[known]
            if known.endswith("Value") and "value" in message.fields_by_name:
                return self._wrapper(message.fields_by_name["value"], path, inside)
            if known == "Any":
                raise self._unusable(path, "google.protobuf.Any cannot be a column")
        if name in inside:
            raise self._unusable(path, f"{name} contains itself")
        deeper = (*inside, name)
        fields = [(each, self.of(each, f"{path}.{each.name}", deeper)) for each in message.fields]
        return _struct([(each, column) for each, column in fields if not is_empty(column.kind)])

    def _wrapper(self, field: Any, path: str, inside: tuple[str, ...]) -> _Column:
        inner = self._single(field, path, inside)
        return _Column(
            inner.kind,
            lambda found: inner.build([None if each is None else each.value for each in found]),
        )

    def _unusable(self, path: str, reason: str) -> InvalidSchemaError:
        return InvalidSchemaError(
            f"schema {self._id}: {path}: {reason}; leave the field out with .schema()"
        )


def is_empty(kind: pa.DataType) -> bool:
    """Return whether a type is a struct without fields, or a list or map of such structs."""
    if pa.types.is_list(kind):
        return is_empty(kind.value_type)
    if pa.types.is_map(kind):
        return is_empty(kind.item_type)
    return bool(pa.types.is_struct(kind) and kind.num_fields == 0)


def _plain(kind: pa.DataType) -> _Column:
    return _Column(kind, lambda found: pa.array(found, kind))


def _unsigned(found: list[Any]) -> pa.Array:
    """Return unsigned 64-bit numbers as decimals: 128 bits, little-endian."""
    nulls = np.array([each is None for each in found], np.bool_)
    halves = np.zeros((len(found), 2), np.uint64)
    halves[:, 0] = [0 if each is None else each for each in found]
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(DIGITS_20, len(found), [valid, pa.py_buffer(halves)])


def _enum(enum: Any) -> _Column:
    names = {number: value.name for number, value in enum.values_by_number.items()}

    def build(found: list[Any]) -> pa.Array:
        texts = [None if each is None else names.get(each) or str(each) for each in found]
        return pa.array(texts, pa.string())

    return _Column(pa.string(), build)


def _struct(fields: list[tuple[Any, _Column]]) -> _Column:
    kind = pa.struct([(field.name, column.kind) for field, column in fields])

    def build(found: list[Any]) -> pa.Array:
        arrays = [column.build(_values(found, field)) for field, column in fields]
        mask = pa.array([each is None for each in found], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)

    return _Column(kind, build)


def _list(item: _Column) -> _Column:
    kind = pa.list_(item.kind)

    def build(found: list[Any]) -> pa.Array:
        items = item.build([each for some in found if some is not None for each in some])
        return pa.ListArray.from_arrays(_offsets(found), items, type=kind)

    return _Column(kind, build)


def _map(key: _Column, item: _Column) -> _Column:
    kind = pa.map_(key.kind, item.kind)

    def build(found: list[Any]) -> pa.Array:
        keys = key.build([each for some in found if some is not None for each in some])
        items = item.build([some[each] for some in found if some is not None for each in some])
        return pa.MapArray.from_arrays(_offsets(found), keys, items).cast(kind)

    return _Column(kind, build)


def _offsets(found: list[Any]) -> pa.Array:
    """Return the offsets of lists; the offset of a null list is null."""
    offsets: list[int | None] = []
    end = 0
    for each in found:
        offsets.append(None if each is None else end)
        end += 0 if each is None else len(each)
    return pa.array([*offsets, end], pa.int32())


def _timestamps(found: list[Any]) -> pa.Array:
    micros = [None if each is None else _micros(each) for each in found]
    return pa.array(micros, pa.timestamp("us", "UTC"))


def _durations(found: list[Any]) -> pa.Array:
    return pa.array([None if each is None else _micros(each) for each in found], pa.int64())


def _micros(time: Any) -> int:
    return int(time.seconds) * MICROS + int(time.nanos) // 1000


def _json(found: list[Any]) -> pa.Array:
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415 - optional dependency

    texts = [
        None if each is None else MessageToJson(each, indent=None, ensure_ascii=False)
        for each in found
    ]
    return pa.array(texts, pa.string())


# Keys are FieldDescriptor's C++ types; strings and bytes share type 9.
_SCALARS = {
    1: _plain(pa.int32()),
    2: _plain(pa.int64()),
    3: _plain(pa.int64()),  # uint32
    4: _Column(DIGITS_20, _unsigned),
    5: _plain(pa.float64()),
    6: _plain(pa.float32()),
    7: _plain(pa.bool_()),
    9: _plain(pa.string()),
}
_WELL_KNOWN = {
    "Timestamp": _Column(pa.timestamp("us", "UTC"), _timestamps),
    "Duration": _Column(pa.int64(), _durations),
    "Struct": _Column(pa.string(), _json),
    "Value": _Column(pa.string(), _json),
    "ListValue": _Column(pa.string(), _json),
}
