"""Encodes and decodes the prefix of values with a registered schema; defines the parse result.

    0         zero
    1 … 4     id of the writer's schema, big-endian
    5 …       Avro: the datum. JSON: the text. Protobuf: the path of the message, the message

The path leads from the file to the message: the number of steps, then the index at each step, as
zig-zag varints. The first message of the file, [0], is the single byte 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandlog.errors import InvalidSchemaError
from strandlog.record.arrow.arrays import bytes_column

PREFIX_BYTES: Final = 5
NO_VALUE: Final = -1  # a null value, which is not an error
NO_PREFIX: Final = -2
MAX_PATH_STEPS: Final = 64
_PREFIX: Final = struct.Struct(">bI")
_LONGEST_SHIFT: Final = 63


class Parsed(NamedTuple):
    """Columns with a row for each value, the sorted indices of bad rows, and the reason for each.

    All columns of a bad row are null, except in JSON, where readable fields are kept.
    """

    columns: dict[str, Any]
    bad: list[int]
    reasons: list[str]


def prefix_of(schema_id: int) -> bytes:
    """Return the prefix of values with this schema."""
    return _PREFIX.pack(0, schema_id)


def schema_ids(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the id of each value, or NO_VALUE or NO_PREFIX."""
    given = bytes_column("value", values)
    found = np.full(len(values), NO_PREFIX, np.int64)
    found[given.sizes < 0] = NO_VALUE
    rows = np.flatnonzero(given.sizes >= PREFIX_BYTES)
    starts = given.starts[rows]
    rows = rows[given.content[starts] == 0] if len(rows) else rows
    starts = given.starts[rows]
    ids = np.zeros(len(rows), np.int64)
    for number in range(1, PREFIX_BYTES):
        ids = (ids << 8) | given.content[starts + number]
    found[rows] = ids
    return found


def read_path(value: bytes, start: int = PREFIX_BYTES) -> tuple[tuple[int, ...], int]:
    """Return a Protobuf message's path and the position after it; raise ValueError if damaged."""
    count, at = _read_varint(value, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_PATH_STEPS:
        raise ValueError("the path of the message is damaged")
    path = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        path.append(index)
    return tuple(path), at


def write_path(path: Iterable[int]) -> bytes:
    """Return the encoded path of a Protobuf message."""
    steps = tuple(path)
    if steps == (0,):
        return b"\0"
    return b"".join(map(_varint, (len(steps), *steps)))


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(value) and shift <= _LONGEST_SHIFT:
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise ValueError("the path of the message is damaged")


def _varint(number: int) -> bytes:
    number <<= 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def unsuitable(path: str, kind: pa.DataType, language: str) -> InvalidSchemaError:
    """Return the error for a column whose type has no counterpart."""
    return InvalidSchemaError(
        f"column {path} of type {kind} has no counterpart in {language}; cast it"
    )


def invalid_name(path: str, language: str) -> InvalidSchemaError:
    """Return the error for a column whose name the schema language does not allow."""
    return InvalidSchemaError(f"{language} does not allow the name of column {path!r}; rename it")
