"""Protobuf schemas: parsing, canonical form, and compatibility under Confluent's rules.

A schema is the text of a .proto file or a base64-encoded FileDescriptorProto, which the Python
serializer sends. Both forms of a file are the same schema: its identity is the descriptor without
the file name, comments and default JSON names. Text is compiled by protoc, which the server
provides (`ProtoCompiler`). Each reference names an imported file; files with Google's well-known
types need no reference.

    change to a field                                          compatible
      renamed                                                  yes
      added                                                    yes, unless it is `required`
      removed                                                  yes, unless it is `required` or in a
                                                               oneof
      type changed within one of these groups:                 yes
        int32, int64, uint32, uint64, bool and enum
        sint32 and sint64; string and bytes
        fixed32 and sfixed32; fixed64 and sfixed64
      any other change of type                                 no
      made required, or no longer required                     no
      made repeated, or no longer repeated                     for string and bytes only
      moved out of a oneof                                     no
      moved into a oneof                                       yes, unless another field of the
                                                               oneof existed before

Removing a message and changing the package are incompatible. Enum values may change.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from strandlog.broker.schemas.schema import Schema
from strandlog.config.limits.schemas import SCHEMA_MAX_MESSAGES
from strandlog.errors import InvalidSchemaError
from strandlog.formats.protobuf.files import (
    WHAT,
    ProtoCompiler,
    decoded,
    descriptor_of,
    file_of,
)
from strandlog.formats.protobuf.text import proto_text
from strandlog.formats.registered_schema import Resolved

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
        file_of(found, resolved, self._compiler)  # raises if a type or a file is missing
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
        return descriptor_of(text, resolved, self._compiler)


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
        yield f"{where}: it {'became' if ours.label == REQUIRED else 'is no longer'} required"
    is_repeated = ours.label == REPEATED
    if is_repeated != (theirs.label == REPEATED) and ours.type not in (STRING, BYTES):
        yield f"{where}: it is {'now' if is_repeated else 'no longer'} repeated"
