"""Protobuf messages of a registered schema: descriptors and classes, built at run time.

Every schema has a descriptor pool of its own, because two versions of a file define the same names.
A registry returns descriptors; the .proto texts in a data folder are compiled, which needs the
`schemas` extra.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.protobuf.files import descriptor_of, file_of
from strandlog.formats.registered_schema import RegisteredSchema

CACHED_FILES = 256


@lru_cache(maxsize=CACHED_FILES)
def _file(schema: RegisteredSchema) -> Any:
    """Return the file descriptor of a schema; raise `InvalidSchemaError` if it is invalid."""
    try:
        main = descriptor_of(schema.text, schema.references, compile_proto)
        return file_of(main, schema.references, compile_proto)
    except InvalidSchemaError as error:
        raise InvalidSchemaError(f"schema {schema.id}: {error}") from None
    except MissingExtraError as missing:
        missing.add_note(f"schema {schema.id} is the text of a .proto file")
        raise


def message_class(schema: RegisteredSchema, path: tuple[int, ...]) -> Any:
    """Return the class of the message at a path; raise `InvalidSchemaError` if there is none."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - optional dependency

    found = None
    inner = list(_file(schema).message_types_by_name.values())
    for index in path:
        if not 0 <= index < len(inner):
            raise InvalidSchemaError(f"schema {schema.id} has no message at {list(path)}")
        found = inner[index]
        inner = list(found.nested_types)
    return GetMessageClass(found)


def message_names(schema: RegisteredSchema) -> dict[tuple[int, ...], str]:
    """Return the full names of all messages, by their path."""
    found: dict[tuple[int, ...], str] = {}

    def visit(messages: Any, path: tuple[int, ...]) -> None:
        for index, message in enumerate(messages):
            found[*path, index] = message.full_name
            visit(message.nested_types, (*path, index))

    visit(_file(schema).message_types_by_name.values(), ())
    return found


def message_path(schema: RegisteredSchema, name: str | None) -> tuple[int, ...]:
    """Return the path of the message with this full name; if it is None, of the first message."""
    if name is None:
        return (0,)
    names = message_names(schema)
    for path, each in names.items():
        if each == name:
            return path
    known = ", ".join(names.values()) or "none"
    raise InvalidSchemaError(f"schema {schema.id} has no message {name!r}; it has {known}")
