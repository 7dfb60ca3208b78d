"""Checks how deeply an Avro value nests, without recursion.

The nesting depth depends on the value only if the schema is recursive, that is, if a record can
contain itself. fastavro recurses in C for each level, so a few thousand levels overflow the stack
and crash every task that reads the value. Values of recursive schemas are therefore checked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from strandlog.formats.avro_schema import Document

MAX_DEPTH: Final = 1000  # the same as for JSON values
_LONGEST_SHIFT: Final = 63
_FIXED_BYTES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def is_recursive(schema: Document, named: dict[str, Any]) -> bool:
    """Return whether a record of this parsed schema can contain itself."""
    done: set[str] = set()

    def visit(each: Document, inside: tuple[str, ...]) -> bool:
        if isinstance(each, list):
            return any(visit(branch, inside) for branch in each)
        if isinstance(each, str):
            return each in named and visit(named[each], inside)
        if "fields" not in each:
            inner = [each[name] for name in ("type", "items", "values") if name in each]
            return any(visit(part, inside) for part in inner if part is not each)
        name = each["name"]
        if name in inside:
            return True
        if name in done:
            return False
        found = any(visit(field["type"], (*inside, name)) for field in each["fields"])
        done.add(name)
        return found

    return visit(schema, ())


class DepthCheck:
    """Checks the nesting depth of the values of one schema."""

    def __init__(self, schema: Document, named: dict[str, Any]) -> None:
        self._schema = schema
        self._named = named
        self._value = b""
        self._at = 0

    def check(self, value: bytes, start: int) -> None:
        """Check the value at `start`; raise ValueError if it nests too deeply.

        A malformed value can raise EOFError, LookupError or ValueError.
        """
        # A short value cannot nest deeply: every array and map takes at least one byte, and so does
        # every repetition of a record inside itself.
        if (len(value) - start + 1) * (len(self._named) + 1) <= MAX_DEPTH:
            return
        self._value, self._at = value, start
        inner = self._read(self._schema)
        stack = [] if inner is None else [inner]
        while stack:
            schema = next(stack[-1], None)
            if schema is None:
                stack.pop()
                continue
            inner = self._read(schema)
            if inner is not None:
                stack.append(inner)
                if len(stack) > MAX_DEPTH:
                    raise ValueError(f"more than {MAX_DEPTH} levels")

    def _read(self, schema: Document) -> Iterator[Document] | None:
        """Skip a primitive value and return None; for a container, return its items' schemas."""
        schema = self._resolved(schema)
        kind = schema["type"]
        if kind in ("record", "error"):
            return iter([field["type"] for field in schema["fields"]])
        if kind == "array":
            return self._items(schema["items"])
        if kind == "map":
            return self._entries(schema["values"])
        if kind in ("bytes", "string"):
            self._skip(self._long())
        elif kind == "fixed":
            self._skip(schema["size"])
        elif kind in _FIXED_BYTES:
            self._skip(_FIXED_BYTES[kind])
        else:
            self._long()  # int, long, enum
        return None

    def _resolved(self, schema: Document) -> dict[str, Any]:
        """Return the schema as an object, after resolving names and reading union branches."""
        while True:
            if isinstance(schema, list):
                branch = self._long()
                if not 0 <= branch < len(schema):
                    raise LookupError(branch)
                schema = schema[branch]
            elif isinstance(schema, str):
                schema = self._named.get(schema, {"type": schema})
            elif not isinstance(schema["type"], str) or schema["type"] in self._named:
                schema = schema["type"]
            else:
                found: dict[str, Any] = schema
                return found

    def _items(self, item: Document) -> Iterator[Document]:
        while count := self._block():
            for _ in range(count):
                yield item

    def _entries(self, value: Document) -> Iterator[Document]:
        while count := self._block():
            for _ in range(count):
                self._skip(self._long())
                yield value

    def _block(self) -> int:
        count = self._long()
        if count < 0:
            self._long()  # the block's size in bytes
        return abs(count)

    def _long(self) -> int:
        found = shift = 0
        while True:
            if self._at >= len(self._value):
                raise EOFError
            byte = self._value[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
            if shift > _LONGEST_SHIFT:
                raise ValueError("a varint of more than ten bytes")

    def _skip(self, size: int) -> None:
        if size < 0 or size > len(self._value) - self._at:
            raise EOFError
        self._at += size
