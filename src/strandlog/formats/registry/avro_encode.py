"""Encodes JSON as one Avro value; the reverse of avro_decode.py.

Besides the form that decoding returns, the encoder accepts numbers for decimals, dates and times,
and a union value that names its branch, as in Avro's own JSON encoding: {"string": "x"}. If no
branch is named, the first one that fits is used. A missing field gets its default. An unknown field
is an error, because a misspelled field would otherwise be lost silently.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from strandlog.errors import DataError
from strandlog.formats.registry.avro_times import time_count
from strandlog.formats.registry.avro_tree import NO_DEFAULT, UNION, Node

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_INTEGERS = {"int": 2**31, "long": 2**63}
_FLOAT_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_SHOWN = 60


class AvroEncoder:
    """Encodes the values of one schema."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def encode(self, value: Any) -> bytes:
        """Encode a value; raise `DataError` if it does not match the schema."""
        written = bytearray()
        try:
            _write(self._node, value, written)
        except RecursionError:
            raise DataError("the value is nested too deeply") from None
        return bytes(written)


def _write(node: Node, value: Any, to: bytearray) -> None:
    if node.logical and not (isinstance(value, int) and node.kind in _INTEGERS):
        _LOGICAL.get(node.logical, _write_time)(node, value, to)
        return
    _WRITERS[node.kind](node, value, to)


def _mismatch(value: Any, expected: str) -> DataError:
    shown = repr(value)
    return DataError(f"expected {expected}, got {shown[:_SHOWN]}{'…' * (len(shown) > _SHOWN)}")


def _long(number: int, to: bytearray) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        to.append((number & 0x7F) | 0x80)
        number >>= 7
    to.append(number)


def _write_null(_: Node, value: Any, __: bytearray) -> None:
    if value is not None:
        raise _mismatch(value, "null")


def _write_boolean(_: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, bool):
        raise _mismatch(value, "a boolean")
    to.append(value)


def _write_integer(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(value, f"an integer ({node.kind})")
    limit = _INTEGERS[node.kind]
    if not -limit <= value < limit:
        raise DataError(f"{value} is out of the range of {node.kind}")
    _long(value, to)


def _write_float(node: Node, value: Any, to: bytearray) -> None:
    if isinstance(value, str):
        value = _FLOAT_WORDS.get(value, value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _mismatch(value, f"a number ({node.kind})")
    try:
        to += (_FLOAT if node.kind == "float" else _DOUBLE).pack(value)
    except (OverflowError, struct.error):
        raise DataError(f"{value} is out of the range of {node.kind}") from None


def _write_string(_: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, str):
        raise _mismatch(value, "a string")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise DataError("a string with an unpaired surrogate cannot be encoded as UTF-8") from None
    _long(len(data), to)
    to += data


def _binary(value: Any) -> bytes:
    try:
        return bytes(value.encode("latin-1"))
    except (AttributeError, UnicodeEncodeError):
        raise _mismatch(
            value, "a string with one character (\\u0000 to \\u00ff) per byte"
        ) from None


def _write_bytes(_: Node, value: Any, to: bytearray) -> None:
    data = _binary(value)
    _long(len(data), to)
    to += data


def _write_fixed(node: Node, value: Any, to: bytearray) -> None:
    data = _binary(value)
    if len(data) != node.size:
        raise DataError(f"{node.name} has {node.size} bytes, got {len(data)}")
    to += data


def _write_enum(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, str) or value not in node.symbols:
        raise _mismatch(value, f"one of {', '.join(node.symbols)}")
    _long(node.symbols.index(value), to)


def _write_array(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, list):
        raise _mismatch(value, "an array")
    if value:
        _long(len(value), to)
        for number, each in enumerate(value):
            _part(str(number), node.parts[0], each, to)
    to.append(0)


def _write_map(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, dict):
        raise _mismatch(value, "an object")
    if value:
        _long(len(value), to)
        for key, each in value.items():
            _write_string(node, key, to)
            _part(key, node.parts[0], each, to)
    to.append(0)


def _write_record(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, dict):
        raise _mismatch(value, f"an object ({node.name})")
    unknown = value.keys() - {each.name for each in node.fields}
    if unknown:
        raise DataError(f"{node.name} has no field {min(unknown)!r}")
    for each in node.fields:
        if each.name in value:
            _part(each.name, each.node, value[each.name], to)
        elif each.default is NO_DEFAULT:
            raise DataError(f"field {each.name} of {node.name} is missing and has no default")
        else:
            _part(each.name, _without_logical(each.node), each.default, to)


def _without_logical(node: Node) -> Node:
    """Return a node for encoding a field's default: a schema states the default of a decimal or
    UUID as bytes, not as text."""
    if node.kind == UNION:
        return replace(node, parts=[_without_logical(part) for part in node.parts])
    return replace(node, logical="") if node.logical in _LOGICAL else node


def _part(name: str, node: Node, value: Any, to: bytearray) -> None:
    try:
        _write(node, value, to)
    except DataError as error:
        text = str(error)
        separator = "" if text.startswith("at ") else ": "
        raise DataError(f"at /{name}{separator}{text.removeprefix('at ')}") from None


def _write_union(node: Node, value: Any, to: bytearray) -> None:
    if isinstance(value, dict) and len(value) == 1:
        [(name, inner)] = value.items()
        for index, branch in enumerate(node.parts):
            if name == branch.label:
                _long(index, to)
                _part(name, branch, inner, to)
                return
    start = len(to)
    reason: DataError | None = None
    for index, branch in enumerate(node.parts):
        _long(index, to)
        try:
            _write(branch, value, to)
        except DataError as error:
            del to[start:]
            if branch.kind != "null":
                reason = reason or error
        else:
            return
    others = [each for each in node.parts if each.kind != "null"]
    if len(others) == 1 and reason is not None and value is not None:
        raise reason
    raise _mismatch(value, " or ".join(each.label for each in node.parts))


# The default context would round a decimal to 28 digits.
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _write_decimal(node: Node, value: Any, to: bytearray) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _mismatch(value, 'a decimal such as "12.50"')
    if isinstance(value, float) and len(Decimal(str(value)).as_tuple().digits) > sys.float_info.dig:
        raise DataError(f"write {value} as a string: JSON numbers are exact only up to 15 digits")
    try:
        exact = Decimal(str(value)).scaleb(node.scale, _EXACT)
        if exact.adjusted() >= node.precision:
            raise DataError(f"{value} has more than {node.precision} digits")
        unscaled = int(exact)
    except (InvalidOperation, ValueError, OverflowError):
        raise _mismatch(value, 'a decimal such as "12.50"') from None
    if unscaled != exact:
        raise DataError(f"{value} has more than {node.scale} digits after the point")
    size = node.size if node.kind == "fixed" else (unscaled.bit_length() + 8) // 8
    try:
        data = unscaled.to_bytes(size, "big", signed=True)
    except OverflowError:
        raise DataError(f"{value} does not fit into {size} bytes") from None
    if node.kind == "bytes":
        _long(size, to)
    to += data


def _write_uuid(_: Node, value: Any, to: bytearray) -> None:
    try:
        to += UUID(value).bytes
    except (ValueError, AttributeError, TypeError):
        raise _mismatch(value, "a UUID") from None


def _write_time(node: Node, value: Any, to: bytearray) -> None:
    if not isinstance(value, str):
        raise _mismatch(value, f"a {node.logical} in ISO 8601, or a number")
    _write_integer(node, time_count(node.logical, value), to)


Write = Callable[[Node, Any, bytearray], None]
_LOGICAL: dict[str, Write] = {"decimal": _write_decimal, "uuid": _write_uuid}
_WRITERS: dict[str, Write] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _write_integer,
    "long": _write_integer,
    "float": _write_float,
    "double": _write_float,
    "string": _write_string,
    "bytes": _write_bytes,
    "fixed": _write_fixed,
    "enum": _write_enum,
    "array": _write_array,
    "map": _write_map,
    "record": _write_record,
    UNION: _write_union,
}
