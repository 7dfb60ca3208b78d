"""Decodes one Avro value to objects that `json.dumps` accepts.

    null, boolean, int, long, string, array, map, record    as in JSON
    float, double                    a number, or "NaN", "Infinity", "-Infinity"
    bytes, fixed                     a string with one character per byte, as in Avro's JSON form
    enum                             its symbol
    union                            the value alone, without the name of its branch
    decimal, uuid, dates and times   text: "12.50", "2024-01-31T12:00:00Z"; a date or time that is
                                     out of range stays a number (avro_times.py)

A schema is compiled to nested functions once. Each reads from an `_Input`, whose limits bound the
work: a few bytes could announce an array of 2^60 nulls, or a linked list of a million records.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from strandlog.errors import DataError
from strandlog.formats.registry.avro_times import time_text
from strandlog.formats.registry.avro_tree import UNION, Node

MAX_DEPTH = 100  # maximum depth of nested records, as in Protobuf
MAX_DECIMAL_BYTES = 256  # conversion time grows with the square of the size
MAX_DECIMAL_SCALE = 1000  # above it, text has an exponent: a few bytes would become a long text
FREE_ITEMS = 10_000  # array and map items that are allowed beyond one per byte
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MAX_VARINT_SHIFT = 63


class _Input:
    __slots__ = ("at", "data", "depth", "items_left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.depth = 0
        self.items_left = len(data) + FREE_ITEMS

    def take(self, size: int) -> bytes:
        at = self.at
        end = at + size
        if size < 0 or end > len(self.data):
            raise DataError(f"the data ends too early, at byte {len(self.data)}")
        self.at = end
        return self.data[at:end]


Read = Callable[[_Input], Any]


class AvroDecoder:
    """Decodes the values of one schema."""

    def __init__(self, node: Node) -> None:
        self._read = _Compiler().reader(node)

    def decode(self, data: bytes) -> Any:
        """Decode a value; raise `DataError` if it does not match the schema."""
        source = _Input(data)
        try:
            found = self._read(source)
        except RecursionError:
            raise DataError("the value is nested too deeply") from None
        if source.at != len(data):
            raise DataError(f"{len(data) - source.at} bytes follow the value")
        return found


def _long(source: _Input) -> int:
    data, at = source.data, source.at
    found = shift = 0
    while True:
        if at >= len(data):
            raise DataError(f"the data ends too early, at byte {len(data)}")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            source.at = at
            return (found >> 1) ^ -(found & 1)
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise DataError("a number has more than ten bytes")


def _boolean(source: _Input) -> bool:
    byte = source.take(1)[0]
    if byte > 1:
        raise DataError(f"{byte} is not a boolean")
    return byte == 1


def _number(found: float) -> float | str:
    if math.isfinite(found):
        return found
    return "NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity"


def _float(source: _Input) -> float | str:
    return _number(_FLOAT.unpack(source.take(4))[0])


def _double(source: _Input) -> float | str:
    return _number(_DOUBLE.unpack(source.take(8))[0])


def _string(source: _Input) -> str:
    try:
        return source.take(_long(source)).decode()
    except UnicodeDecodeError:
        raise DataError("a string is not UTF-8") from None


def _bytes(source: _Input) -> str:
    return source.take(_long(source)).decode("latin-1")


_PRIMITIVES: dict[str, Read] = {
    "null": lambda _: None,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _float,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
}


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[Node, list[Read]] = {}

    def reader(self, node: Node) -> Read:
        if node.logical:
            return _logical(node)
        match node.kind:
            case "record":
                return self._record(node)
            case "array":
                return _array(self.reader(node.parts[0]))
            case "map":
                return _map(self.reader(node.parts[0]))
            case "enum":
                return _enum(node.symbols)
            case "fixed":
                return lambda source: source.take(node.size).decode("latin-1")
            case kind if kind == UNION:
                return _union([self.reader(each) for each in node.parts])
        return _PRIMITIVES[node.kind]

    def _record(self, node: Node) -> Read:
        if node in self._records:  # perhaps still empty: the schema may be recursive
            known = self._records[node]
            return lambda source: known[0](source)  # noqa: PLW0108 - `known` may still be empty
        made: list[Read] = []
        self._records[node] = made
        fields = [(each.name, self.reader(each.node)) for each in node.fields]

        def read(source: _Input) -> dict[str, Any]:
            source.depth += 1
            if source.depth > MAX_DEPTH:
                raise DataError(f"the value has more than {MAX_DEPTH} levels")
            found = {}
            for name, part in fields:
                try:
                    found[name] = part(source)
                except DataError as error:
                    raise _inside(name, error) from None
            source.depth -= 1
            return found

        made.append(read)
        return read


def _inside(name: str, error: DataError) -> DataError:
    """Return an error prefixed with the name of the innermost field in which it occurred."""
    text = str(error)
    return error if text.startswith("field ") else DataError(f"field {name}: {text}")


def _block(source: _Input) -> int:
    count = _long(source)
    if count < 0:
        _long(source)  # the size of the block in bytes
        count = -count
    source.items_left -= count
    if source.items_left < 0:
        raise DataError("an array or map has more items than bytes")
    return count


def _array(item: Read) -> Read:
    def read(source: _Input) -> list[Any]:
        found: list[Any] = []
        while count := _block(source):
            found.extend([item(source) for _ in range(count)])
        return found

    return read


def _map(value: Read) -> Read:
    def read(source: _Input) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while count := _block(source):
            for _ in range(count):
                key = _string(source)
                found[key] = value(source)
        return found

    return read


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(source: _Input) -> str:
        index = _long(source)
        if not 0 <= index < len(symbols):
            raise DataError(f"an enum has no symbol {index}")
        return symbols[index]

    return read


def _union(branches: list[Read]) -> Read:
    def read(source: _Input) -> Any:
        index = _long(source)
        if not 0 <= index < len(branches):
            raise DataError(f"a union has no branch {index}")
        return branches[index](source)

    return read


def _logical(node: Node) -> Read:
    if node.logical == "decimal":
        scale = -node.scale
        exact = Context(prec=3 * MAX_DECIMAL_BYTES, Emax=MAX_EMAX, Emin=MIN_EMIN)
        is_short = node.scale <= MAX_DECIMAL_SCALE

        def decimal(source: _Input) -> str:
            size = _long(source) if node.kind == "bytes" else node.size
            if size > MAX_DECIMAL_BYTES:
                raise DataError(f"a decimal has more than {MAX_DECIMAL_BYTES} bytes")
            unscaled = Decimal(int.from_bytes(source.take(size), "big", signed=True))
            try:
                value = unscaled.scaleb(scale, exact)
            except InvalidOperation:
                raise DataError(f"the scale {node.scale} of a decimal is too large") from None
            return f"{value:f}" if is_short else str(value)

        return decimal
    if node.logical == "uuid":
        return lambda source: str(UUID(bytes=source.take(node.size)))
    logical = node.logical
    return lambda source: time_text(logical, _long(source))
