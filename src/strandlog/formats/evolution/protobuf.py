"""Determines the columns of a Protobuf message from columns decoded with another version of it.

The decoding of a value depends only on the definitions of its fields, by number: an equal
definition in the stored schema means an equal column. A field that the writer's schema does not
define is not in the values, so it has its default. Any other field that the stored schema does not
define is inexact: the table does not contain the written value. If a definition has changed, only
int32 to int64 and enums with the same names for the writer's numbers are exact; messages and maps
are compared field by field.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa

from strandlog.errors import InvalidSchemaError
from strandlog.formats.columns.descriptors import message_class, message_names
from strandlog.formats.columns.protobuf import absent_field
from strandlog.formats.evolution.steps import (
    Copy,
    Elements,
    Fields,
    InexactError,
    Origin,
    Repeat,
    Step,
    fields_in,
)
from strandlog.formats.registered_schema import RegisteredSchema

FIRST = (0,)


def fields_of_values(
    writer: RegisteredSchema, stored: RegisteredSchema, wanted: RegisteredSchema, kinds: pa.Schema
) -> Fields:
    """Return the origin of each column in `kinds`, a subset of the wanted schema's columns."""
    before, after = (message_class(each, FIRST).DESCRIPTOR for each in (stored, wanted))
    if before.full_name != after.full_name:
        raise InexactError(after.full_name, f"the message was {before.full_name}")
    paths = [path for path, name in message_names(writer).items() if name == after.full_name]
    if not paths:
        raise InvalidSchemaError(f"schema {writer.id} has no message {after.full_name}")
    written = message_class(writer, paths[0]).DESCRIPTOR
    return _fields(written, before, after, pa.struct(list(kinds)), wanted.id, "")


def _fields(writer: Any, stored: Any, wanted: Any, kind: Any, schema_id: int, path: str) -> Fields:
    named = ((field.name, field) for field in wanted.fields)
    return fields_in(kind, named, path, partial(_origin, writer, stored, schema_id))


def _origin(writer: Any, stored: Any, schema_id: int, field: Any, kind: Any, path: str) -> Origin:
    written = writer.fields_by_number.get(field.number)
    before = stored.fields_by_number.get(field.number)
    if field.is_required and (before is None or not before.is_required):
        raise InexactError(path, "it has become required")
    if written is None:
        return Origin(None, Copy() if kind is None else Repeat(absent_field(field, schema_id)))
    if before is None:
        raise InexactError(path, "the table lacks it", may_be_bad=False)
    if _rivals(before, writer) != _rivals(field, writer):
        raise InexactError(path, "its oneof has changed")
    return Origin(before.name, _step(written, before, field, kind, schema_id, path))


def _rivals(field: Any, writer: Any) -> set[int]:
    """Return the other members of the field's oneof that the writer's values can contain."""
    if field.containing_oneof is None:
        return set()
    members = {each.number for each in field.containing_oneof.fields} - {field.number}
    return members & set(writer.fields_by_number)


def _step(writer: Any, stored: Any, wanted: Any, kind: Any, schema_id: int, path: str) -> Step:
    if stored.is_repeated != wanted.is_repeated or stored.has_presence != wanted.has_presence:
        raise InexactError(path, "its label has changed")
    step = _single(writer, stored, wanted, kind, schema_id, path)
    return Elements(step) if wanted.is_repeated and not isinstance(step, Copy | Elements) else step


def _single(writer: Any, stored: Any, wanted: Any, kind: Any, schema_id: int, path: str) -> Step:
    if _form(stored) == _form(wanted):
        return Copy()
    is_wider = stored.type == stored.TYPE_INT32 and wanted.type == wanted.TYPE_INT64
    if is_wider and writer.type == stored.type:
        return Copy()
    if {writer.type, stored.type, wanted.type} == {wanted.TYPE_ENUM}:
        for number in writer.enum_type.values_by_number:
            names = {_name(each.enum_type, number) for each in (stored, wanted)}
            if len(names) > 1 or None in names:
                raise InexactError(path, "its enum has changed")
        return Copy()
    messages = [each.message_type for each in (writer, stored, wanted)]
    written, before, after = messages
    if not all(messages) or any(each.full_name.startswith("google.") for each in messages):
        raise InexactError(path, "its type has changed")
    maps = {bool(each.GetOptions().map_entry) for each in messages}
    if maps == {True}:
        keys = [_form(each.fields_by_name["key"]) for each in (before, after)]
        if keys[0] != keys[1]:
            raise InexactError(path, "its keys have changed")
        one, two, three = (each.fields_by_name["value"] for each in messages)
        inner = getattr(kind, "item_type", None)
        return Elements(_single(one, two, three, inner, schema_id, f"{path}{{}}"))
    if maps == {False}:
        inner = kind.value_type if kind is not None and wanted.is_repeated else kind
        return _fields(written, before, after, inner, schema_id, path)
    raise InexactError(path, "its type has changed")


def _name(enum: Any, number: int) -> str | None:
    found = enum.values_by_number.get(number)
    return None if found is None else str(found.name)


def _form(field: Any, inside: tuple[str, ...] = ()) -> Any:
    """Return everything about a field's type that affects how values are decoded."""
    form: list[Any] = [field.type, field.is_repeated, field.is_required]
    if field.has_default_value:
        form.append(repr(field.default_value))
    if field.enum_type is not None:
        values = field.enum_type.values_by_number.items()
        form += [field.enum_type.is_closed, *sorted((each, value.name) for each, value in values)]
    message = field.message_type
    if message is None:
        return form
    form.append(message.full_name if message.full_name.startswith("google.") else None)
    if message.full_name in inside:
        return form
    inside = (*inside, message.full_name)
    for each in message.fields:
        oneof = each.containing_oneof
        rivals = [] if oneof is None else [other.number for other in oneof.fields]
        form.append((each.number, each.name, each.has_presence, rivals, _form(each, inside)))
    return form
