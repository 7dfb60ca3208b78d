"""`Schema`, its canonical form and identity, and the interface that each schema type implements.

Two schemas are the same and, except in IMPORT mode, get the same id if they have the same type,
canonical text, references, metadata and rules. The canonical text of an Avro or JSON schema has no
insignificant white space and a fixed order of keys, but keeps documentation, defaults, aliases and
custom properties, which Avro's "parsing canonical form" drops; protobuf.py describes the canonical
text of a Protobuf schema. Unless a client or the subject's configuration requests normalization,
the registry stores the text verbatim.

    digest = MD5(canonical text, each reference as name, subject, 4-byte version, metadata, rules)

The digest, written as a UUID, is the `guid` of the schema, as in Confluent's registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from strandlog.config.limits.schemas import (
    SCHEMA_MAX_DEPTH,
    SCHEMA_MAX_REFERENCE_DEPTH,
    SCHEMA_MAX_REFERENCED_CHARACTERS,
    SCHEMA_MAX_REFERENCES,
)
from strandlog.errors import InvalidSchemaError
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, Resolved
from strandlog.protocol.schema_records import StoredReference, StoredSchema

SCHEMA_TYPES = (JSON, PROTOBUF, AVRO)  # the order in which Confluent lists them


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema, with its text as the client sent it."""

    type: str
    text: str
    references: tuple[StoredReference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None


class SubjectVersion(NamedTuple):
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False

    def stored(self) -> StoredSchema:
        """Return the value of the record that stores this version."""
        schema = self.schema
        return StoredSchema(
            self.subject,
            self.version,
            self.id,
            schema.type,
            schema.text,
            schema.references,
            schema.metadata,
            schema.rule_set,
            self.is_deleted,
        )


class FoundSchema(NamedTuple):
    """A version of a subject, and the globally unique id of its schema."""

    found: SubjectVersion
    guid: str | None


class SchemaType(Protocol):
    """The operations of one schema type that the registry uses."""

    def parse(self, schema: Schema, resolved: Resolved) -> Any:
        """Return the parsed schema; raise `InvalidSchemaError` if it is invalid."""

    def canonical(self, schema: Schema, resolved: Resolved) -> str:
        """Return the canonical text; raise `InvalidSchemaError` if the schema is invalid."""

    def incompatibilities(self, reader: Any, writer: Any) -> list[str]:
        """Return the reasons why a reader with one parsed schema cannot read data that was written
        with the other."""


def too_many_references() -> InvalidSchemaError:
    return InvalidSchemaError(
        f"the schema has too many references; the maximum is {SCHEMA_MAX_REFERENCES}, "
        f"{SCHEMA_MAX_REFERENCE_DEPTH} in a chain, and {SCHEMA_MAX_REFERENCED_CHARACTERS} "
        "characters in all of them"
    )


def digest_of(schema: Schema, canonical: str) -> bytes:
    """Return the MD5 digest that identifies a schema among all schemas of its type."""
    found = hashlib.md5(canonical.encode("utf-8", "surrogatepass"), usedforsecurity=False)
    for reference in schema.references:
        found.update(reference.name.encode("utf-8", "surrogatepass"))
        found.update(reference.subject.encode("utf-8", "surrogatepass"))
        found.update(reference.version.to_bytes(4, "big"))
    for extra in (schema.metadata, schema.rule_set):
        if extra:
            found.update(canonical_json(extra).encode("utf-8", "surrogatepass"))
    return found.digest()


def guid_of(digest: bytes) -> str:
    return str(UUID(bytes=digest))


def canonical_json(value: object) -> str:
    """Return a JSON value as compact text with sorted keys."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def parsed_json(text: str, what: str) -> Any:
    """Parse JSON; raise `InvalidSchemaError` if it is invalid or nested too deeply."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"Invalid {what}: it is not JSON: {error}") from None
    _check_depth(found, what)
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _check_depth(found: object, what: str) -> None:
    """Reject deep nesting, so that recursive functions are safe."""
    level = [found]
    for _ in range(SCHEMA_MAX_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise InvalidSchemaError(
        f"Invalid {what}: it is nested too deeply; the maximum is {SCHEMA_MAX_DEPTH} levels"
    )
