"""Determines the columns of a JSON schema from columns decoded with another version of it.

The decoding of JSON text depends only on the types of the columns, so columns of equal types are
copied. A property that the stored schema does not list was not decoded. It is null if the writer's
schema excludes it (`additionalProperties` is false), and inexact otherwise: the text can contain
it. Structs, lists and maps are compared part by part; any other change of a type is inexact.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandlog.formats.columns.json import JsonParts, JsonReader
from strandlog.formats.evolution.steps import (
    Copy,
    Elements,
    Fields,
    InexactError,
    Origin,
    Repeat,
    Step,
)
from strandlog.formats.registered_schema import RegisteredSchema


def fields_of_values(
    writer: RegisteredSchema, stored: RegisteredSchema, wanted: RegisteredSchema, kinds: pa.Schema
) -> Fields:
    """Return the origin of each column in `kinds`, a subset of the wanted schema's columns."""
    types = []
    for schema in (stored, wanted):
        reader = JsonReader(schema)
        names = [name for name in kinds.names if name in reader.names]
        types.append(pa.struct([(name, reader.type_of(name)) for name in names]))
    parts = JsonParts(writer)
    return _fields(types[0], types[1], parts, parts.root, "")


def _fields(stored: Any, wanted: Any, parts: JsonParts, part: Any, path: str) -> Fields:
    types = {field.name: field.type for field in stored}
    origins = {}
    for field in wanted:
        name = field.name
        place = f"{path}.{name}" if path else name
        inner = None if part is None else parts.property(part, name)
        if name in types:
            origins[name] = Origin(name, _step(types[name], field.type, parts, inner, place))
        elif part is not None and parts.excludes(part, name):
            origins[name] = Origin(None, Repeat(pa.nulls(1, field.type)))
        else:
            raise InexactError(
                place,
                f"the table lacks it, but the values may contain it: {_reason(parts, part, name)}. "
                "A null could hide a written value, so leave the column out with .schema(), or "
                "write the table again (--rebuild) while the topic still contains the records",
                may_be_bad=False,
            )
    return Fields(origins)


def _reason(parts: JsonParts, part: Any, name: str) -> str:
    """Return why values can have a property that the table lacks."""
    if part is None:
        return "their schema does not describe this part"
    if parts.property(part, name) is not None:
        return "their schema lists it"
    return (
        "their schema allows properties that it does not list (no additionalProperties: false, or "
        "a patternProperties)"
    )


def _step(stored: Any, wanted: Any, parts: JsonParts, part: Any, path: str) -> Step:
    if stored == wanted:
        return Copy()
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        return _fields(stored, wanted, parts, part, path)
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        inner = None if part is None else parts.items(part)
        return Elements(_step(stored.value_type, wanted.value_type, parts, inner, f"{path}[]"))
    if pa.types.is_map(stored) and pa.types.is_map(wanted):
        inner = None if part is None else parts.others(part)
        return Elements(_step(stored.item_type, wanted.item_type, parts, inner, f"{path}{{}}"))
    raise InexactError(path, "its type has changed")
