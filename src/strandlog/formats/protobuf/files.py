"""Builds the descriptor of a Protobuf schema, with the descriptors of all files that it imports.

A schema is the text of a .proto file, or a FileDescriptorProto in base64, the form that Python's
serializer registers. A compiler (compiler.py) turns text into a descriptor. A reference names an
imported file. Google's own types need no reference.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.protobuf.text import proto_text
from strandlog.formats.registered_schema import Resolved

WHAT = "schema (Protobuf)"
MAIN_FILE = "schema.proto"  # name of the schema's own file, unless a reference has that name
GOOGLE_FILES = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
    *("struct", "timestamp", "type", "wrappers"),
)
GOOGLE = "google/protobuf/"

# Compiles .proto files, given as text by file name; returns the first file's serialized
# FileDescriptorProto, or raises `InvalidSchemaError`.
ProtoCompiler = Callable[[Mapping[str, str]], bytes]


def decoded(text: str) -> Any:
    """Decode a descriptor in base64; return None if the text is something else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = descriptor_class()
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        return kind.FromString(data) if data else None
    except DecodeError:
        return None


def descriptor_class() -> Any:
    """Return the class FileDescriptorProto."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "protobuf") from missing
    return FileDescriptorProto


def descriptor_of(text: str, resolved: Resolved, compiler: ProtoCompiler | None) -> Any:
    """Return the FileDescriptorProto of a schema; raise `InvalidSchemaError` if it is invalid."""
    found = decoded(text)
    if found is not None:
        return found
    if compiler is None:
        raise InvalidSchemaError(f"Invalid {WHAT}: this process cannot compile .proto files")
    names = {each.name for each in resolved}
    name = next(each for each in _file_names() if each not in names)
    files = {name: text}
    for each in resolved:
        descriptor = decoded(each.text)
        files[each.name] = each.text if descriptor is None else proto_text(descriptor)
    return descriptor_class().FromString(compiler(files))


def file_of(descriptor: Any, resolved: Resolved, compiler: ProtoCompiler | None) -> Any:
    """Return the FileDescriptor of a schema, in a pool with all files that it imports.

    Raise `InvalidSchemaError` if a type or a file that the schema uses does not exist.
    """
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415

    pool = DescriptorPool()
    parsed: dict[str, Any] = {}
    for number, each in enumerate(resolved):
        if not each.name.startswith(GOOGLE):
            parsed[each.name] = descriptor_of(each.text, resolved[:number], compiler)
            parsed[each.name].name = each.name
    added = type(descriptor)()
    added.CopyFrom(descriptor)
    added.name = next(each for each in _file_names() if each not in parsed)
    try:
        for found in [*parsed.values(), added]:
            for name in found.dependency:
                _add_google_file(pool, name)
            pool.Add(found)
        return pool.FindFileByName(added.name)
    except (TypeError, KeyError) as bad:
        raise InvalidSchemaError(f"Invalid {WHAT}: {bad}") from None


def _file_names() -> Iterator[str]:
    yield MAIN_FILE
    for number in range(10_000):
        yield f"schema{number}.proto"


def _add_google_file(pool: Any, name: str) -> None:
    """Add one of Google's files and the files it imports; do nothing for any other file."""
    short = name.removeprefix(GOOGLE).removesuffix(".proto")
    if not name.startswith(GOOGLE) or short not in GOOGLE_FILES:
        return
    found = descriptor_class()()
    import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.CopyToProto(found)
    for dependency in found.dependency:
        _add_google_file(pool, dependency)
    pool.Add(found)
