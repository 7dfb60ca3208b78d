"""JSON Schema: parsing, canonical text, and compatibility under the rules of Confluent's registry.

A reader is compatible with a writer if the reader's schema accepts every document that the writer's
schema accepts, as far as these rules can tell. An *open* model (`additionalProperties` is not
false) accepts properties that are not listed, so adding a property with a schema restricts it. A
*closed* model rejects them, so removing a property restricts it. Rules exist for the keywords in
`COMPARED`, and the keywords in `ANNOTATIONS` are ignored; if any other keyword differs, or a schema
that it refers to, the schemas are incompatible.

A `$ref` points into the same document (`#/…`, or `#name` with `$anchor`) or to one of the schema's
references, by name.

The work is bounded for any two schemas: SCHEMA_MAX_COMPARISONS bounds the number of steps, a part
with many keywords or required properties takes several steps, and two lists of values, or two parts
that must be equal, are compared only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
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
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
# Keywords that depend on each other, so that two schemas with different ones cannot become one.
GROUPS = (
    ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
    ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
    ("contains", "minContains", "maxContains"),
    ("if", "then", "else"),
    ("minimum", "exclusiveMinimum"),
    ("maximum", "exclusiveMaximum"),
)
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
# Keywords that apply schemas to the same value, whose properties and items are then evaluated.
APPLICATORS = frozenset({*BRANCHES, *DEPENDENCIES, "$ref", "allOf", "if", "then", "else"})
NOTHING: dict[str, Any] = {"not": {}}
KEYS_PER_STEP = 32


class Document(NamedTuple):
    """A parsed schema, and the schemas that it refers to, by name."""

    root: Any
    others: Mapping[str, Any]
    anchors: Mapping[str, Any]  # by the `$ref` that points to them

    def target(self, reference: str) -> Any:
        """Return the schema that a `$ref` points to. If there is none, raise `KeyError`,
        `IndexError`, `TypeError` or `ValueError`."""
        if reference in self.anchors:
            return self.anchors[reference]
        name, _, pointer = reference.partition("#")
        found = self.others[name] if name else self.root
        if pointer and not pointer.startswith("/"):
            raise KeyError(pointer)
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
        document = Document(root, others, _anchors({"": root, **others}))
        checked = {id(root)}
        for reference in _references(root):
            try:
                target = document.target(reference)
            except (KeyError, ValueError, IndexError, TypeError):
                raise InvalidSchemaError(
                    f"Invalid {WHAT}: $ref {reference[:200]!r} matches neither a part of the "
                    "schema nor one of its references"
                ) from None
            if id(target) not in checked:  # it may be where the library expects no schema
                checked.add(id(target))
                around = others.get(reference.partition("#")[0], root)
                _check_with_library(_in_draft_of(around, target))
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


def _in_draft_of(document: Any, part: Any) -> Any:
    """Return a part of a schema with the `$schema` of the schema."""
    draft = document.get("$schema") if isinstance(document, dict) else None
    return {**part, "$schema": draft} if isinstance(part, dict) and draft is not None else part


def _references(found: Any) -> Iterator[str]:
    """Yield every `$ref` in a schema."""
    for each in _objects(found):
        if isinstance(each.get("$ref"), str):
            yield each["$ref"]


def _objects(found: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas in it, except booleans."""
    if isinstance(found, list):
        for each in found:
            yield from _objects(each)
    elif isinstance(found, dict):
        yield found
        for key, each in found.items():
            if key in SCHEMAS_BY_NAME and isinstance(each, dict):
                yield from _objects(list(each.values()))
            elif key not in VALUES:
                yield from _objects(each)


def _anchors(documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of documents that have a name, by the `$ref` that points to them."""
    found: dict[str, Any] = {}
    for name, document in documents.items():
        for each in _objects(document):
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(each.get(keyword), str):
                    found.setdefault(f"{name}#{each[keyword]}", each)
            for keyword in ("$id", "id"):  # before draft 2019-09
                if isinstance(each.get(keyword), str) and each[keyword].startswith("#"):
                    found.setdefault(name + each[keyword], each)
    return found


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


class _Steps:
    """Counts the steps of a comparison; raises `_TooComplexError` if there are too many."""

    def __init__(self) -> None:
        self._left = SCHEMA_MAX_COMPARISONS

    def take(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooComplexError

    def take_for(self, *parts: Sized) -> None:
        """Count the steps for a look at everything in these parts; small parts are free."""
        self.take(sum(map(len, parts)) // KEYS_PER_STEP)


class _Comparison:
    """Compares a reader's schema with a writer's, part by part."""

    def __init__(self, reader: Document, writer: Document, steps: _Steps | None = None) -> None:
        """Create a comparison. A comparison of `not` schemas shares the steps of the enclosing
        one."""
        self._reader = reader
        self._writer = writer
        self._open: set[tuple[int, int]] = set()  # pairs being compared: schemas may be recursive
        self._assumptions = 0  # how often such a pair was assumed to be compatible
        self._steps = steps or _Steps()
        self._negated: _Comparison | None = None  # with reader and writer swapped, for `not`
        # What is known about pairs of parts, and the parts, whose ids must not be reused.
        self._known: dict[tuple[int, int], tuple[Any, Any, list[str]]] = {}
        self._equal: dict[tuple[int, int], tuple[Any, Any, bool]] = {}
        self._missing: dict[tuple[int, int], tuple[Any, Any, str | None]] = {}

    def differences(self, reader: Any, writer: Any, path: str) -> list[str]:
        """Return the reasons why a part of the reader's schema rejects values that the
        corresponding part of the writer's schema accepts."""
        self._steps.take()
        pair = id(reader), id(writer)
        if pair in self._open:
            self._assumptions += 1
            return []
        if pair in self._known:
            return self._known[pair][2]
        self._open.add(pair)
        before = self._assumptions
        try:
            found = list(self._compared(reader, writer, path))
        finally:
            self._open.discard(pair)
        if found or self._assumptions == before:  # else it holds only if the open pairs do
            self._known[pair] = reader, writer, found
        return found

    def _is_equal(self, ours: Any, theirs: Any) -> bool:
        """Return whether two parts are equal, and everything that they refer to."""
        pair = id(ours), id(theirs)
        if pair not in self._equal:
            self._equal[pair] = ours, theirs, self._compare_texts(ours, theirs)
        return self._equal[pair][2]

    def _compare_texts(self, ours: Any, theirs: Any) -> bool:
        seen = {(id(ours), id(theirs))}
        pending = [(ours, theirs)]
        while pending:
            one, other = pending.pop()
            if canonical_json(one) != canonical_json(other):
                return False
            for reference in _references(one):
                self._steps.take()
                targets = self._reader.target(reference), self._writer.target(reference)
                pair = id(targets[0]), id(targets[1])
                if pair not in seen:
                    seen.add(pair)
                    pending.append(targets)
        return True

    def _compared(self, reader: Any, writer: Any, path: str) -> Iterator[str]:
        reader, writer = _as_object(reader), _as_object(writer)
        if _accepts_nothing(writer) or _is_empty(reader):
            return
        if _accepts_nothing(reader):
            yield f"{path}: no value is accepted any more"
            return
        self._steps.take_for(reader, writer)
        reader, writer = _closed(reader), _closed(writer)
        for keyword in UNEVALUATED:
            if not _is_empty(_as_object(reader.get(keyword, True))):
                if not self._is_equal(reader, writer):
                    yield f"{path}: a schema with {keyword} and others beside it was changed"
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
        yield from self._values(reader, writer, path)
        yield from _limits(reader, writer, path)
        yield from self._other_keywords(reader, writer, path)
        yield from self._properties(reader, writer, path)
        yield from self._items(reader, writer, path)

    def _followed(self, document: Document, found: dict[str, Any]) -> Any:
        """Return the target of a `$ref`, combined with the keywords next to it."""
        while isinstance(reference := found.get("$ref"), str):
            self._steps.take()
            self._steps.take_for(found)
            target = document.target(reference)
            rest = {k: v for k, v in found.items() if k != "$ref" and k not in ANNOTATIONS}
            if rest:
                inner = [_as_object(target), *rest.pop("allOf", [])]
                return {**rest, "allOf": inner}
            if not isinstance(target, dict):
                return target
            found = target
        return found

    # -- combinations ------------------------------------------------------------------------------

    def _branches(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        """Yield the branches of the writer that no branch of the reader accepts. A schema with both
        oneOf and anyOf must not change."""
        if any(all(each in part for each in BRANCHES) for part in (reader, writer)):
            if not self._is_equal(reader, writer):
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
            return
        if self._negated is None:
            self._negated = _Comparison(self._writer, self._reader, self._steps)
        if self._negated.differences(writer["not"], reader["not"], path):
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
        patterns = _Patterns(writer.get("patternProperties", {}))
        for name in ours:
            if name not in theirs:
                yield from self._added(name, ours[name], their_rest, patterns, path)
        if self.differences(rest, their_rest, path):
            yield f"{path}: additionalProperties was narrowed"
        required, known = reader.get("required", []), set(writer.get("required", []))
        self._steps.take_for(required, known)
        for name in required:
            has_default = isinstance(ours.get(name), dict) and "default" in ours[name]
            if name not in known and not has_default:
                yield f"{path}: {name!r} is required and has no default"

    def _added(
        self, name: str, ours: Any, their_rest: Any, patterns: _Patterns, path: str
    ) -> Iterator[str]:
        """Yield the reason if the writer's schema, which does not list a property, accepts values
        for it that the reader's schema rejects."""
        accepted, keyword = [their_rest], "additionalProperties"
        if patterns:
            self._steps.take(len(patterns))
            if matching := patterns.matching(name):
                accepted, keyword = matching, "patternProperties"
        if all(self.differences(ours, each, path) for each in accepted):
            yield (
                f"{path}/properties/{name}: the property was added, but the other schema accepts "
                f"other values for it ({keyword})"
            )

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        first, rest = _sequence(reader)
        their_first, their_rest = _sequence(writer)
        for number in range(max(len(first), len(their_first))):
            ours = first[number] if number < len(first) else rest
            theirs = their_first[number] if number < len(their_first) else their_rest
            yield from self.differences(ours, theirs, f"{path}/items/{number}")
        yield from self.differences(rest, their_rest, f"{path}/items")

    # -- values and other keywords -----------------------------------------------------------------

    def _values(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> Iterator[str]:
        ours, theirs = _allowed_values(reader), _allowed_values(writer)
        if ours is None:
            return
        if theirs is None:
            yield f"{path}: enum or const was added"
            return
        pair = id(ours), id(theirs)
        if pair not in self._missing:
            known = {canonical_json(each) for each in ours}
            texts = map(canonical_json, theirs)
            missing = next((text for text in texts if text not in known), None)
            self._missing[pair] = ours, theirs, missing
        missing = self._missing[pair][2]
        if missing is not None:
            yield f"{path}: value {missing[:100]} is no longer accepted"

    def _other_keywords(
        self, reader: dict[str, Any], writer: dict[str, Any], path: str
    ) -> Iterator[str]:
        """Yield added or changed dependencies, and other differing keywords that have no rule."""
        for keyword in DEPENDENCIES:
            ours, theirs = reader.get(keyword, {}), writer.get(keyword, {})
            self._steps.take_for(ours)
            for name, each in ours.items():
                if name not in theirs or not self._is_equal(each, theirs[name]):
                    yield f"{path}: the dependency of {name!r} was added or changed"
        for keyword in sorted({*reader, *writer} - COMPARED - ANNOTATIONS):
            is_in_both = keyword in reader and keyword in writer
            if not is_in_both or not self._is_equal(reader[keyword], writer[keyword]):
                yield f"{path}: {keyword[:100]} differs, and no compatibility rule covers it"


class _Patterns:
    """The patternProperties of a schema."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._validators: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._schemas)

    def matching(self, name: str) -> list[Any]:
        """Return the schemas of the patterns that match a name."""
        import jsonschema_rs  # noqa: PLC0415 - the schema was parsed with it

        found = []
        for pattern, schema in self._schemas.items():
            if pattern not in self._validators:
                self._validators[pattern] = jsonschema_rs.validator_for({"pattern": pattern})
            if self._validators[pattern].is_valid(name):
                found.append(schema)
        return found


def _as_object(found: Any) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    return {} if found is True else NOTHING


def _is_empty(found: dict[str, Any]) -> bool:
    return all(key in ANNOTATIONS for key in found)


def _accepts_nothing(found: dict[str, Any]) -> bool:
    negated = found.get("not")
    return negated is True or (isinstance(negated, dict) and _is_empty(negated))


def _closed(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with additionalProperties and the like in place of unevaluatedProperties and
    unevaluatedItems, where they mean the same."""
    if not any(each in found for each in UNEVALUATED) or not APPLICATORS.isdisjoint(found):
        return found
    changed = dict(found)
    if "unevaluatedProperties" in changed:
        changed.setdefault("additionalProperties", changed.pop("unevaluatedProperties"))
    if "unevaluatedItems" in changed and "contains" not in changed:
        rest = "additionalItems" if isinstance(changed.get("items"), list) else "items"
        changed.setdefault(rest, changed.pop("unevaluatedItems"))
    return changed


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
    ) or any(_depends(one, other, group) for group in GROUPS)
    return {"allOf": [one, other]} if is_conflict else {**one, **other}


def _depends(one: dict[str, Any], other: dict[str, Any], group: Iterable[str]) -> bool:
    """Return whether two schemas have different keywords of a group."""
    ours, theirs = ({key for key in group if key in each} for each in (one, other))
    return bool(ours and theirs) and ours != theirs


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
    if ours is not None and ours != theirs and (theirs is None or not _is_multiple(theirs, ours)):
        yield f"{path}: multipleOf was added or changed"
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        yield f"{path}: pattern was added or changed"
    if reader.get("uniqueItems") and not writer.get("uniqueItems"):
        yield f"{path}: uniqueItems was added"


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _is_multiple(number: float, of: float) -> bool:
    try:
        return number % of == 0
    except OverflowError:  # an integer that no float can represent
        return False
