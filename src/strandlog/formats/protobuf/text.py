"""Prints a FileDescriptorProto as the text of a .proto file.

Java clients and users expect text, but Python's serializer registers descriptors. Compiling the
text gives the same descriptor, except that extensions, custom options and options whose type is a
message are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

SCALARS = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
STRING, BYTES, GROUP, MESSAGE, ENUM = 9, 12, 10, 11, 14
LABELS = {1: "optional ", 2: "required ", 3: "repeated "}
INDENT = "  "
FIELD_NUMBERS = 2**29  # one above the highest field number
LAST_ENUM_NUMBER = 2**31 - 1


def proto_text(file: Any) -> str:
    """Return the source text of a file descriptor."""
    return "\n".join(_file(file)) + "\n"


def _file(file: Any) -> Iterator[str]:
    is_proto3 = file.syntax == "proto3"
    yield f'syntax = "{file.syntax or "proto2"}";'
    if file.package:
        yield f"package {file.package};"
    public, weak = set(file.public_dependency), set(file.weak_dependency)
    for number, name in enumerate(file.dependency):
        kind = "public " if number in public else "weak " if number in weak else ""
        yield f"import {kind}{_quoted(name)};"
    yield from (f"option {each};" for each in _options(file.options))
    for message in file.message_type:
        yield ""
        yield from _message(message, "", is_proto3)
    for enum in file.enum_type:
        yield ""
        yield from _enum(enum, "")
    for service in file.service:
        yield ""
        yield from _service(service)


def _message(message: Any, indent: str, is_proto3: bool) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    yield from _message_body(message, indent + INDENT, is_proto3)
    yield f"{indent}}}"


def _message_body(message: Any, inner: str, is_proto3: bool) -> Iterator[str]:
    yield from (
        f"{inner}option {each};" for each in _options(message.options, hidden={"map_entry"})
    )
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    groups = {field.type_name.rpartition(".")[2] for field in message.field if field.type == GROUP}
    printed: set[int] = set()
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield from _field(field, inner, message, maps, is_proto3=is_proto3)
        elif field.oneof_index not in printed:
            printed.add(field.oneof_index)
            yield f"{inner}oneof {message.oneof_decl[field.oneof_index].name} {{"
            for each in message.field:
                if each.HasField("oneof_index") and each.oneof_index == field.oneof_index:
                    yield from _field(
                        each, inner + INDENT, message, maps, is_proto3=is_proto3, in_oneof=True
                    )
            yield f"{inner}}}"
    for each in message.nested_type:
        if each.name not in maps and each.name not in groups:
            yield from _message(each, inner, is_proto3)
    for each in message.enum_type:
        yield from _enum(each, inner)
    if message.extension_range:
        ranges = ", ".join(_range(each.start, each.end - 1) for each in message.extension_range)
        yield f"{inner}extensions {ranges};"
    yield from _reserved(
        [(each.start, each.end - 1) for each in message.reserved_range],
        message.reserved_name,
        inner,
    )


def _field(
    field: Any,
    indent: str,
    message: Any,
    maps: dict[str, Any],
    *,
    is_proto3: bool,
    in_oneof: bool = False,
) -> Iterator[str]:
    label = LABELS[field.label]
    if in_oneof or (is_proto3 and field.label == 1 and not field.proto3_optional):
        label = ""
    kind = field.type_name if field.type in (MESSAGE, ENUM, GROUP) else SCALARS[field.type]
    entry = maps.get(kind.rpartition(".")[2]) if field.type == MESSAGE else None
    if entry is not None:
        key, value = entry.field
        named = value.type_name if value.type in (MESSAGE, ENUM) else SCALARS[value.type]
        label, kind = "", f"map<{SCALARS[key.type]}, {named}>"
    options = [*_special_options(field), *_options(field.options)]
    shown = f" [{', '.join(options)}]" if options else ""
    if field.type == GROUP:
        name = kind.rpartition(".")[2]
        [group] = [each for each in message.nested_type if each.name == name]
        yield f"{indent}{label}group {name} = {field.number}{shown} {{"
        yield from _message_body(group, indent + INDENT, is_proto3)
        yield f"{indent}}}"
        return
    yield f"{indent}{label}{kind} {field.name} = {field.number}{shown};"


def _special_options(field: Any) -> Iterator[str]:
    if field.HasField("default_value"):
        value = field.default_value
        if field.type == STRING:
            value = _quoted(value)
        elif field.type == BYTES:
            value = f'"{value}"'  # the descriptor contains the escapes
        yield f"default = {value}"
    first, *rest = field.name.split("_")
    usual = first + "".join(each[:1].upper() + each[1:] for each in rest)
    if field.json_name and field.json_name != usual:
        yield f"json_name = {_quoted(field.json_name)}"


def _enum(enum: Any, indent: str) -> Iterator[str]:
    inner = indent + INDENT
    yield f"{indent}enum {enum.name} {{"
    yield from (f"{inner}option {each};" for each in _options(enum.options))
    for value in enum.value:
        options = list(_options(value.options))
        shown = f" [{', '.join(options)}]" if options else ""
        yield f"{inner}{value.name} = {value.number}{shown};"
    yield from _reserved(
        [(each.start, each.end) for each in enum.reserved_range], enum.reserved_name, inner
    )
    yield f"{indent}}}"


def _service(service: Any) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from (f"{INDENT}option {each};" for each in _options(service.options))
    for method in service.method:
        sent = ("stream " if method.client_streaming else "") + method.input_type
        received = ("stream " if method.server_streaming else "") + method.output_type
        options = "".join(f" option {each};" for each in _options(method.options))
        body = f" {{{options} }}" if options else ";"
        yield f"{INDENT}rpc {method.name} ({sent}) returns ({received}){body}"
    yield "}"


def _reserved(ranges: list[tuple[int, int]], names: Any, indent: str) -> Iterator[str]:
    if ranges:
        yield f"{indent}reserved {', '.join(_range(*each) for each in ranges)};"
    if names:
        yield f"{indent}reserved {', '.join(_quoted(each) for each in names)};"


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last in (FIELD_NUMBERS - 1, LAST_ENUM_NUMBER) else last}"


def _options(options: Any, hidden: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """Yield the standard options that are set, as NAME = VALUE."""
    for field, value in options.ListFields():
        if field.is_extension or field.name in hidden or field.type == MESSAGE:
            continue
        for each in value if field.is_repeated else (value,):
            yield f"{field.name} = {_option_value(field, each)}"


def _option_value(field: Any, value: Any) -> str:
    if field.type == ENUM:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
