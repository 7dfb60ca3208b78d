"""Determines the columns of an Avro schema from columns decoded with another version of it.

Three schemas are involved: the value was encoded with the writer's schema, the table's columns were
decoded with the stored schema, and the wanted schema defines the result. Avro's schema resolution
converts the value from the writer's schema to either of the others:

    field of the wanted schema              step
    with an alias in the writer's schema    copy if it is equal in the stored schema and matches one
                                            written field; otherwise inexact
    equal in the stored schema              copy
    not in the writer's schema              the default of the wanted schema
    in the writer's and stored schemas      by type: the same one, int to long, float to double, an
                                            enum with all of the writer's symbols, and records,
                                            arrays and maps recursively
    otherwise                               inexact: the table does not determine the value
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from strandlog.formats.avro_schema import Document, parsed
from strandlog.formats.columns.avro import AvroReader, document_of, inlined
from strandlog.formats.columns.values import prefix_of
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
from strandlog.formats.registered_schema import AVRO, RegisteredSchema

WIDENED = {("int", "long"), ("float", "double")}
_TYPE_ATTRIBUTES = ("type", "logicalType", "precision", "scale", "size", "symbols")
_NO_DEFAULT = object()


class _Type(NamedTuple):
    """A part of a schema, with the named types of the whole schema."""

    schema: Document
    named: dict[str, Any]

    def part(self, schema: Document) -> _Type:
        return _Type(schema, self.named)

    def resolved(self) -> Document:
        """Return the definition: a list for a union, otherwise an object."""
        found = self.schema
        while True:
            if isinstance(found, list):
                return found
            if isinstance(found, str):
                found = self.named.get(found, {"type": found})
                continue
            kind = found["type"]
            if isinstance(kind, dict | list) or kind in self.named:
                found = kind
                continue
            return found


def fields_of_values(
    writer: RegisteredSchema, stored: RegisteredSchema, wanted: RegisteredSchema, kinds: pa.Schema
) -> Fields:
    """Return the origin of each column in `kinds`, a subset of the wanted schema's columns."""
    types = _whole(writer), _whole(stored), _whole(wanted)
    definitions = [each.resolved() for each in types]
    if not all(_is_record(each) for each in definitions):
        return Fields(
            {each.name: Origin(each.name, _step(*types, each.type, each.name)) for each in kinds}
        )
    return _record(*types, pa.struct(list(kinds)), "")


def _whole(schema: RegisteredSchema) -> _Type:
    named: dict[str, Any] = {}
    return _Type(parsed(document_of(schema), named), named)


def _is_record(definition: Document) -> bool:
    return isinstance(definition, dict) and "fields" in definition


def _step(writer: _Type, stored: _Type, wanted: _Type, kind: Any, path: str) -> Step:
    if _form(stored) == _form(wanted):
        return Copy()
    (written, may_be_null), (before, _), (after, may_be_null_there) = (
        _without_null(each) for each in (writer, stored, wanted)
    )
    if may_be_null and not may_be_null_there:
        raise InexactError(path, "it is no longer nullable")
    if _form(before) == _form(after):
        return Copy()
    definitions = [each.resolved() for each in (written, before, after)]
    if any(isinstance(each, list) for each in definitions):
        raise InexactError(path, "its union has changed")
    names = {each["type"] for each in definitions}
    if all(_is_record(each) for each in definitions):
        return _record(written, before, after, kind, path)
    if names == {"array"}:
        items = _inner(written, "items"), _inner(before, "items"), _inner(after, "items")
        return Elements(_step(*items, getattr(kind, "value_type", None), f"{path}[]"))
    if names == {"map"}:
        values = _inner(written, "values"), _inner(before, "values"), _inner(after, "values")
        return Elements(_step(*values, getattr(kind, "item_type", None), f"{path}{{}}"))
    if names == {"enum"}:
        return _enum(definitions, path)
    forms = [_form(each) for each in (written, before, after)]
    plain = [next(iter(each.values())) if len(each) == 1 else None for each in forms]
    if (forms[0] == forms[1] and (plain[1], plain[2]) in WIDENED) or (
        forms[0] == forms[2] and (plain[0], plain[1]) in WIDENED
    ):
        return Copy()
    raise InexactError(path, "its type has changed")


def _inner(schema: _Type, name: str) -> _Type:
    return schema.part(schema.resolved()[name])


def _enum(definitions: list[Document], path: str) -> Step:
    written, stored, wanted = (set(each["symbols"]) for each in definitions)
    names = {_last(each["name"]) for each in definitions}
    if len(names) == 1 and written <= stored and written <= wanted:
        return Copy()
    raise InexactError(path, "its symbols have changed")


def _record(writer: _Type, stored: _Type, wanted: _Type, kind: Any, path: str) -> Fields:
    definitions = [each.resolved() for each in (writer, stored, wanted)]
    if len({_last(each["name"]) for each in definitions}) > 1:
        raise InexactError(path or "the record", "its name has changed")
    written, before, after = (
        {field["name"]: field for field in each["fields"]} for each in definitions
    )
    origin = partial(_origin, written, (before, after), (writer, stored, wanted))
    return fields_in(kind, after.items(), path, origin)


def _origin(
    written: dict[str, Any],
    others: tuple[dict[str, Any], dict[str, Any]],
    types: tuple[_Type, _Type, _Type],
    field: dict[str, Any],
    kind: Any,
    path: str,
) -> Origin:
    writer, stored, wanted = types
    name = field["name"]
    other = others[0].get(name)
    aliases = {*field.get("aliases", ()), *(other or {}).get("aliases", ())}
    if aliases & written.keys():
        is_same = other is not None and _field_form(stored, other) == _field_form(wanted, field)
        if is_same and all(_has_one_name(name, each, written) for each in others):
            return Origin(name, Copy())
        raise InexactError(path, "an alias of it is a written field")
    if name in written:
        if other is None:
            raise InexactError(path, "the table lacks it", may_be_bad=False)
        parts = (
            writer.part(written[name]["type"]),
            stored.part(other["type"]),
            wanted.part(field["type"]),
        )
        return Origin(name, _step(*parts, kind, path))
    if "default" not in field:
        raise InexactError(path, "it has no default")
    return Origin(None, Copy() if kind is None else Repeat(_default(wanted, field, kind, path)))


def _has_one_name(name: str, fields: dict[str, Any], written: dict[str, Any]) -> bool:
    """Return whether exactly one written field supplies a field, and supplies no other field."""
    names = {name, *fields[name].get("aliases", ())} & written.keys()
    rivals = [each for other, each in fields.items() if other != name]
    taken = {alias for each in rivals for alias in (each["name"], *each.get("aliases", ()))}
    return len(names) == 1 and not names & taken


def _default(wanted: _Type, field: dict[str, Any], kind: Any, path: str) -> Any:
    """Return the default of a field, obtained by converting a record without fields."""
    name = field["name"]
    made = {
        "type": "record",
        "name": "Defaults",
        "fields": [
            {
                "name": name,
                "type": inlined(field["type"], wanted.named),
                "default": field["default"],
            }
        ],
    }
    reader = RegisteredSchema(1, AVRO, json.dumps(made))
    empty = RegisteredSchema(2, AVRO, json.dumps({**made, "fields": []}))
    found = AvroReader(reader).parse(
        pa.array([prefix_of(empty.id)]), empty, pa.schema([(name, kind)])
    )
    if found.bad:
        raise InexactError(path, "its default does not fit its type")
    return found.columns[name]


def _without_null(schema: _Type) -> tuple[_Type, bool]:
    found = schema.resolved()
    if not isinstance(found, list):
        return schema, False
    rest = [each for each in found if schema.part(each).resolved() != {"type": "null"}]
    return schema.part(rest[0] if len(rest) == 1 else rest), len(rest) < len(found)


def _field_form(schema: _Type, field: dict[str, Any], inside: tuple[str, ...] = ()) -> Any:
    return (
        field["name"],
        sorted(field.get("aliases", ())),
        json.dumps(field["default"], sort_keys=True) if "default" in field else _NO_DEFAULT,
        _form(schema.part(field["type"]), inside),
    )


def _form(schema: _Type, inside: tuple[str, ...] = ()) -> Any:
    """Return everything about a type that affects how values are converted to it."""
    found = schema.resolved()
    if isinstance(found, list):
        return [_form(schema.part(each), inside) for each in found]
    form: dict[str, Any] = {name: found[name] for name in _TYPE_ATTRIBUTES if name in found}
    if "name" in found:
        if found["name"] in inside:
            return _last(found["name"])
        inside = (*inside, found["name"])
        form["name"] = _last(found["name"])
        form["aliases"] = sorted(found.get("aliases", ()))
    if found["type"] == "enum" and "default" in found:
        form["default"] = found["default"]
    for name in ("items", "values"):
        if name in found:
            form[name] = _form(schema.part(found[name]), inside)
    if "fields" in found:
        form["fields"] = [_field_form(schema, field, inside) for field in found["fields"]]
    return form


def _last(name: str) -> str:
    return name.rpartition(".")[2]
