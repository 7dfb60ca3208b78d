"""Any control-plane message of any version, parsed and written through kio's schemas.

`parse` gives kio's own object: attributes in snake_case, only those that the version has; handlers
ask for newer ones with `getattr` and a default. `encoder` is ours: kio's writer wants one object
per version and nested entity, which costs more than the bytes. Ours takes plain dictionaries with
every field that any version knows, and picks: what the version does not have is left out, what the
dictionary does not have gets the schema's default. The writer of a version is compiled once, when
it is first needed.

Times are plain milliseconds, errors plain codes, uuids are `uuid.UUID` or None, as they are in the
dictionaries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from strandlog.errors import DataError
from strandlog.protocol.kafka.headers import NO_TAGGED_FIELDS, unsigned_varint

Writer = Callable[[Any, list[bytes]], None]

_NO_UUID = bytes(16)
_FIXED: dict[str, tuple[struct.Struct, Any]] = {
    "int8": (struct.Struct(">b"), 0),
    "int16": (struct.Struct(">h"), 0),
    "int32": (struct.Struct(">i"), 0),
    "int64": (struct.Struct(">q"), 0),
    "uint16": (struct.Struct(">H"), 0),
    "bool": (struct.Struct(">?"), False),
    "float64": (struct.Struct(">d"), 0.0),
    "error_code": (struct.Struct(">h"), 0),
    "timedelta_i32": (struct.Struct(">i"), 0),
    "timedelta_i64": (struct.Struct(">q"), 0),
    "datetime_i64": (struct.Struct(">q"), -1),
}


@cache
def _reader(api_key: int, version: int) -> Callable[[Any, int], tuple[Any, int]]:
    return entity_reader(load_request_schema(api_key, version))


def parse(api_key: int, version: int, frame: memoryview, position: int) -> Any:
    """The body of a request; `DataError` when the bytes are not one."""
    try:
        return _reader(api_key, version)(frame, position)[0]
    except (SerialError, ValueError, OverflowError, KeyError) as error:
        raise DataError(
            f"a request with key {api_key} v{version} cannot be read: {error}"
        ) from error


@cache
def encoder(api_key: int, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    """What turns a dictionary into the body of a response."""
    write = _entity_writer(load_response_schema(api_key, version))

    def encode(body: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        write(body, parts)
        return b"".join(parts)

    return encode


@cache
def _entity_writer(schema: Any) -> Writer:
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, Writer, Any]] = []
    tagged: list[tuple[int, str, Writer]] = []
    for field in fields(schema):
        writer = _field_writer(field, flexible)
        if "tag" in field.metadata:
            tagged.append((field.metadata["tag"], field.name, writer))
        else:
            plain.append((field.name, writer, _default(field)))

    def write(body: Mapping[str, Any], parts: list[bytes]) -> None:
        for name, writer, default in plain:
            writer(body.get(name, default), parts)
        if flexible:
            _write_tagged(body, tagged, parts)

    return write


def _write_tagged(
    body: Mapping[str, Any], tagged: list[tuple[int, str, Writer]], parts: list[bytes]
) -> None:
    present = [row for row in tagged if row[1] in body]
    if not present:
        parts.append(NO_TAGGED_FIELDS)
        return
    parts.append(unsigned_varint(len(present)))
    for tag, name, writer in sorted(present, key=lambda row: row[0]):
        content: list[bytes] = []
        writer(body[name], content)
        data = b"".join(content)
        parts += (unsigned_varint(tag), unsigned_varint(len(data)), data)


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """(type without None, whether None was allowed)."""
    arguments = get_args(kind)
    if NoneType in arguments:
        rest = [argument for argument in arguments if argument is not NoneType]
        return rest[0], True
    return kind, False


def _default(field: Field[Any]) -> Any:
    kind, nullable = _unwrap(field.type)
    if get_origin(kind) is tuple:
        return None if nullable and field.default is None else ()
    if _is_entity(kind):
        return None if nullable else {}
    kafka_type = field.metadata["kafka_type"]
    if field.default is not MISSING and isinstance(field.default, int | str | bytes | NoneType):
        return field.default
    if kafka_type in _FIXED:
        return _FIXED[kafka_type][1]
    if nullable or kafka_type == "uuid":
        return None
    return "" if kafka_type == "string" else b""


def _field_writer(field: Field[Any], flexible: bool) -> Writer:
    kind, nullable = _unwrap(field.type)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        item = (
            _entity_writer(inner)
            if _is_entity(inner)
            else _primitive_writer(field.metadata["kafka_type"], flexible, nullable=False)
        )
        return _array_writer(item, flexible)
    if _is_entity(kind):
        return _nullable_entity(_entity_writer(kind)) if nullable else _entity_writer(kind)
    return _primitive_writer(field.metadata["kafka_type"], flexible, nullable)


def _nullable_entity(writer: Writer) -> Writer:
    def write(value: Any, parts: list[bytes]) -> None:
        parts.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            writer(value, parts)

    return write


def _array_writer(item: Writer, flexible: bool) -> Writer:
    length = struct.Struct(">i")

    def write(values: Sequence[Any] | None, parts: list[bytes]) -> None:
        if flexible:
            parts.append(b"\0" if values is None else unsigned_varint(len(values) + 1))
        else:
            parts.append(length.pack(-1 if values is None else len(values)))
        for value in values or ():
            item(value, parts)

    return write


def _primitive_writer(kafka_type: str, flexible: bool, nullable: bool) -> Writer:
    if kafka_type in _FIXED:
        layout = _FIXED[kafka_type][0]

        def write_fixed(value: Any, parts: list[bytes]) -> None:
            parts.append(layout.pack(-1 if value is None else value))

        return write_fixed
    if kafka_type == "uuid":

        def write_uuid(value: Any, parts: list[bytes]) -> None:
            parts.append(_NO_UUID if value is None else value.bytes)

        return write_uuid
    legacy = struct.Struct(">h" if kafka_type == "string" else ">i")

    def write_sized(value: str | bytes | None, parts: list[bytes]) -> None:
        if value is None:
            assert nullable, f"a {kafka_type} that may not be null"
            parts.append(b"\0" if flexible else legacy.pack(-1))
            return
        data = value.encode() if isinstance(value, str) else value
        parts.append(unsigned_varint(len(data) + 1) if flexible else legacy.pack(len(data)))
        parts.append(data)

    return write_sized
