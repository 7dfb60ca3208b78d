"""Finds the schema id of a key or value, in a prefix or in a record header.

    prefix    byte 0 · id, 4 bytes big-endian · payload
    header    __key_schema_id or __value_schema_id:
              byte 0 · id, 4 bytes, or byte 1 · guid, 16 bytes; the value is the bare payload

The payload is an Avro value, JSON text, or a Protobuf message after its *message index path*: the
position of the message in its file, as zig-zag varints that start with the number of indexes; the
single byte 0 stands for the first message. With a header, the path follows the id in the header.
The serializers of all Confluent clients write these formats.

A valid header takes precedence. Any bytes can start with byte 0, so a value is only known to be
encoded if the registry contains its id.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from strandlog.errors import DataError

KEY_HEADER, VALUE_HEADER = "__key_schema_id", "__value_schema_id"
PREFIX_BYTES = 5
GUID_BYTES = 16
MAX_PATH = 100  # maximum number of indexes, one per level of nesting
FIRST_MESSAGE = b"\0"
_MAX_VARINT_SHIFT = 35


class Frame(NamedTuple):
    """A key or value, split into its schema id and its payload. Either `schema_id` or `guid` is
    set."""

    data: bytes
    start: int  # position of the payload in `data`
    schema_id: int | None = None
    guid: str | None = None
    path: bytes | None = None  # index path from the header, or None if the payload starts with it

    @property
    def has_header(self) -> bool:
        return self.path is not None

    @property
    def payload(self) -> bytes:
        return self.data[self.start :]


def frame_of(data: bytes, header: bytes | None = None) -> Frame | None:
    """Split a key or value into schema id or GUID and payload; return None if it names neither."""
    if header:
        if header[0] == 0 and len(header) >= PREFIX_BYTES:
            schema_id = int.from_bytes(header[1:PREFIX_BYTES], "big")
            return Frame(data, 0, schema_id, None, header[PREFIX_BYTES:])
        if header[0] == 1 and len(header) > GUID_BYTES:
            guid = str(UUID(bytes=bytes(header[1 : 1 + GUID_BYTES])))
            return Frame(data, 0, None, guid, header[1 + GUID_BYTES :])
    if len(data) >= PREFIX_BYTES and data[0] == 0:
        return Frame(data, PREFIX_BYTES, int.from_bytes(data[1:PREFIX_BYTES], "big"))
    return None


def prefixed(schema_id: int, payload: bytes) -> bytes:
    """Return a payload with the prefix for a schema id."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def read_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return a message index path and its size in bytes; raise `DataError` if it is invalid."""
    count, at = _varint(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_PATH:
        raise DataError(f"the message index path has {count} indexes")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_VARINT_SHIFT:
            raise DataError("the message index path is incomplete")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
