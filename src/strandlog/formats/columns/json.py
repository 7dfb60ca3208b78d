"""Decodes JSON values with registered schemas into columns.

    schema                                       column
      object with properties                     struct; the root's properties are the columns
      object with additionalProperties alone     map<string, …>
      array with one schema for its items        list
      boolean, integer, number, string           bool, int64, float64, string
      [T, null], oneOf or anyOf of T and null    T
      allOf of one schema T                      T
      enum or const without a type               the type of its values, if they have only one
      [integer, number]                          float64
      everything else                            string: the JSON text, or the string itself

"Everything else" means no type, several types, tuples, other oneOf, anyOf and allOf, and objects
and arrays whose contents are not described. A `$ref` points to a part of the document, or names one
of the schema's references; a part that contains itself cannot be a column. Properties that the
schema does not list are not read. `format` has no effect: a date-time stays a string.

JSON text does not depend on the writer's schema, so values of every version are parsed into the
reader's columns, as in json_values.py: a field that does not fit its column is null and makes its
row bad, and the other fields are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from strandlog.errors import InvalidSchemaError
from strandlog.formats.columns.values import PREFIX_BYTES, Parsed
from strandlog.formats.json_values import JsonParser
from strandlog.formats.registered_schema import RegisteredSchema

PLAIN = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
TEXT = pa.string()
PYTHON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
ANY: tuple[Any, ...] = (True, {})
MAX_BYTES = 2**31 - 1  # the end for binary_slice, which requires one


class JsonReader:
    """Reads values into the columns of a JSON schema."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._types = _Types(schema)
        self._properties = self._types.properties()
        self._parsers: dict[pa.Schema, JsonParser] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._properties)

    @property
    def dropped(self) -> tuple[str, ...]:
        return ()

    def type_of(self, name: str) -> pa.DataType:
        return self._types.of(self._properties[name], name, ())

    def parse(self, values: pa.Array, writer: RegisteredSchema, schema: pa.Schema) -> Parsed:
        del writer
        parser = self._parsers.get(schema)
        if parser is None:
            parser = self._parsers[schema] = JsonParser(schema, UTC)
        found = parser.parse(pc.binary_slice(values, PREFIX_BYTES, MAX_BYTES))
        return Parsed(found.columns, found.bad, found.reasons)


class _Types:
    """Maps the parts of one schema to types."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._id = schema.id
        try:
            self._root = json.loads(schema.text)
            self._others: Mapping[str, Any] = {
                each.name: json.loads(each.text) for each in schema.references
            }
        except ValueError as error:
            raise InvalidSchemaError(f"schema {schema.id} is not JSON: {error}") from None

    def properties(self) -> dict[str, Any]:
        """Return the properties of the root."""
        root, document, _ = self._target(self._root, self._root, "the root", ())
        if isinstance(root, dict) and root.get("properties"):
            return {name: (each, document) for name, each in root["properties"].items()}
        raise InvalidSchemaError(
            f"schema {self._id} must be an object with properties; read its values as text"
        )

    def of(self, part: Any, path: str, inside: tuple[str, ...]) -> pa.DataType:
        """Return the type of a part; `inside` lists the references that lead to it."""
        schema, document = part
        schema, document, inside = self._target(schema, document, path, inside)
        if not isinstance(schema, dict):
            return TEXT
        for name in ("oneOf", "anyOf"):
            if name in schema:
                rest = [each for each in schema[name] if each != {"type": "null"}]
                is_one = len(rest) == 1 and "properties" not in schema
                return self.of((rest[0], document), path, inside) if is_one else TEXT
        if "allOf" in schema:
            is_one = len(schema["allOf"]) == 1 and not {"type", "properties"} & schema.keys()
            return self.of((schema["allOf"][0], document), path, inside) if is_one else TEXT
        kind = _kind(schema)
        if kind == "object":
            return self._object(schema, document, path, inside)
        if kind == "array":
            items = schema.get("items")
            if not isinstance(items, dict) or items in ANY or "prefixItems" in schema:
                return TEXT
            return pa.list_(self.of((items, document), f"{path}[]", inside))
        return PLAIN.get(kind, TEXT)

    def _object(
        self, schema: dict[str, Any], document: Any, path: str, inside: tuple[str, ...]
    ) -> pa.DataType:
        if schema.get("properties"):
            return pa.struct(
                [
                    (name, self.of((each, document), f"{path}.{name}", inside))
                    for name, each in schema["properties"].items()
                ]
            )
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and others not in ANY and "patternProperties" not in schema:
            return pa.map_(pa.string(), self.of((others, document), f"{path}{{}}", inside))
        return TEXT

    def _target(
        self, schema: Any, document: Any, path: str, inside: tuple[str, ...]
    ) -> tuple[Any, Any, tuple[str, ...]]:
        """Follow references; return the schema, its document and the references on the way."""
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            reference = schema["$ref"]
            key = f"{id(document)} {reference}"
            if key in inside:
                raise InvalidSchemaError(
                    f"schema {self._id}: {path}: {reference!r} leads back to itself, so it cannot "
                    f"be a column; leave it out with .schema()"
                )
            inside = (*inside, key)
            name, _, pointer = reference.partition("#")
            try:
                document = self._others[name] if name else document
                schema = _part(document, pointer)
            except (KeyError, ValueError, IndexError, TypeError):
                raise InvalidSchemaError(
                    f"schema {self._id}: {path}: {reference!r} leads to no part of the schema and "
                    f"names none of its references"
                ) from None
        return schema, document, inside


class JsonParts(_Types):
    """Navigates a schema, and finds the properties that its values cannot have.

    A part is a schema with its document. None means that nothing is known about the values there.
    """

    @property
    def root(self) -> Any:
        return self._root, self._root

    def property(self, part: Any, name: str) -> Any:
        schema, document = self._followed(part)
        found = schema.get("properties", {}).get(name)
        return None if found is None else (found, document)

    def items(self, part: Any) -> Any:
        schema, document = self._followed(part)
        is_uniform = isinstance(schema.get("items"), dict) and "prefixItems" not in schema
        return (schema["items"], document) if is_uniform else None

    def others(self, part: Any) -> Any:
        """Return the part for the values of a map."""
        schema, document = self._followed(part)
        is_map = not {"properties", "patternProperties"} & schema.keys()
        found = schema.get("additionalProperties")
        return (found, document) if is_map and isinstance(found, dict) else None

    def excludes(self, part: Any, name: str) -> bool:
        """Return whether an object that matches a part cannot have this property."""
        schema, _ = self._followed(part)
        return (
            schema.get("additionalProperties") is False
            and name not in schema.get("properties", {})
            and not schema.get("patternProperties")
        )

    def _followed(self, part: Any) -> tuple[dict[str, Any], Any]:
        """Follow references, and choices with one branch beside null."""
        schema, document = part
        inside: tuple[str, ...] = ()
        while True:
            schema, document, inside = self._target(schema, document, "", inside)
            if not isinstance(schema, dict):
                return {}, document
            found = next((each for each in ("oneOf", "anyOf", "allOf") if each in schema), None)
            if found is None:
                return schema, document
            rest = [each for each in schema[found] if each != {"type": "null"}]
            if len(rest) != 1:
                return {}, document
            schema = rest[0]


def _part(document: Any, pointer: str) -> Any:
    found = document
    for part in pointer.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        found = found[int(key)] if isinstance(found, list) else found[key]
    return found


def _kind(schema: dict[str, Any]) -> str:
    """Return the only type of a schema, ignoring null, or "" if there are several or none."""
    kinds = schema.get("type")
    if kinds is None:
        return _implied_kind(schema)
    rest = {each for each in (kinds if isinstance(kinds, list) else [kinds]) if each != "null"}
    if rest == {"integer", "number"}:
        return "number"
    return str(rest.pop()) if len(rest) == 1 else ""


def _implied_kind(schema: dict[str, Any]) -> str:
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {PYTHON_TYPES.get(type(each), "") for each in values if each is not None}
    return kinds.pop() if len(kinds) == 1 else ""
