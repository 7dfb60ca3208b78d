"""`RegisteredSchema`: a registered schema with everything needed to read data with it.

kind        text                                                 name of a reference
AVRO        JSON                                                 full name of a type
JSON        JSON Schema                                          target of `$ref`
PROTOBUF    a FileDescriptorProto in base64, or a .proto file    imported file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"


class ResolvedReference(NamedTuple):
    """A schema that another schema refers to, and its name in that reference."""

    name: str
    text: str


# All schemas that a schema refers to, even indirectly, each after the schemas that it needs.
Resolved = Sequence[ResolvedReference]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id and the schemas that it refers to."""

    id: int
    kind: str
    text: str
    references: tuple[ResolvedReference, ...] = ()
