"""Compares two Avro schemas under Avro's schema resolution rules.

A reader's type can read a writer's type under these conditions:

    primitive       the types are equal, or promoted: int → long → float → double, string ↔ bytes
    array, map      the items, or values, can be read
    fixed, enum,    the simple names are equal, or an alias of the reader's type is the full name of
    record          the writer's type
    fixed           the sizes are equal
    enum            the reader has every symbol of the writer, or a default
    record          each field of the reader can read the writer's field with its name or alias, or
                    the writer has no such field and the reader's field has a default; it is an
                    error if the name and the aliases match more than once, as in Java
    union           every branch of a writer's union can be read; at least one branch of a reader's
                    union can read the writer's type

Apache's `avro.compatibility` has the same rules, except for aliases that match more than once. The
tests compare this module with it and with Confluent's registry, which uses Apache's Java library.
Apache's Python library takes minutes for a record of ten thousand fields. This module finds the
named branches of a union by name, so its work is usually proportional to the size of both schemas;
SCHEMA_MAX_COMPARISONS bounds all other cases. Each pair of types is compared only once, so the
comparison of recursive schemas terminates.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import islice
from typing import Any

from strandlog.config.limits.schemas import (
    SCHEMA_MAX_COMPARISONS,
    SCHEMA_MAX_MESSAGES,
    SCHEMA_MAX_NAMED_SYMBOLS,
)

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"fixed", "enum", "record"})
PROMOTED = {  # reader's type → the writer's types that it can read
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}


Messages = list[str]


class _TooComplexError(Exception):
    pass


def avro_incompatibilities(reader: Any, writer: Any) -> Messages:
    """Return the reasons why a reader cannot read a writer's data; `avro.schema` parsed both."""
    try:
        return _Comparison().messages(reader, writer, "")[:SCHEMA_MAX_MESSAGES]
    except _TooComplexError:
        return ["the schemas are too complex to compare"]
    except RecursionError:
        return ["the schemas are nested too deeply to compare"]


class _Comparison:
    def __init__(self) -> None:
        self._done: dict[tuple[int, int], Messages] = {}
        self._steps = 0
        self._fields: dict[int, dict[str, Any]] = {}
        self._symbols: dict[int, frozenset[str]] = {}
        self._named_branches: dict[int, dict[tuple[str, str], list[Any]]] = {}

    def messages(self, reader: Any, writer: Any, path: str) -> Messages:
        """Compare two types; a pair that is being compared counts as compatible."""
        if reader.type == writer.type and reader.type in PRIMITIVES:
            return []
        pair = id(reader), id(writer)
        found = self._done.get(pair)
        if found is None:
            self._take_step()
            self._done[pair] = []
            found = self._compared(reader, writer, path)
            self._done[pair] = found
        return found

    def _take_step(self) -> None:
        self._steps += 1
        if self._steps > SCHEMA_MAX_COMPARISONS:
            raise _TooComplexError

    def _compared(self, reader: Any, writer: Any, path: str) -> Messages:
        if writer.type == "union":
            return self._all_branches(reader, writer, path)
        if reader.type == "union":
            return self._any_branch(reader, writer, path)
        if reader.type != writer.type:
            if writer.type in PROMOTED.get(reader.type, ()):
                return []
            return [_at(path, f"type {writer.type} cannot be read as {reader.type}")]
        if reader.type == "array":
            return self.messages(reader.items, writer.items, f"{path}/items")
        if reader.type == "map":
            return self.messages(reader.values, writer.values, f"{path}/values")
        if not _has_name_of(reader, writer):
            return [_at(path, f"{writer.type} {writer.fullname} cannot be read as {reader.name}")]
        match reader.type:
            case "fixed":
                return _fixed(reader, writer, path)
            case "enum":
                return self._enum(reader, writer, path)
        return self._record(reader, writer, path)

    def _all_branches(self, reader: Any, writer: Any, path: str) -> Messages:
        found: Messages = []
        for number, branch in enumerate(writer.schemas):
            found += self.messages(reader, branch, f"{path}/{number}")
        return found

    def _any_branch(self, reader: Any, writer: Any, path: str) -> Messages:
        reasons: Messages = []
        for branch in self._candidates(reader, writer):
            found = self.messages(branch, writer, path)
            if not found:
                return []
            reasons = reasons or found
        named = f" {writer.fullname}" if writer.type in NAMED else ""
        text = _at(path, f"no branch of the union can read {writer.type}{named}")
        return [text] if len(reasons) != 1 else [text, *reasons]

    def _candidates(self, reader: Any, writer: Any) -> Iterable[Any]:
        """Return the branches of a union that may be able to read a type."""
        if writer.type not in NAMED:
            return [each for each in reader.schemas if each.type not in NAMED]
        by_name = self._named_branches.get(id(reader))
        if by_name is None:
            by_name = self._named_branches[id(reader)] = {}
            for each in reader.schemas:
                if each.type in NAMED:
                    aliases = _aliases(each)
                    for name in {each.name, *(aliases if isinstance(aliases, list) else ())}:
                        by_name.setdefault((each.type, name), []).append(each)
        named = [
            *by_name.get((writer.type, writer.name), ()),
            *by_name.get((writer.type, writer.fullname), ()),
        ]
        # By identity: the library's hash of a type is that of its whole text.
        return {id(each): each for each in named}.values()

    def _record(self, reader: Any, writer: Any, path: str) -> Messages:
        fields = self._fields.get(id(writer))
        if fields is None:
            fields = self._fields[id(writer)] = {each.name: each for each in writer.fields}
        found: Messages = []
        for each in reader.fields:
            self._take_step()
            inner = f"{path}/{each.name}"
            aliases = _aliases(each)
            names = [each.name, *(aliases if isinstance(aliases, list) else ())]
            written = [fields[name] for name in names if name in fields]
            if len(written) > 1:
                reason = "the field's name and aliases match more than one field of the writer"
                found.append(_at(inner, reason))
            elif written:
                found += self.messages(each.type, written[0].type, inner)
            elif not each.has_default:
                reason = "the field is missing from the writer's schema and has no default"
                found.append(_at(inner, reason))
            if len(found) > SCHEMA_MAX_MESSAGES:
                break
        return found

    def _enum(self, reader: Any, writer: Any, path: str) -> Messages:
        known = self._symbols.get(id(reader))
        if known is None:
            known = self._symbols[id(reader)] = frozenset(reader.symbols)
        default = reader.props.get("default")
        if default and default in known:
            return []
        unknown = (each for each in writer.symbols if each not in known)
        missing = sorted(islice(unknown, SCHEMA_MAX_NAMED_SYMBOLS))
        if not missing:
            return []
        more = "" if next(unknown, None) is None else " and more"
        return [_at(path, f"{reader.name} lacks the symbols {', '.join(missing)}{more}")]


def _at(path: str, text: str) -> str:
    return f"{text} (at {path or '/'})"


def _aliases(found: Any) -> Any:
    return found.props.get("aliases")


def _has_name_of(reader: Any, writer: Any) -> bool:
    aliases = _aliases(reader)
    return bool(
        reader.name == writer.name
        or (isinstance(aliases, Container) and writer.fullname in aliases)
    )


def _fixed(reader: Any, writer: Any, path: str) -> Messages:
    if reader.size == writer.size:
        return []
    return [_at(path, f"{writer.fullname} has {writer.size} bytes, not {reader.size}")]
