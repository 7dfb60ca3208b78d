"""Avro schemas: parsing, canonical text, and compatibility under Avro's schema resolution rules.

Two libraries parse every schema, because each accepts some invalid schemas: Apache `avro` accepts a
default of the wrong type, `fastavro` accepts invalid names and duplicate fields.
avro_compatibility.py compares schemas. Like Avro's Java library, it compares record names without
their namespaces, and it ignores logical types: decimals with different scales are compatible.

Each reference names a type in another schema by its full name. Referenced schemas are parsed before
the schema itself, so that their types are already defined.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from typing import Any

from strandlog.broker.schemas.avro_compatibility import avro_incompatibilities
from strandlog.broker.schemas.schema import Schema, parsed_json
from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.registered_schema import Resolved

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
WHAT = "schema (Avro)"
# The keys that follow type, name and namespace in each kind of schema, in this order; all other
# keys come after them, sorted.
_ORDER = {
    "record": ("doc", "fields"),
    "error": ("doc", "fields"),
    "enum": ("doc", "symbols", "default"),
    "fixed": ("doc", "size"),
    "array": ("items",),
    "map": ("values",),
}
_FIELD_ORDER = ("name", "type", "doc", "default", "order", "aliases")


class AvroSchemas:
    """The schema type AVRO."""

    def parse(self, schema: Schema, resolved: Resolved) -> Any:
        try:
            import avro.errors as avro_errors  # noqa: PLC0415 - 0.1 s, needed only for schemas
            import avro.schema as avro_schema  # noqa: PLC0415
            from avro.name import Names  # noqa: PLC0415
        except ImportError as missing:
            raise MissingExtraError("schemas", missing.name or "avro") from missing
        document = parsed_json(schema.text, WHAT)
        _check_with_fastavro(document, resolved)
        # Avro's specification requires parsers to ignore invalid logical types.
        warnings.filterwarnings("ignore", category=avro_errors.IgnoredLogicalType)
        names = Names()
        try:
            for each in resolved:
                found = _without_errors(parsed_json(each.text, WHAT))
                avro_schema.make_avsc_object(found, names)
            return avro_schema.make_avsc_object(_without_errors(document), names)
        except (avro_errors.AvroException, ValueError, TypeError, KeyError, AttributeError) as bad:
            raise InvalidSchemaError(f"Invalid {WHAT}: {bad}") from None
        except RecursionError:
            raise InvalidSchemaError(f"Invalid {WHAT}: it is nested too deeply") from None

    def canonical(self, schema: Schema, resolved: Resolved) -> str:
        del resolved
        try:
            return _dump(_Canonical().schema(parsed_json(schema.text, WHAT), ""))
        except RecursionError:
            raise InvalidSchemaError(f"Invalid {WHAT}: it is nested too deeply") from None

    def incompatibilities(self, reader: Any, writer: Any) -> list[str]:
        return avro_incompatibilities(reader, writer)


def _check_with_fastavro(document: Any, resolved: Resolved) -> None:
    try:
        from fastavro.schema import (  # noqa: PLC0415
            SchemaParseException,
            UnknownType,
            parse_schema,
        )
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "fastavro") from missing
    names: dict[str, Any] = {}
    try:
        for each in resolved:
            parse_schema(parsed_json(each.text, WHAT), named_schemas=names)
        parse_schema(copy.deepcopy(document), named_schemas=names)
    except UnknownType as bad:
        raise InvalidSchemaError(f"Invalid {WHAT}: unknown type {bad.name!r}") from None
    except (SchemaParseException, ValueError, TypeError, KeyError) as bad:
        raise InvalidSchemaError(f"Invalid {WHAT}: {bad}") from None
    except (AttributeError, RecursionError):
        raise InvalidSchemaError(f"Invalid {WHAT}: it has an unexpected structure") from None


def _without_errors(document: Any) -> Any:
    """Return the schema with each error type replaced by a record, because `avro` cannot compare
    error types."""
    if isinstance(document, list):
        return [_without_errors(each) for each in document]
    if not isinstance(document, dict):
        return document
    found = dict(document)
    if found.get("type") == "error":
        found["type"] = "record"
    for name in ("type", "items", "values"):
        if isinstance(found.get(name), dict | list):
            found[name] = _without_errors(found[name])
    if isinstance(found.get("fields"), list):
        found["fields"] = [_without_errors(each) for each in found["fields"]]
    return found


class _Canonical:
    """Rewrites a schema with a fixed key order and without redundant parts, such as a namespace
    that equals the enclosing one. Structures that it does not know are left unchanged."""

    def schema(self, found: Any, space: str) -> Any:
        if isinstance(found, list):
            return [self.schema(each, space) for each in found]
        if isinstance(found, str):
            return found if found in PRIMITIVES else self._name(found, space)
        if not isinstance(found, dict):
            return found
        kind = found.get("type")
        if not isinstance(kind, str):
            return self.schema(kind, space) if set(found) == {"type"} else found
        if kind not in _ORDER:
            rest = {key: found[key] for key in sorted(found) if key != "type"}
            return {"type": self.schema(kind, space), **rest} if rest else self.schema(kind, space)
        return self._complex(kind, found, space)

    def _complex(self, kind: str, found: dict[str, Any], space: str) -> Any:
        written: dict[str, Any] = {"type": kind}
        inner = space
        if kind in NAMED:
            name, inner = _full_name(found, space)
            written["name"] = name
            if inner != space:
                written["namespace"] = inner
        for key in _ORDER[kind]:
            if key in found:
                written[key] = self._part(key, found[key], inner)
        used = {"type", "name", "namespace", *_ORDER[kind]}
        written |= {key: found[key] for key in sorted(found) if key not in used}
        return written

    def _part(self, key: str, value: Any, space: str) -> Any:
        if key == "fields" and isinstance(value, list):
            return [self._field(each, space) for each in value]
        return self.schema(value, space) if key in ("items", "values") else value

    def _field(self, found: Any, space: str) -> Any:
        if not isinstance(found, dict):
            return found
        return dict(self._field_parts(found, space))

    def _field_parts(self, found: dict[str, Any], space: str) -> Iterator[tuple[str, Any]]:
        for key in _FIELD_ORDER:
            if key == "type" and key in found:
                yield key, self.schema(found[key], space)
            elif key in found and (key, found[key]) != ("order", "ascending"):
                yield key, found[key]
        for key in sorted(found):
            if key not in _FIELD_ORDER:
                yield key, found[key]

    def _name(self, name: str, space: str) -> str:
        """Return the name of a type, without its namespace if that is the enclosing one."""
        before, dot, last = name.rpartition(".")
        return last if dot and before == space else name


def _full_name(found: dict[str, Any], space: str) -> tuple[Any, str]:
    """Return the simple name and the namespace of a named schema."""
    name, given = found.get("name"), found.get("namespace")
    if isinstance(name, str) and "." in name:
        before, _, last = name.rpartition(".")
        return last, before
    return name, given if isinstance(given, str) else space


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
