"""Rewrites a registered Avro schema so that fastavro returns values that fit the columns.

- In a union of several types (except [int, long] and [float, double]), each branch other than null
  becomes a record whose only field is `member0`, `member1` and so on. Avro encodes a record as its
  fields, so the bytes stay the same, but the decoded value names its branch; otherwise an enum
  symbol and a string would look the same. Each record is named after its path and type, so that
  Avro's schema resolution matches it with the corresponding branch of another schema.
- Logical types other than decimals are removed, because Arrow converts whole columns. If values are
  converted from one schema to another (`with_units`), times keep their unit in a logical type of
  our own: Avro's resolution ignores units, and milliseconds would be read as microseconds.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from strandlog.formats.avro_schema import (
    BOUNDED_DECIMAL,
    CONVERTED_TIME,
    NANOS,
    TIME_BASE,
    WIDER,
    Document,
    parsed,
    read_decimal,
)

NULLS = ("null", {"type": "null"})
MAX_MEMBERS = 64  # branches of a union that resolution matches in any order


def decodable(schema: Document, *, with_units: bool = False) -> Document:
    """Return the rewritten schema, which the decoder uses."""
    return _Rewrite(with_units).schema(schema, "strandlog")


class _Rewrite:
    def __init__(self, with_units: bool) -> None:
        self._with_units = with_units

    def schema(self, schema: Document, path: str) -> Document:
        if isinstance(schema, list):
            return self._union(schema, path)
        if not isinstance(schema, dict):
            return schema
        found = {name: value for name, value in schema.items() if name != "logicalType"}
        found |= self._logical(schema)
        for name in ("type", "items", "values"):
            if name in found:
                found[name] = self.schema(found[name], f"{path}_{name}")
        if "fields" in found:
            inner = f"strandlog_{_word(schema.get('name'))}"
            found["fields"] = [
                field | {"type": self.schema(field["type"], f"{inner}_{field['name']}")}
                for field in found["fields"]
            ]
        return found

    def _logical(self, schema: dict[str, Any]) -> dict[str, Any]:
        logical = schema.get("logicalType")
        if logical == "decimal":
            return {"logicalType": BOUNDED_DECIMAL}
        unit = str(logical).rpartition("-")[2]
        is_time = logical in TIME_BASE and TIME_BASE[logical] == schema.get("type")
        if self._with_units and is_time and unit in NANOS:
            return {"logicalType": CONVERTED_TIME, "nanos": NANOS[unit]}
        return {}

    def _union(self, branches: list[Document], path: str) -> Document:
        rest = [branch for branch in branches if branch not in NULLS]
        is_wide = all(isinstance(each, str) for each in rest) and frozenset(rest) in WIDER
        if len(rest) < 2 or is_wide:
            return [self.schema(branch, path) for branch in branches]
        members = iter(range(len(rest)))
        return [
            branch if branch in NULLS else self._member(branch, next(members), path)
            for branch in branches
        ]

    def _member(self, branch: Document, number: int, path: str) -> Document:
        place = f"{path}_{_type_name(branch)}"
        # A branch can have another number in the writer's schema, so all numbers are aliases.
        field = {
            "name": f"member{number}",
            "aliases": [f"member{other}" for other in range(MAX_MEMBERS) if other != number],
            "type": self.schema(branch, place),
        }
        return {"type": "record", "name": place, "fields": [field]}


def parsed_with_defaults(schema: Document) -> Any:
    """Parse a reader's schema and convert its default values to the form of decoded values.

    The defaults in a schema are JSON: bytes, for example, are a string with one character per byte.
    fastavro would return that string unchanged.
    """
    named: dict[str, Any] = {}
    whole = parsed(schema, named)
    fields = [field for each in named.values() for field in each.get("fields", ())]
    found = [
        _decoded(field["type"], field["default"], named) if "default" in field else None
        for field in fields
    ]
    for field, default in zip(fields, found, strict=True):
        if "default" in field:
            field["default"] = default
    return whole


def _decoded(schema: Any, value: Any, named: dict[str, Any]) -> Any:
    """Return a default value in the form of decoded values."""
    if isinstance(schema, list):
        if value is None:
            return None
        branches = [branch for branch in schema if branch not in NULLS]
        return _decoded(branches[0], value, named) if branches else value
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if kind in ("bytes", "fixed") and isinstance(value, str):
        data = value.encode("latin-1", "replace")
        is_decimal = schema.get("logicalType") == BOUNDED_DECIMAL
        return read_decimal(data, schema) if is_decimal else data
    if kind == "array" and isinstance(value, list):
        return [_decoded(schema["items"], each, named) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _decoded(schema["values"], each, named) for name, each in value.items()}
    if kind != "record":
        return value
    fields = schema["fields"]
    if is_member(schema):
        return {fields[0]["name"]: _decoded(fields[0]["type"], value, named)}
    if not isinstance(value, dict):
        return value
    return {
        field["name"]: _decoded(
            field["type"], value.get(field["name"], field.get("default")), named
        )
        for field in fields
    }


def is_member(record: dict[str, Any]) -> bool:
    """Return whether a record represents a branch of a union."""
    fields = record["fields"]
    return (
        len(fields) == 1
        and fields[0]["name"].startswith("member")
        and len(fields[0].get("aliases", ())) == MAX_MEMBERS - 1
    )


def _type_name(schema: Document) -> str:
    if isinstance(schema, dict):
        return _word(schema.get("name", schema["type"]))
    return _word(schema)


def _word(name: object) -> str:
    return re.sub(r"\W", "_", str(name))


def in_micros(kind: pa.DataType) -> pa.DataType:
    """Return a type with durations in microseconds, at any depth."""
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_micros(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(in_micros(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_micros(field.type)) for field in kind])
    return kind


def table_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the final column: times in microseconds, durations as numbers."""
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(table_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(table_type(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(table_type(field.type)) for field in kind])
    return kind
