"""Request and response headers.

    request v1     i16 api key | i16 version | i32 correlation id | nullable string client id
    request v2     the same, then tagged fields                                  (flexible versions)
    response v0    i32 correlation id
    response v1    the same, then tagged fields                                  (flexible versions)

The response header of ApiVersions is always v0, because a client must be able to read it before it
knows which versions the broker supports.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from strandlog.config.limits.kafka import MAX_TAGGED_FIELDS
from strandlog.errors import DataError
from strandlog.protocol.kafka.api import API_BY_KEY, API_VERSIONS, Api

_REQUEST = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
NO_TAGGED_FIELDS = b"\0"
_new_tuple = tuple.__new__  # three times as fast as the named tuple's own constructor


class RequestHeader(NamedTuple):
    """A decoded request header, and the position of the body."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def read_request_header(frame: memoryview, supported: Mapping[int, range]) -> RequestHeader:
    """Read the header of a request; raise `DataError` if it is truncated or invalid.

    `supported` maps API keys to supported versions. In any other version, the layout after the
    client id is unknown, so reading stops there.
    """
    try:
        api_key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    except struct.error as error:
        raise DataError("a request is shorter than its header") from error
    position = _REQUEST.size
    client_id: str | None = None
    if length >= 0:
        if position + length > len(frame):
            raise DataError("a client id is longer than its request")
        client_id = str(frame[position : position + length], "utf-8", "replace")
        position += length
    if version in supported.get(api_key, ()) and API_BY_KEY[api_key].is_flexible(version):
        position = skip_tagged_fields(frame, position)
    return _new_tuple(RequestHeader, (api_key, version, correlation_id, client_id, position))


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode the header of a response."""
    header = _CORRELATION.pack(correlation_id)
    if api_key != API_VERSIONS.key and API_BY_KEY[api_key].is_flexible(version):
        return header + NO_TAGGED_FIELDS
    return header


def request_header(api: Api, version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode the header of a request."""
    name = client_id.encode()
    header = _REQUEST.pack(api.key, version, correlation_id, len(name)) + name
    return header + NO_TAGGED_FIELDS if api.is_flexible(version) else header


def read_response_header(api: Api, version: int, frame: memoryview) -> tuple[int, int]:
    """Return (correlation id, position of the body) of a response."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
    except struct.error as error:
        raise DataError("a response is shorter than its header") from error
    position = _CORRELATION.size
    if api != API_VERSIONS and api.is_flexible(version):
        position = skip_tagged_fields(frame, position)
    return correlation_id, position


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """Return the position after the tagged fields that start at `position`."""
    count, position = read_unsigned_varint(frame, position)
    if count > MAX_TAGGED_FIELDS:  # ten million empty fields would fit into 20 MB
        raise DataError(f"a structure has {count} tagged fields; the limit is {MAX_TAGGED_FIELDS}")
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise DataError("a tagged field is longer than its message")
    return position


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """Decode an unsigned varint; return (value, next position)."""
    value = shift = 0
    while True:
        if position >= len(frame) or shift > 28:
            raise DataError("an unsigned varint is truncated or too long")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def unsigned_varint(value: int) -> bytes:
    """Encode a number as an unsigned varint, the format of compact lengths and tags."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
