"""`RegisteredSchema`: a schema of a registry with all that is needed to read data with it.

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
    """A schema that another one refers to, by the name that it uses."""

    name: str
    text: str


# The schemas that a schema refers to, directly or not; each follows those that it refers to itself.
Resolved = Sequence[ResolvedReference]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema by its id, with the schemas that it refers to."""

    id: int
    kind: str
    text: str
    references: tuple[ResolvedReference, ...] = ()
