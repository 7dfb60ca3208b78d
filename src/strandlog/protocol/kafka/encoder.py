"""Encodes any request or response according to its schema.

An encoder takes a dictionary with the fields of all versions and writes those of its own version;
missing fields get the schema's default. The encoder of a version is built when it is first needed.
kio is also loaded on demand, because its schemas take longer to load than everything else that a
broker does before it listens; the server builds the encoders of the newest versions right
after startup.

Times are integers in milliseconds, errors are integer codes, and uuids are `uuid.UUID` or None. An
array may be passed as `bytes`, the result of an `array_encoder`: this saves memory in a large
response, and time if many responses contain the same array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType
from typing import Any

from strandlog.errors import shortened
from strandlog.protocol.kafka.headers import NO_TAGGED_FIELDS, unsigned_varint
from strandlog.protocol.kafka.schemas import (
    FIXED,
    element_of,
    is_entity,
    request_schema,
    response_schema,
    unwrap,
)

Writer = Callable[[Any, list[bytes]], None]
StepsWriter = Callable[[Any, list[bytes]], Generator[None, None, None]]

_NO_UUID = bytes(16)
_INT32 = struct.Struct(">i")


@cache
def response_encoder(api_key: int, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    """Return the function that encodes the body of a response."""
    return _encoder(response_schema(api_key, version))


@cache
def request_encoder(api_key: int, version: int) -> Callable[[Mapping[str, Any]], bytes]:
    """Return the function that encodes the body of a request."""
    return _encoder(request_schema(api_key, version))


def _encoder(schema: Any) -> Callable[[Mapping[str, Any]], bytes]:
    write = _entity_writer(schema)

    def encode(body: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        write(body, parts)
        return b"".join(parts)

    return encode


def encode_response_steps(
    api_key: int, version: int, body: Mapping[str, Any]
) -> Generator[None, None, bytes]:
    """Encode the body of a response, yielding after each structure in an array."""
    parts: list[bytes] = []
    yield from _entity_steps(response_schema(api_key, version))(body, parts)
    return b"".join(parts)


@cache
def _entity_steps(schema: Any) -> StepsWriter:
    """Return the same writer as `_entity_writer`, but as a generator."""
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, Writer, StepsWriter | None, Any]] = []
    tagged: list[tuple[int, str, Writer]] = []
    for field in fields(schema):
        writer = _field_writer(field, flexible)
        if "tag" in field.metadata:
            tagged.append((field.metadata["tag"], field.name, writer))
            continue
        inner = element_of(unwrap(field.type)[0])
        steps = _array_steps(inner, flexible) if inner is not None and is_entity(inner) else None
        plain.append((field.name, writer, steps, _default(field)))

    def write(body: Mapping[str, Any], parts: list[bytes]) -> Generator[None, None, None]:
        for name, writer, steps, default in plain:
            value = body.get(name, default)
            if steps is None or not isinstance(value, list):
                writer(value, parts)
            else:
                yield from steps(value, parts)
        if flexible:
            _write_tagged(body, tagged, parts)

    return write


def _array_steps(element: Any, flexible: bool) -> StepsWriter:
    item = _entity_steps(element)

    def write(values: list[Any], parts: list[bytes]) -> Generator[None, None, None]:
        parts.append(_array_length(len(values), flexible))
        for value in values:
            content: list[bytes] = []
            yield from item(value, content)
            parts.append(b"".join(content))
            yield

    return write


def _array_length(count: int, flexible: bool) -> bytes:
    return unsigned_varint(count + 1) if flexible else _INT32.pack(count)


@cache
def array_encoder(api_key: int, version: int, *path: str) -> Callable[[Sequence[Any]], bytes]:
    """Return the function that encodes an array of a response before the response itself."""
    schema: Any = response_schema(api_key, version)
    for name in path:
        [found] = [field for field in fields(schema) if field.name == name]
        flexible, schema = schema.__flexible__, element_of(unwrap(found.type)[0])
    write = _field_writer(found, flexible)

    def encode(values: Sequence[Any]) -> bytes:
        parts: list[bytes] = []
        write(values, parts)
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


def _default(field: Field[Any]) -> Any:
    kind, nullable = unwrap(field.type)
    if element_of(kind) is not None:
        return None if nullable and field.default is None else ()
    if is_entity(kind):
        return None if nullable else {}
    kafka_type = field.metadata["kafka_type"]
    if field.default is not MISSING and isinstance(field.default, int | str | bytes | NoneType):
        return field.default
    if kafka_type in FIXED:
        return FIXED[kafka_type][1]
    if nullable or kafka_type == "uuid":
        return None
    return "" if kafka_type == "string" else b""


def _field_writer(field: Field[Any], flexible: bool) -> Writer:
    kind, nullable = unwrap(field.type)
    inner = element_of(kind)
    if inner is not None:
        item = (
            _entity_writer(inner)
            if is_entity(inner)
            else _primitive_writer(field.metadata["kafka_type"], flexible, nullable=False)
        )
        return _array_writer(item, flexible)
    if is_entity(kind):
        return _nullable_entity(_entity_writer(kind)) if nullable else _entity_writer(kind)
    write = _primitive_writer(field.metadata["kafka_type"], flexible, nullable)
    return _message_writer(write) if field.name == "error_message" else write


def _message_writer(write: Writer) -> Writer:
    """Return a writer that shortens error messages, because they may quote input of any length."""

    def write_shortened(value: str | None, parts: list[bytes]) -> None:
        write(value and shortened(value), parts)

    return write_shortened


def _nullable_entity(writer: Writer) -> Writer:
    def write(value: Any, parts: list[bytes]) -> None:
        parts.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            writer(value, parts)

    return write


def _array_writer(item: Writer, flexible: bool) -> Writer:
    length = struct.Struct(">i")

    def write(values: Sequence[Any] | bytes | None, parts: list[bytes]) -> None:
        if isinstance(values, bytes):
            parts.append(values)
            return
        if flexible:
            parts.append(b"\0" if values is None else unsigned_varint(len(values) + 1))
        else:
            parts.append(length.pack(-1 if values is None else len(values)))
        for value in values or ():
            item(value, parts)

    return write


def _primitive_writer(kafka_type: str, flexible: bool, nullable: bool) -> Writer:
    if kafka_type in FIXED:
        layout = FIXED[kafka_type][0]

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
            assert nullable, f"this {kafka_type} must not be null"
            parts.append(b"\0" if flexible else legacy.pack(-1))
            return
        data = value.encode() if isinstance(value, str) else value
        parts.append(unsigned_varint(len(data) + 1) if flexible else legacy.pack(len(data)))
        parts.append(data)

    return write_sized
