"""A parsed Avro schema: a tree of `Node` objects, in which named types are resolved.

A recursive schema is a graph: the node of a record can occur below itself. Invalid and unknown
logical types are ignored, as Avro's specification requires.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandlog.errors import DataError
from strandlog.formats.registered_schema import RegisteredSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
UNION = "union"
NO_DEFAULT = object()
UUID_BYTES = 16
_LOGICAL = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("fixed",),
    "decimal": ("bytes", "fixed"),
}


class Field(NamedTuple):
    """A field of a record."""

    name: str
    node: Node
    default: Any  # JSON, or NO_DEFAULT


@dataclass(eq=False, slots=True)
class Node:
    """A type. `kind` is a primitive, record, enum, fixed, array, map or union."""

    kind: str
    name: str = ""  # full name, of a named type
    logical: str = ""
    precision: int = 0  # number of digits of a decimal
    scale: int = 0  # digits of a decimal after the point
    size: int = 0  # number of bytes of a fixed
    symbols: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)  # items, values or branches

    @property
    def label(self) -> str:
        """The name of the type as a branch of a union."""
        return self.name or self.kind


def parse_avro(schema: RegisteredSchema) -> Node:
    """Parse a schema and its references; raise `DataError` if one of them is invalid."""
    parser = _Parser()
    try:
        for each in schema.references:
            parser.node(json.loads(each.text), "")
        return parser.node(json.loads(schema.text), "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"schema {schema.id} is not an Avro schema: {error}") from None
    except RecursionError:
        raise DataError(f"schema {schema.id} is nested too deeply") from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, found: Any, space: str) -> Node:
        if isinstance(found, list):
            return Node(UNION, parts=[self.node(each, space) for each in found])
        if isinstance(found, str):
            return Node(found) if found in PRIMITIVES else self._reference(found, space)
        kind = found["type"]
        if not isinstance(kind, str):
            return self.node(kind, space)
        if kind in ("array", "map"):
            part = found["items" if kind == "array" else "values"]
            return Node(kind, parts=[self.node(part, space)])
        if kind in ("record", "error", "enum", "fixed"):
            return self._new(found, kind, space)
        if kind in PRIMITIVES:
            return _with_logical(Node(kind), found)
        return self._reference(kind, space)

    def _reference(self, name: str, space: str) -> Node:
        full = name if "." in name or not space else f"{space}.{name}"
        node = self._named.get(full) or self._named.get(name)
        if node is None:
            raise ValueError(f"type {name!r} is unknown")
        return node

    def _new(self, found: dict[str, Any], kind: str, space: str) -> Node:
        name = str(found["name"])
        if "." in name:
            space = name.rpartition(".")[0]
        else:
            space = found.get("namespace") or space
            name = f"{space}.{name}" if space else name
        node = self._named[name] = Node("record" if kind == "error" else kind, name)
        if kind == "enum":
            node.symbols = tuple(map(str, found["symbols"]))
        elif kind == "fixed":
            node.size = int(found["size"])
            _with_logical(node, found)
        else:
            for each in found["fields"]:
                default = each.get("default", NO_DEFAULT)
                node.fields.append(Field(each["name"], self.node(each["type"], space), default))
        return node


def _with_logical(node: Node, found: dict[str, Any]) -> Node:
    logical = found.get("logicalType")
    if not isinstance(logical, str) or node.kind not in _LOGICAL.get(logical, ()):
        return node
    if logical == "uuid" and node.size != UUID_BYTES:
        return node
    if logical == "decimal":
        precision, scale = int(found.get("precision", 0)), found.get("scale", 0)
        if not isinstance(scale, int) or not 0 <= scale <= precision:
            return node
        node.precision, node.scale = precision, scale
    node.logical = logical
    return node
