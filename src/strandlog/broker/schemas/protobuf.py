"""Protobuf schemas: parsing, canonical form, and compatibility by Confluent's rules.

A schema is the text of a .proto file, or a FileDescriptorProto in base64, which Python's serializer
sends. Both forms of one file are the same schema: its identity is the descriptor without file name,
comments and default JSON names. Text is compiled by protoc, which the server provides
(`ProtoCompiler`); a reference is an imported file, by its name. Google's own types need none.

    change of a field                                          compatible
      added, removed or renamed                                yes, unless it is `required`
      int32 int64 uint32 uint64 bool enum, among each other    yes
      sint32 sint64 · string bytes · fixed32 sfixed32 ·        yes, in each group
      fixed64 sfixed64
      any other type                                           no
      repeated or not                                          strings and bytes only
      removed from a oneof, or several moved into one          no

A message that is removed and a changed package are incompatible. Enum values may change.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from strandlog.broker.schemas.proto_text import proto_text
from strandlog.broker.schemas.schema import ProtoCompiler, Resolved, Schema
from strandlog.config.limits import SCHEMA_MAX_MESSAGES
from strandlog.errors import InvalidSchemaError, MissingExtraError

WHAT = "Protobuf schema"
MAIN_FILE = "schema.proto"  # as long as no reference has that name
GOOGLE_FILES = (
    *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
    *("struct", "timestamp", "type", "wrappers"),
)
GOOGLE = "google/protobuf/"

# Field types, as in FieldDescriptorProto.
ENUM, GROUP, MESSAGE, STRING, BYTES = 14, 10, 11, 9, 12
REQUIRED, REPEATED = 2, 3
WIRE_GROUPS = (
    frozenset({3, 4, 5, 8, 13, ENUM}),  # int64, uint64, int32, bool, uint32
    frozenset({17, 18}),  # sint32, sint64
    frozenset({STRING, BYTES}),
    frozenset({7, 15}),  # fixed32, sfixed32
    frozenset({6, 16}),  # fixed64, sfixed64
)


class ProtobufSchemas:
    """The schema type PROTOBUF."""

    def __init__(self, compiler: ProtoCompiler | None) -> None:
        self._compiler = compiler

    def parse(self, schema: Schema, resolved: Resolved) -> Any:
        found = self._descriptor(schema.text, resolved)
        if found.syntax == "editions":
            raise InvalidSchemaError(f"Invalid {WHAT}: editions are not supported; use proto3")
        self._check(found, resolved)
        return found

    def canonical(self, schema: Schema, resolved: Resolved) -> str:
        found = self._descriptor(schema.text, resolved)
        found.ClearField("name")
        found.ClearField("source_code_info")
        for message in found.message_type:
            _clear_json_names(message)
        return base64.b64encode(found.SerializeToString(deterministic=True)).decode()

    def incompatibilities(self, reader: Any, writer: Any) -> list[str]:
        messages = []
        if reader.package != writer.package:
            messages.append(f"the package changed from {writer.package!r} to {reader.package!r}")
        messages += _messages(reader.message_type, writer.message_type, "")
        return messages[:SCHEMA_MAX_MESSAGES]

    # -- forms -------------------------------------------------------------------------------------

    def text(self, schema: Schema) -> str:
        """Return a schema as the text of a .proto file."""
        found = decoded(schema.text)
        return schema.text if found is None else proto_text(found)

    def serialized(self, schema: Schema, resolved: Resolved) -> str:
        """Return a schema as a FileDescriptorProto in base64."""
        if decoded(schema.text) is not None:
            return schema.text
        found = self._descriptor(schema.text, resolved)
        return base64.b64encode(found.SerializeToString()).decode()

    def _descriptor(self, text: str, resolved: Resolved) -> Any:
        found = decoded(text)
        if found is not None:
            return found
        if self._compiler is None:
            raise InvalidSchemaError(f"Invalid {WHAT}: this process cannot compile .proto files")
        names = {each.name for each in resolved}
        name = next(each for each in _file_names() if each not in names)
        files = {name: text}
        for each in resolved:
            descriptor = decoded(each.text)
            files[each.name] = each.text if descriptor is None else proto_text(descriptor)
        return _descriptor_class().FromString(self._compiler(files))

    def _check(self, descriptor: Any, resolved: Resolved) -> None:
        """Raise if a type or a file that the schema uses does not exist."""
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415

        pool = DescriptorPool()
        parsed: dict[str, Any] = {}
        for number, each in enumerate(resolved):
            if not each.name.startswith(GOOGLE):
                parsed[each.name] = self._descriptor(each.text, resolved[:number])
                parsed[each.name].name = each.name
        added = type(descriptor)()
        added.CopyFrom(descriptor)
        added.name = next(each for each in _file_names() if each not in parsed)
        try:
            for found in [*parsed.values(), added]:
                for name in found.dependency:
                    _add_google_file(pool, name)
                pool.Add(found)
            pool.FindFileByName(added.name)
        except (TypeError, KeyError) as bad:
            raise InvalidSchemaError(f"Invalid {WHAT}: {bad}") from None


def decoded(text: str) -> Any:
    """Return the descriptor that a text has in base64; None if it is something else."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = _descriptor_class()
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        return kind.FromString(data) if data else None
    except DecodeError:
        return None


def _descriptor_class() -> Any:
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "protobuf") from missing
    return FileDescriptorProto


def _file_names() -> Iterator[str]:
    yield MAIN_FILE
    for number in range(10_000):
        yield f"schema{number}.proto"


def _add_google_file(pool: Any, name: str) -> None:
    """Add one of Google's files and those that it imports; do nothing for any other file."""
    short = name.removeprefix(GOOGLE).removesuffix(".proto")
    if not name.startswith(GOOGLE) or short not in GOOGLE_FILES:
        return
    found = _descriptor_class()()
    import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.CopyToProto(found)
    for dependency in found.dependency:
        _add_google_file(pool, dependency)
    pool.Add(found)


def _clear_json_names(message: Any) -> None:
    for field in [*message.field, *message.extension]:
        if field.json_name == _default_json_name(field.name):
            field.ClearField("json_name")
    for nested in message.nested_type:
        _clear_json_names(nested)


def _default_json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in rest)


# -- compatibility ---------------------------------------------------------------------------------


class _Message(NamedTuple):
    fields: dict[int, Any]
    oneofs: dict[int, str]  # field number → name of its oneof


def _messages(reader: Any, writer: Any, path: str) -> Iterator[str]:
    ours = {each.name: each for each in reader}
    for each in writer:
        where = f"{path}{each.name}"
        if each.name in ours:
            found = ours[each.name]
            yield from _fields(_message(found), _message(each), where)
            yield from _messages(found.nested_type, each.nested_type, f"{where}.")
        elif not each.options.map_entry:
            yield f"message {where} was removed"


def _message(found: Any) -> _Message:
    oneofs = {
        field.number: found.oneof_decl[field.oneof_index].name
        for field in found.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }
    return _Message({field.number: field for field in found.field}, oneofs)


def _fields(reader: _Message, writer: _Message, path: str) -> Iterator[str]:
    for number in sorted({*reader.fields, *writer.fields}):
        ours, theirs = reader.fields.get(number), writer.fields.get(number)
        where = f"field {number} of {path}"
        if ours is None or theirs is None:
            field: Any = theirs if ours is None else ours
            if field.label == REQUIRED:
                yield f"{where}: a required field was {'removed' if ours is None else 'added'}"
        else:
            yield from _field(ours, theirs, where)
        if number in writer.oneofs and number not in reader.oneofs:
            yield f"{where} was removed from oneof {writer.oneofs[number]}"
    moved: dict[str, list[int]] = {}
    for number, oneof in reader.oneofs.items():
        if number in writer.fields and number not in writer.oneofs:
            moved.setdefault(oneof, []).append(number)
    for oneof, numbers in moved.items():
        others = [number for number, name in reader.oneofs.items() if name == oneof]
        existed = [number for number in others if number in writer.fields]
        if len(numbers) > 1 or len(existed) > 1:
            yield f"several fields of {path} were moved into oneof {oneof}"


def _field(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    if ours.type != theirs.type and not any(
        {ours.type, theirs.type} <= group for group in WIRE_GROUPS
    ):
        yield f"{where}: its type changed"
    elif ours.type in (MESSAGE, GROUP) and ours.type_name != theirs.type_name:
        yield f"{where}: its type changed from {theirs.type_name} to {ours.type_name}"
    if (ours.label == REQUIRED) != (theirs.label == REQUIRED):
        yield f"{where}: it was made required, or not required"
    is_repeated = ours.label == REPEATED
    if is_repeated != (theirs.label == REPEATED) and ours.type not in (STRING, BYTES):
        yield f"{where}: it is {'now' if is_repeated else 'no longer'} repeated"
