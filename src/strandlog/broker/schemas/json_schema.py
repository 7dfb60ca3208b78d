"""JSON Schema: parsing, canonical text, and compatibility under the rules of Confluent's registry.

A reader is compatible with a writer if the reader's schema accepts every document that the writer's
schema accepts, as far as these rules can tell. An *open* model (`additionalProperties` is not
false) accepts properties that are not listed, so adding a property with a schema restricts it. A
*closed* model rejects them, so removing a property restricts it. Rules exist for the keywords in
`COMPARED`, and the keywords in `ANNOTATIONS` are ignored; if any other keyword differs, the schemas
are incompatible.

A `$ref` points into the same document (`#/…`) or to one of the schema's references, by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from strandlog.broker.schemas.schema import Schema, canonical_json, parsed_json
from strandlog.config.limits.schemas import SCHEMA_MAX_COMPARISONS, SCHEMA_MAX_MESSAGES
from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.registered_schema import Resolved

WHAT = "schema (JSON)"

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$id", "id", "$schema", "$comment", "format"}
    | {"deprecated", "readOnly", "writeOnly", "definitions", "$defs", "$anchor"}
    | {"contentEncoding", "contentMediaType"}
)
LOWER_LIMITS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_LIMITS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
BRANCHES = ("oneOf", "anyOf")
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")
COMPARED = frozenset(
    {*LOWER_LIMITS, *UPPER_LIMITS, *BRANCHES, *DEPENDENCIES, "multipleOf", "pattern"}
    | {"uniqueItems", "type", "enum", "const", "required", "properties", "additionalProperties"}
    | {"items", "prefixItems", "additionalItems", "allOf", "not", "$ref"}
)
# Keywords whose value maps names to schemas; such a name can look like a keyword.
SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "definitions", "$defs", "dependencies", "dependentSchemas"}
)
VALUES = frozenset({"enum", "const", "default", "examples"})  # keywords that contain no schemas
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
NOTHING: dict[str, Any] = {"not": {}}


class Document(NamedTuple):
    """A parsed schema, and the schemas that it refers to, by name."""

    root: Any
    others: Mapping[str, Any]

    def target(self, reference: str) -> Any:
        """Return the schema that a `$ref` points to. If there is none, raise `KeyError`,
        `IndexError`, `TypeError` or `ValueError`."""
        name, _, pointer = reference.partition("#")
        found = self.others[name] if name else self.root
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found


class JsonSchemas:
    """The schema type JSON."""

    def parse(self, schema: Schema, resolved: Resolved) -> Document:
        root = parsed_json(schema.text, WHAT)
        others = {
            each.name: _qualified(parsed_json(each.text, WHAT), each.name) for each in resolved
        }
        _check_with_library(root)
        document = Document(root, others)
        for reference in _references(root):
            try:
                document.target(reference)
            except (KeyError, ValueError, IndexError, TypeError):
                raise InvalidSchemaError(
                    f"Invalid {WHAT}: $ref {reference[:200]!r} matches neither a part of the "
                    "schema nor one of its references"
                ) from None
        return document

    def canonical(self, schema: Schema, resolved: Resolved) -> str:
        del resolved
        return canonical_json(parsed_json(schema.text, WHAT))

    def incompatibilities(self, reader: Document, writer: Document) -> list[str]:
        try:
            found = _Comparison(reader, writer).differences(reader.root, writer.root, "#")
        except _TooComplexError:
            return ["the schemas are too complex to compare"]
        except RecursionError:
            return ["the schemas are nested too deeply to compare"]
        return found[:SCHEMA_MAX_MESSAGES]


def _check_with_library(root: Any) -> None:
    try:
        import jsonschema_rs  # noqa: PLC0415 - needed only for schemas
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "jsonschema_rs") from missing
    if not isinstance(root, dict | bool):
        raise InvalidSchemaError(f"Invalid {WHAT}: it must be an object or a boolean")
    try:
        jsonschema_rs.meta.validate(root)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as bad:
        text = getattr(bad, "message", str(bad))
        raise InvalidSchemaError(f"Invalid {WHAT}: {text}") from None


def _references(found: Any) -> Iterator[str]:
    """Yield every `$ref` in a schema."""
    if isinstance(found, list):
        for each in found:
            yield from _references(each)
    elif isinstance(found, dict):
        if isinstance(found.get("$ref"), str):
            yield found["$ref"]
        for key, each in found.items():
            if key in SCHEMAS_BY_NAME and isinstance(each, dict):
                yield from _references(list(each.values()))
            elif key not in VALUES:
                yield from _references(each)


def _qualified(found: Any, name: str) -> Any:
    """Return a referenced schema with its name prepended to each `$ref` into the schema itself, so
    that the `$ref` has the same target wherever it is followed."""
    if isinstance(found, list):
        return [_qualified(each, name) for each in found]
    if not isinstance(found, dict):
        return found
    copied = {key: _qualified(each, name) for key, each in found.items()}
    reference = copied.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        copied["$ref"] = name + reference
    return copied


class _TooComplexError(Exception):
    pass


class _Comparison:
    """Compares a reader's schema with a writer's, part by part."""

    def __init__(
        self, reader: Document, writer: Document, counter: itertools.count[int] | None = None
    ) -> None:
        """Create a comparison. `counter` counts its steps; a comparison of `not` schemas shares the
        counter of the enclosing one."""
        self._reader = reader
        self._writer = writer
        self._open: set[tuple[int, int]] = set()  # pairs being compared: schemas may be recursive
        self._counter = counter or itertools.count(1)

    def differences(self, reader: Any, writer: Any, path: str) -> list[str]:
        """Return the reasons why a part of the reader's schema rejects values that the
        corresponding part of the writer's schema accepts."""
        if next(self._counter) > SCHEMA_MAX_COMPARISONS:
            raise _TooComplexError
        pair = id(reader), id(writer)
        if pair in self._open:
            return []
        self._open.add(pair)
        try:
            return list(self._compared(reader, writer, path))
        finally:
            self._open.discard(pair)

    def _compared(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader, writer = _as_object(reader), _as_object(writer)
        if _accepts_nothing(writer) or _is_empty(reader):
            return
        if _accepts_nothing(reader):
            yield f"{path}: no value is accepted any more"
            return
        if "$ref" in reader or "$ref" in writer:
            inner_reader = self._followed(self._reader, reader)
            inner_writer = self._followed(self._writer, writer)
            yield from self.differences(inner_reader, inner_writer, path)
            return
        if any(each in reader or each in writer for each in BRANCHES):
            yield from self._branches(reader, writer, path)
            return
        yield from self._all_of(reader, writer, path)
        yield from self._negation(reader, writer, path)
        yield from _types(reader, writer, path)
        yield from _values(reader, writer, path)
        yield from _limits(reader, writer, path)
        yield from _other_keywords(reader, writer, path)
        yield from self._properties(reader, writer, path)
        yield from self._items(reader, writer, path)

    def _followed(self, document: Document, found: dict[str, Any]) -> Any:
        """Return the target of a `$ref`, combined with the keywords next to it."""
        for _ in range(SCHEMA_MAX_COMPARISONS):
            reference = found.get("$ref")
            if not isinstance(reference, str):
                return found
            target = document.target(reference)
            rest = {k: v for k, v in found.items() if k != "$ref" and k not in ANNOTATIONS}
            if not rest:
                if not isinstance(target, dict):
                    return target
                found = target
                continue
            inner = [_as_object(target), *rest.pop("allOf", [])]
            return {**rest, "allOf": inner}
        raise _TooComplexError

    # -- combinations ------------------------------------------------------------------------------

    def _branches(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        """Yield the branches of the writer that no branch of the reader accepts. A schema with both
        oneOf and anyOf must not change."""
        if any(all(each in part for each in BRANCHES) for part in (reader, writer)):
            if canonical_json(reader) != canonical_json(writer):
                yield f"{path}: a schema with both oneOf and anyOf was changed"
            return
        choices = _split(reader)
        for number, branch in enumerate(_split(writer)):
            found = [self.differences(each, branch, path) for each in choices]
            if all(found):
                why = f": {found[0][0]}" if len(choices) == 1 else ""
                yield f"{path}: no branch accepts branch {number} of the other schema{why}"

    def _all_of(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        """Yield the parts of the reader's allOf that neither the writer's other keywords nor any
        part of its allOf implies."""
        base = {key: value for key, value in writer.items() if key != "allOf"}
        given = [base, *writer.get("allOf", [])]
        for number, each in enumerate(reader.get("allOf", [])):
            if all(self.differences(each, one, path) for one in given):
                yield f"{path}/allOf/{number}: the other schema does not imply this part"

    def _negation(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        if "not" not in reader:
            return
        if "not" not in writer:
            yield f"{path}: the keyword not was added"
        elif _Comparison(self._writer, self._reader, self._counter).differences(
            writer["not"], reader["not"], path
        ):
            yield f"{path}: the keyword not excludes more values"

    # -- objects and arrays ------------------------------------------------------------------------

    def _properties(
        self, reader: dict[str, Any], writer: dict[str, Any], path: str
    ) -> Iterator[str]:
        ours, theirs = reader.get("properties", {}), writer.get("properties", {})
        rest, their_rest = _rest(reader), _rest(writer)
        for name in theirs:
            where = f"{path}/properties/{name}"
            if name in ours:
                yield from self.differences(ours[name], theirs[name], where)
            elif self.differences(rest, theirs[name], where):
                yield f"{where}: the property was removed, and additionalProperties rejects it"
        for name in ours:
            if name not in theirs and self.differences(ours[name], their_rest, path):
                yield (
                    f"{path}/properties/{name}: the property was added, but the other schema "
                    "accepts other values for it (additionalProperties)"
                )
        if self.differences(rest, their_rest, path):
            yield f"{path}: additionalProperties was narrowed"
        for name in reader.get("required", []):
            has_default = isinstance(ours.get(name), dict) and "default" in ours[name]
            if name not in writer.get("required", []) and not has_default:
                yield f"{path}: {name!r} is required and has no default"

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        first, rest = _sequence(reader)
        their_first, their_rest = _sequence(writer)
        for number in range(max(len(first), len(their_first))):
            ours = first[number] if number < len(first) else rest
            theirs = their_first[number] if number < len(their_first) else their_rest
            yield from self.differences(ours, theirs, f"{path}/items/{number}")
        yield from self.differences(rest, their_rest, f"{path}/items")


def _as_object(found: Any) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    return {} if found is True else NOTHING


def _is_empty(found: dict[str, Any]) -> bool:
    return all(key in ANNOTATIONS for key in found)


def _accepts_nothing(found: dict[str, Any]) -> bool:
    negated = found.get("not")
    return negated is True or (isinstance(negated, dict) and _is_empty(negated))


def _split(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the branches of a schema, each combined with the keywords next to oneOf or anyOf."""
    for keyword in BRANCHES:
        if keyword in found:
            rest = {key: value for key, value in found.items() if key != keyword}
            if _is_empty(rest):
                return list(found[keyword])
            return [_combined(rest, _as_object(each)) for each in found[keyword]]
    return [found]


def _combined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts the values that both schemas accept."""
    is_conflict = any(
        key in other and other[key] != value for key, value in one.items() if key not in ANNOTATIONS
    )
    return {"allOf": [one, other]} if is_conflict else {**one, **other}


def _rest(found: dict[str, Any]) -> Any:
    """Return the schema for properties that are not listed."""
    return found.get("additionalProperties", True)


def _sequence(found: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas for the first items, and the schema for all further items."""
    items = found.get("items", True)
    if isinstance(items, list):
        return items, found.get("additionalItems", True)
    return found.get("prefixItems", []), items


# -- values ----------------------------------------------------------------------------------------


def _type_set(found: dict[str, Any]) -> set[str] | None:
    """Return the types that a schema accepts; None if it accepts all."""
    given = found.get("type")
    if given is not None:
        return {given} if isinstance(given, str) else set(given)
    values = _allowed_values(found)
    if values is None:
        return None
    return {
        TYPES.get(type(each), "array" if isinstance(each, list) else "object") for each in values
    }


def _types(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    ours = _type_set(reader) if "type" in reader else None
    if ours is None:
        return
    theirs = _type_set(writer)
    if "number" in ours:
        ours.add("integer")
    if theirs is None:
        yield f"{path}: the type was limited to {', '.join(sorted(ours))}"
    elif missing := theirs - ours:
        yield f"{path}: type {', '.join(sorted(missing))} is no longer accepted"


def _allowed_values(found: dict[str, Any]) -> list[Any] | None:
    if "const" in found:
        return [found["const"]]
    values = found.get("enum")
    return values if isinstance(values, list) else None


def _values(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    ours, theirs = _allowed_values(reader), _allowed_values(writer)
    if ours is None:
        return
    if theirs is None:
        yield f"{path}: enum or const was added"
        return
    known = {canonical_json(each) for each in ours}
    missing = [text for each in theirs if (text := canonical_json(each)) not in known]
    if missing:
        yield f"{path}: value {missing[0][:100]} is no longer accepted"


def _limits(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    for keyword in (*LOWER_LIMITS, *UPPER_LIMITS):
        ours, theirs = reader.get(keyword), writer.get(keyword)
        if ours is None or ours is False or ours == theirs:
            continue
        if not _is_number(ours) or not _is_number(theirs):
            yield f"{path}: {keyword} was added"
        elif (ours > theirs) if keyword in LOWER_LIMITS else (ours < theirs):
            yield f"{path}: {keyword} was narrowed from {theirs} to {ours}"
    ours, theirs = reader.get("multipleOf"), writer.get("multipleOf")
    if ours is not None and ours != theirs and (theirs is None or theirs % ours):
        yield f"{path}: multipleOf was added or changed"
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        yield f"{path}: pattern was added or changed"
    if reader.get("uniqueItems") and not writer.get("uniqueItems"):
        yield f"{path}: uniqueItems was added"


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _other_keywords(reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
    """Yield added or changed dependencies, and other differing keywords that have no rule."""
    for keyword in DEPENDENCIES:
        ours, theirs = reader.get(keyword, {}), writer.get(keyword, {})
        for name, each in ours.items():
            if name not in theirs or canonical_json(theirs[name]) != canonical_json(each):
                yield f"{path}: the dependency of {name!r} was added or changed"
    for keyword in sorted({*reader, *writer} - COMPARED - ANNOTATIONS):
        one, other = (canonical_json(each.get(keyword, {})) for each in (reader, writer))
        if one != other or (keyword in reader) != (keyword in writer):
            yield f"{path}: {keyword[:100]} differs, and no compatibility rule covers it"
