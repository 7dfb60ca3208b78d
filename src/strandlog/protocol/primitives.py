"""Reader and writer for Kafka's primitive types, which are big-endian.

    type              bytes                                           null
    int8 … int64      1, 2, 4, 8, two's complement                    -
    float64           8, IEEE 754                                     -
    uvarint           7 bits per byte, low first, high bit = more     -
    string            int16 length, UTF-8                             length -1
    bytes             int32 length, bytes                             length -1
    array             int32 count, items                              count -1
    compact_…         uvarint length or count plus one, then the same 0
    tagged fields     uvarint count, then tag, size, bytes of each    -

The reader checks every length against the remaining bytes before it allocates anything; for an
array, it assumes the minimum size of each item. Invalid bytes raise `DataError`, never IndexError,
MemoryError or UnicodeDecodeError. The writer has no uvarints, compact types or tagged fields. It
rejects strings and arrays that are too long for their length field, so everything written can be
read back.
"""

from __future__ import annotations

import array as arrays
import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

from strandlog.config.limits.kafka import MAX_STRING_BYTES
from strandlog.errors import DataError
from strandlog.model import Buffer

Item = TypeVar("Item")
MAX_BYTES = 2**31 - 1
_MAX_UVARINT_BYTES = 5

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")


class Reader:
    """Reads values from the start of a buffer."""

    __slots__ = ("_position", "_view")

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data)
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._view) - self._position

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def float64(self) -> float:
        value: float = _FLOAT64.unpack(self._take(_FLOAT64.size))[0]
        return value

    def uvarint(self) -> int:
        value = 0
        for index in range(_MAX_UVARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise DataError("a variable-length number is longer than 5 bytes")

    def string(self) -> str:
        return self._present(self.nullable_string())

    def nullable_string(self) -> str | None:
        return self._text(self.int16())

    def compact_string(self) -> str:
        return self._present(self.compact_nullable_string())

    def compact_nullable_string(self) -> str | None:
        return self._text(self.uvarint() - 1)

    def byte_string(self) -> bytes:
        return self._present(self.nullable_byte_string())

    def nullable_byte_string(self) -> bytes | None:
        return self._bytes(self.int32())

    def compact_byte_string(self) -> bytes:
        return self._present(self._bytes(self.uvarint() - 1))

    def array(self, read_item: Callable[[], Item], item_min_bytes: int) -> list[Item]:
        """Read an array whose items have at least `item_min_bytes` each; null reads as empty."""
        return self._items(self.int32(), read_item, item_min_bytes)

    def int32_array(self) -> arrays.array[int]:
        """Read an array of int32 values in one operation; null reads as empty."""
        count = self.int32()
        if not -1 <= count <= self.remaining // _INT32.size:
            raise DataError(
                f"{count} items do not fit into the {self.remaining} bytes that are left"
            )
        return arrays.array("i", struct.unpack(f">{max(count, 0)}i", self._take(max(count, 0) * 4)))

    def compact_array(self, read_item: Callable[[], Item], item_min_bytes: int) -> list[Item]:
        return self._items(self.uvarint() - 1, read_item, item_min_bytes)

    def skip_tagged_fields(self) -> None:
        """Skip tagged fields, which newer versions may have added; each is prefixed by its size."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self._take(self.uvarint())

    def _take(self, count: int) -> memoryview:
        if count > self.remaining:
            raise DataError(f"a length of {count} bytes is given, but only {self.remaining} remain")
        start = self._position
        self._position += count
        return self._view[start : self._position]

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack(self._take(form.size))[0]
        return number

    def _bytes(self, size: int) -> bytes | None:
        if size < -1:
            raise DataError(f"invalid length {size}")
        return None if size == -1 else bytes(self._take(size))

    def _text(self, size: int) -> str | None:
        data = self._bytes(size)
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"a string is not UTF-8: {error}") from error

    def _items(self, count: int, read_item: Callable[[], Item], min_bytes: int) -> list[Item]:
        assert min_bytes > 0, "min_bytes must be positive"
        if not -1 <= count <= self.remaining // min_bytes:
            raise DataError(
                f"{count} items do not fit into the {self.remaining} bytes that are left"
            )
        return [read_item() for _ in range(count)]

    @staticmethod
    def _present(value: Item | None) -> Item:
        if value is None:
            raise DataError("a required value is null")
        return value


class Writer:
    """Appends values to a buffer."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts = bytearray()

    def int8(self, value: int) -> None:
        self._number(_INT8, value)

    def int16(self, value: int) -> None:
        self._number(_INT16, value)

    def int32(self, value: int) -> None:
        self._number(_INT32, value)

    def int64(self, value: int) -> None:
        self._number(_INT64, value)

    def float64(self, value: float) -> None:
        self._parts += _FLOAT64.pack(value)

    def string(self, value: str) -> None:
        data = encoded_text(value)
        self.int16(len(data))
        self._parts += data

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.int16(-1)
        else:
            self.string(value)

    def byte_string(self, value: Buffer) -> None:
        self.int32(len(value))
        self._parts += value

    def nullable_byte_string(self, value: Buffer | None) -> None:
        if value is None:
            self.int32(-1)
        else:
            self.byte_string(value)

    def array(self, items: Iterable[Item], write_item: Callable[[Item], None]) -> None:
        values = list(items)
        self.int32(len(values))
        for value in values:
            write_item(value)

    def to_bytes(self) -> bytes:
        return bytes(self._parts)

    def _number(self, form: struct.Struct, value: int) -> None:
        try:
            self._parts += form.pack(value)
        except struct.error as error:
            raise DataError(f"{value!r} does not fit into {form.size} bytes") from error


def encoded_text(text: str) -> bytes:
    """Encode a string as UTF-8; raise `DataError` if that is impossible or if the result is too
    long for Kafka's string type."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{text!r} is not Unicode text: {error.reason}") from error
    if len(data) > MAX_STRING_BYTES:
        raise DataError(f"a string of {len(data)} bytes exceeds the limit of {MAX_STRING_BYTES}")
    return data
