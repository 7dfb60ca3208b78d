"""Decodes any request or response according to its schema, and validates every length.

A Python function is generated and compiled for each version when it is first needed. For a small
message, it looks like this:

    def read(frame, p, left):
        v0, p = compact_text(frame, p)              group id
        v1, = unpack2(frame, p); p += 4             adjacent fixed-size fields, in one call
        c3, p = compact_count(frame, p)             array length, checked against the bytes left
        if c3 < 0: v3 = None                        a null array
        else:
            left -= c3                              limit on the total number of array items
            if left < 0: too_many()
            v3 = []
        for _ in range(c3): ...
        p = p + 1 if not frame[p] else skip_tagged_fields(frame, p)
        return new(T4, (v0, v1, v3))

A structure becomes a named tuple with exactly the fields of its version; handlers read fields that
older versions lack using `getattr` with a default. Durations become `timedelta`, and uuids
`uuid.UUID`, or None if all zero. Unknown tagged fields are skipped, because newer peers may send
them.

Every length is checked against the remaining bytes before anything is allocated, so memory use is
proportional to the bytes received. An item can be as small as the one byte of an empty name, but
its object takes far more memory, and decoding, handling and answering it takes longer than sending
it. So no array may be longer than MAX_ARRAY_ELEMENTS, and all arrays of a message together may have
at most `left` items. For the same reason, a string may have at most 32,767 bytes, as in Kafka, and
a structure at most `MAX_TAGGED_FIELDS` tagged fields.

`request_steps` generates the same function as a generator that yields after each item, so that a
request with many items does not block the event loop.

For invalid or truncated bytes, the generated functions raise `DataError`, `struct.error`,
`IndexError`, `ValueError` or `OverflowError`; the `decode_*` functions convert all of these to
`DataError`.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Generator
from dataclasses import Field, fields
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from strandlog.config.limits.kafka import MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES
from strandlog.errors import DataError
from strandlog.protocol.kafka.headers import (
    read_unsigned_varint,
    skip_tagged_fields,
)
from strandlog.protocol.kafka.schemas import (
    FIXED,
    INT16,
    INT32,
    element_of,
    is_entity,
    request_schema,
    response_schema,
    unwrap,
)

Reader = Callable[..., Any]  # takes the frame, the position and the maximum number of items

ANY_NUMBER = 2**62
_ZERO_UUID = bytes(16)
_UNREADABLE = (DataError, struct.error, IndexError, ValueError, OverflowError)


def decode_request(
    api_key: int, version: int, frame: memoryview, position: int, max_items: int = ANY_NUMBER
) -> Any:
    """Decode the body of a request; raise `DataError` if the bytes are invalid or its arrays have
    more than `max_items` items in total."""
    try:
        return request_reader(api_key, version)(frame, position, max_items)
    except _UNREADABLE as error:
        raise _unreadable("request", api_key, version, error) from error


def decode_request_steps(
    api_key: int, version: int, frame: memoryview, position: int, max_items: int
) -> Generator[None, None, Any]:
    """Decode a request like `decode_request`, yielding after each item of an array."""
    try:
        return (yield from request_steps(api_key, version)(frame, position, max_items))
    except _UNREADABLE as error:
        raise _unreadable("request", api_key, version, error) from error


def decode_response(api_key: int, version: int, frame: memoryview, position: int) -> Any:
    """Decode the body of a response; raise `DataError` if the bytes are invalid."""
    try:
        return response_reader(api_key, version)(frame, position)
    except _UNREADABLE as error:
        raise _unreadable("response", api_key, version, error) from error


def _unreadable(kind: str, api_key: int, version: int, error: Exception) -> DataError:
    return DataError(f"cannot decode a {kind} with API key {api_key}, version {version}: {error}")


@cache
def request_reader(api_key: int, version: int) -> Reader:
    """Return the reader for one version of a request."""
    return _reader(request_schema(api_key, version))


@cache
def response_reader(api_key: int, version: int) -> Reader:
    """Return the reader for one version of a response."""
    return _reader(response_schema(api_key, version))


@cache
def request_steps(api_key: int, version: int) -> Callable[..., Generator[None, None, Any]]:
    """Return the reader for one version of a request, as a generator that returns the request."""
    return _reader(request_schema(api_key, version), in_slices=True)


def _reader(schema: Any, *, in_slices: bool = False) -> Reader:
    source = _Source(in_slices=in_slices)
    source.entity("body", schema)
    return source.compiled("body")


class _Source:
    """Generates the source code of a reader function."""

    def __init__(self, *, in_slices: bool = False) -> None:
        self._in_slices = in_slices
        self._lines: list[str] = []
        self._depth = 1
        self._names: dict[str, Any] = dict(_SHARED)

    def compiled(self, result: str) -> Reader:
        head = [f"def read(frame, p, left={ANY_NUMBER}):"]
        if self._in_slices:
            head.append("    yield")  # makes it a generator even if it has no arrays
        text = "\n".join([*head, *self._lines, f"    return {result}"])
        exec(text, self._names)  # safe: the source is ours, apart from kio's field names
        read: Reader = self._names["read"]
        return read

    def entity(self, target: str, schema: Any) -> None:
        """Generate code that reads a structure into the variable `target`."""
        flexible: bool = schema.__flexible__
        plain = [field for field in fields(schema) if "tag" not in field.metadata]
        tagged = [field for field in fields(schema) if "tag" in field.metadata]
        variables = [f"{target}_{field.name}" for field in (*plain, *tagged)]
        run: list[tuple[str, str]] = []  # adjacent fixed-size fields: (variable, format character)
        for variable, field in zip(variables, plain, strict=False):
            letter = _letter(field)
            if letter:
                run.append((variable, letter))
                continue
            self._fixed(run)
            self._field(variable, field, flexible)
        self._fixed(run)
        if flexible:
            self._tagged(variables[len(plain) :], tagged)
        names = [field.name for field in (*plain, *tagged)]
        kind = namedtuple(schema.__name__, names)  # type: ignore[misc] # dynamic
        self._write(f"{target} = new({self._name(kind)}, ({''.join(v + ', ' for v in variables)}))")

    def _fixed(self, run: list[tuple[str, str]]) -> None:
        if run:
            layout = struct.Struct(">" + "".join(letter for _, letter in run))
            variables = "".join(variable + ", " for variable, _ in run)
            self._write(f"{variables}= {self._name(layout.unpack_from)}(frame, p)")
            self._write(f"p += {layout.size}")
            run.clear()

    def _field(self, target: str, field: Field[Any], flexible: bool) -> None:
        kind, nullable = unwrap(field.type)
        element = element_of(kind)
        if element is not None:
            self._array(target, element, field, flexible, nullable)
        elif not is_entity(kind):
            read = _primitive(field.metadata["kafka_type"], flexible, nullable)
            self._write(f"{target}, p = {read}(frame, p)")
        elif nullable:
            self._write(f"{target} = None")
            self._write("p += 1")
            self._block("if frame[p - 1] < 0x80:", lambda: self.entity(target, kind))
        else:
            self.entity(target, kind)

    def _array(
        self, target: str, element: Any, field: Field[Any], flexible: bool, nullable: bool
    ) -> None:
        def item() -> None:
            value = f"{target}_"
            if is_entity(element):
                self.entity(value, element)
            else:
                read = _primitive(field.metadata["kafka_type"], flexible, nullable=False)
                self._write(f"{value}, p = {read}(frame, p)")
            self._write(f"{target}.append({value})")
            if self._in_slices:
                self._write("yield")

        def items() -> None:
            self._write(f"left -= {target}_count")
            self._block("if left < 0:", lambda: self._write("too_many()"))
            self._write(f"{target} = []")

        self._write(f"{target}_count, p = {'compact_count' if flexible else 'count'}(frame, p)")
        self._block(
            f"if {target}_count < 0:",
            lambda: self._write(f"{target} = None" if nullable else f"reject_null({field.name!r})"),
        )
        self._block("else:", items)
        self._block(f"for _ in range({target}_count):", item)

    def _tagged(self, targets: list[str], tagged: list[Field[Any]]) -> None:
        if not tagged:
            self._write("p = p + 1 if not frame[p] else skip_tagged_fields(frame, p)")
            return
        defaults = [field.default for field in tagged]
        readers: dict[int, tuple[int, Reader]] = {}
        for number, field in enumerate(tagged):
            source = _Source()
            source._field("value", field, flexible=True)
            readers[field.metadata["tag"]] = (number, source.compiled("value, left"))
        read = self._name(_tagged_reader(readers, defaults))
        variables = "".join(target + ", " for target in targets)

        def usual() -> None:
            self._write("p += 1")
            self._write(f"{variables}= {self._name(defaults)}")

        self._block("if not frame[p]:", usual)
        call = f"({variables}), p, left = {read}(frame, p, left)"
        self._block("else:", lambda: self._write(call))

    def _block(self, head: str, body: Callable[[], None]) -> None:
        self._write(head)
        self._depth += 1
        body()
        self._depth -= 1

    def _write(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _name(self, value: object) -> str:
        """Make a value available to the generated function; return its name there."""
        name = f"k{len(self._names)}"
        self._names[name] = value
        return name


def _letter(field: Field[Any]) -> str:
    """Return the struct format character of a fixed-size field; "" for any other field."""
    kafka_type = field.metadata.get("kafka_type", "")
    if kafka_type not in FIXED or element_of(unwrap(field.type)[0]) is not None:
        return ""
    return "" if kafka_type.startswith("timedelta") else FIXED[kafka_type][0].format[1:]


def _tagged_reader(readers: dict[int, tuple[int, Reader]], defaults: list[Any]) -> Reader:
    def read(frame: memoryview, position: int, left: int) -> tuple[list[Any], int, int]:
        end = skip_tagged_fields(frame, position)
        found = list(defaults)
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(frame, position)
            size, position = read_unsigned_varint(frame, position)
            if tag in readers:
                number, read_value = readers[tag]
                found[number], left = read_value(frame[: position + size], position, left)
            position += size
        return found, end, left

    return read


# -- helpers called by the generated functions ---------------------------------------------------


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> str:
    """Return the name of the helper that reads one value."""
    if kafka_type in FIXED or kafka_type == "uuid":
        return kafka_type
    kind = "text" if kafka_type == "string" else "data"
    return ("nullable_" if nullable else "") + ("compact_" if flexible else "") + kind


def _sized_reader(is_text: bool, flexible: bool, nullable: bool) -> Reader:
    layout = INT16 if is_text else INT32
    unpack, length_size = layout.unpack_from, layout.size

    def read(frame: memoryview, position: int) -> tuple[str | bytes | None, int]:
        if flexible:
            length = frame[position] - 1
            position += 1
            if length > 126:
                length, position = read_unsigned_varint(frame, position - 1)
                length -= 1
        else:
            length = unpack(frame, position)[0]
            position += length_size
        end = position + length
        if length < 0:
            if not nullable:
                _reject_null("string" if is_text else "bytes")
            return None, position
        if end > len(frame):
            raise DataError(
                f"a length of {length} bytes is given, but only {len(frame) - position} remain"
            )
        if is_text:
            if length > MAX_STRING_BYTES:
                raise DataError(
                    f"a string of {length} bytes exceeds the limit of {MAX_STRING_BYTES}"
                )
            return str(frame[position:end], "utf-8"), end
        return bytes(frame[position:end]), end

    return read


def _count(frame: memoryview, position: int) -> tuple[int, int]:
    count = INT32.unpack_from(frame, position)[0]
    return _fitting(count, frame, position + 4)


def _compact_count(frame: memoryview, position: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(frame, position)
    return _fitting(count - 1, frame, position)


def _fitting(count: int, frame: memoryview, position: int) -> tuple[int, int]:
    if count > len(frame) - position:  # each item has at least one byte
        raise DataError(f"an array of {count} elements does not fit into its message")
    if count > MAX_ARRAY_ELEMENTS:
        raise DataError(
            f"an array of {count} elements is too long: the limit is {MAX_ARRAY_ELEMENTS}"
        )
    return count, position


def _too_many() -> None:
    raise DataError("its arrays have more items in total than the limit allows")


def _reject_null(name: str) -> None:
    raise DataError(f"{name} must not be null")


def _fixed_reader(kafka_type: str) -> Reader:
    layout = FIXED[kafka_type][0]
    is_time = kafka_type.startswith("timedelta")

    def read(frame: memoryview, position: int) -> tuple[Any, int]:
        value = layout.unpack_from(frame, position)[0]
        return (timedelta(milliseconds=value) if is_time else value), position + layout.size

    return read


def _read_uuid(frame: memoryview, position: int) -> tuple[UUID | None, int]:
    return _uuid_of(bytes(frame[position : position + 16])), position + 16


@lru_cache(maxsize=4096)  # requests repeat the same topic ids
def _uuid_of(data: bytes) -> UUID | None:
    if len(data) < 16:
        raise DataError("a message ends in the middle of a uuid")
    return None if data == _ZERO_UUID else UUID(bytes=data)


_SHARED: dict[str, Any] = {
    "new": tuple.__new__,
    "count": _count,
    "compact_count": _compact_count,
    "reject_null": _reject_null,
    "too_many": _too_many,
    "skip_tagged_fields": skip_tagged_fields,
    "uuid": _read_uuid,
    **{name: _fixed_reader(name) for name in FIXED},
    **{
        _primitive(kind, flexible, nullable): _sized_reader(kind == "string", flexible, nullable)
        for kind in ("string", "bytes")
        for flexible in (False, True)
        for nullable in (False, True)
    },
}
