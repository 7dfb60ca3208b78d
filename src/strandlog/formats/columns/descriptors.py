"""Protobuf messages of a registered schema: descriptors and classes, built at run time.

Every schema has a descriptor pool of its own, because two versions of a file define the same names.
Google's own files are added from the `protobuf` package when they are imported.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.registered_schema import RegisteredSchema

GOOGLE = "google/protobuf/"
GOOGLE_FILES = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
    *("struct", "timestamp", "type", "wrappers"),
)
CACHED_FILES = 256


@lru_cache(maxsize=CACHED_FILES)
def file_of(schema: RegisteredSchema) -> Any:
    """Return the file descriptor of a schema; raise `InvalidSchemaError`."""
    try:
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise MissingExtraError("spark", missing.name or "protobuf") from missing
    pool = DescriptorPool()
    names = {each.name for each in schema.references}
    try:
        for each in schema.references:
            if not each.name.startswith(GOOGLE):
                _add(pool, _decoded(each.text, schema.id), each.name)
        main = _decoded(schema.text, schema.id)
        name = next(each for each in _file_names() if each not in names)
        _add(pool, main, name)
        return pool.FindFileByName(name)
    except (TypeError, KeyError) as error:
        raise InvalidSchemaError(f"schema {schema.id} is not complete: {error}") from None


def message_at(schema: RegisteredSchema, path: tuple[int, ...]) -> Any:
    """Return the descriptor of the message at a path; raise `InvalidSchemaError`."""
    found = None
    inner = list(file_of(schema).message_types_by_name.values())
    for index in path:
        if not 0 <= index < len(inner):
            raise InvalidSchemaError(f"schema {schema.id} has no message at {list(path)}")
        found = inner[index]
        inner = list(found.nested_types)
    return found


def message_class(schema: RegisteredSchema, path: tuple[int, ...]) -> Any:
    """Return the class of the message at a path."""
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - an extra

    return GetMessageClass(message_at(schema, path))


def message_names(schema: RegisteredSchema) -> dict[tuple[int, ...], str]:
    """Return the full names of all messages, by their path."""
    found: dict[tuple[int, ...], str] = {}

    def visit(messages: Any, path: tuple[int, ...]) -> None:
        for index, message in enumerate(messages):
            found[*path, index] = message.full_name
            visit(message.nested_types, (*path, index))

    visit(file_of(schema).message_types_by_name.values(), ())
    return found


def message_path(schema: RegisteredSchema, name: str | None) -> tuple[int, ...]:
    """Return the path of the message with a full name, by default of the first one."""
    names = message_names(schema)
    if name is None:
        return (0,)
    for path, each in names.items():
        if each == name:
            return path
    known = ", ".join(names.values()) or "none"
    raise InvalidSchemaError(f"schema {schema.id} has no message {name!r}; it has {known}")


def _decoded(text: str, schema_id: int) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidSchemaError(
            f"schema {schema_id} is not a FileDescriptorProto in base64; ask the registry for it "
            f"with format=serialized"
        ) from None


def _add(pool: Any, file: Any, name: str) -> None:
    file.name = name
    for each in file.dependency:
        if each.startswith(GOOGLE):
            _add_google_file(pool, each)
    pool.Add(file)


def _add_google_file(pool: Any, name: str) -> None:
    """Add one of Google's files and those that it imports; do nothing for any other file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - an extra

    short = name.removeprefix(GOOGLE).removesuffix(".proto")
    if short not in GOOGLE_FILES:
        return
    file = FileDescriptorProto()
    import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.CopyToProto(file)
    for each in file.dependency:
        _add_google_file(pool, each)
    pool.Add(file)


def _file_names() -> Iterator[str]:
    number = 0
    while True:
        yield f"schema{number or ''}.proto"
        number += 1
