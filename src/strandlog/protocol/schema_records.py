"""Keys and values of `_schemas`, the topic that stores the state of a schema registry.

The format is that of Confluent's registry: compact JSON. The order of the fields in a key matters,
because compaction compares the bytes of keys.

    key                                                        value (null = tombstone)
      {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}   subject, version, id, schemaType?,
                                                                 references?, metadata?, ruleSet?,
                                                                 schema, deleted
      {"keytype":"CONFIG","subject":"s","magic":0}               {"subject", "compatibilityLevel"}
      {"keytype":"MODE","subject":"s","magic":0}                 {"subject", "mode"}
      {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}       {"subject", "version": N}:
                                                                 versions 1 to N are soft-deleted
      {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}        {"subject"}: the soft-deleted
                                                                 versions are removed
      {"keytype":"NOOP","magic":0}                               {"maxId": N} or null

A CONFIG or MODE record whose subject is absent or null applies globally. `schemaType` is absent for
Avro. Other registries ignore the value of a NOOP record; strandlog stores the highest id in it
whenever it permanently deletes schemas, so that no id is reused. An empty value is a tombstone too,
because Karapace writes tombstones that way. Unknown fields in a value are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from strandlog.errors import DataError

SCHEMA, CONFIG, MODE = "SCHEMA", "CONFIG", "MODE"
DELETE_SUBJECT, CLEAR_SUBJECT, NOOP = "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"
NEWER_KINDS = frozenset({"CONTEXT", "ASSOC"})  # written by newer registries; hold no schemas
MAX_ID = 2**31 - 1


class RecordKey(NamedTuple):
    """The key of a record. `subject` is None for global records; only SCHEMA has a `version`."""

    kind: str
    subject: str | None = None
    version: int | None = None

    def encode(self) -> bytes:
        fields: dict[str, object] = {"keytype": self.kind}
        if self.kind != NOOP:
            fields["subject"] = self.subject
        if self.kind == SCHEMA:
            fields["version"] = self.version
        fields["magic"] = 1 if self.kind == SCHEMA else 0
        return encode_json(fields)


class StoredReference(NamedTuple):
    """A reference from a schema to a version of another subject."""

    name: str
    subject: str
    version: int


class StoredSchema(NamedTuple):
    """The value of a SCHEMA record."""

    subject: str
    version: int
    id: int
    schema_type: str
    schema: str
    references: tuple[StoredReference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None
    is_deleted: bool = False

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
        }
        if self.schema_type != "AVRO":
            fields["schemaType"] = self.schema_type
        if self.references:
            fields["references"] = [each._asdict() for each in self.references]
        if self.metadata:
            fields["metadata"] = self.metadata
        if self.rule_set:
            fields["ruleSet"] = self.rule_set
        fields |= {"schema": self.schema, "deleted": self.is_deleted}
        return encode_json(fields)


def encode_json(value: object) -> bytes:
    """Encode a value as compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def decode_record_key(data: bytes) -> RecordKey:
    """Decode a key; raise `DataError` if it is invalid or of an unknown type."""
    fields = _decode_object(data, "key")
    kind = fields.get("keytype")
    if not isinstance(kind, str):
        raise DataError("the key has no keytype")
    subject = fields.get("subject")
    if not isinstance(subject, str | None):
        raise DataError(f"the subject of a {kind} key is not a string")
    if kind == SCHEMA:
        if fields.get("magic") not in (0, 1):
            raise DataError(f"a SCHEMA key has unknown magic {fields.get('magic')!r}")
        return RecordKey(kind, _text(fields, "subject"), _number(fields, "version"))
    if kind in (DELETE_SUBJECT, CLEAR_SUBJECT):
        return RecordKey(kind, _text(fields, "subject"))
    if kind in (CONFIG, MODE):
        return RecordKey(kind, subject)
    if kind == NOOP or kind in NEWER_KINDS:
        return RecordKey(kind)
    raise DataError(f"unknown keytype {kind[:50]!r}")


def decode_value(data: bytes) -> dict[str, Any]:
    """Decode a value that is not a tombstone."""
    return _decode_object(data, "value")


def decode_schema(data: bytes) -> StoredSchema:
    """Decode the value of a SCHEMA record."""
    fields = _decode_object(data, "value")
    references = fields.get("references") or []
    if not isinstance(references, list):
        raise DataError("references is not a list")
    return StoredSchema(
        _text(fields, "subject"),
        _number(fields, "version"),
        _number(fields, "id"),
        _text(fields, "schemaType", "AVRO"),
        _text(fields, "schema"),
        tuple(_reference(each) for each in references),
        _optional_object(fields, "metadata"),
        _optional_object(fields, "ruleSet"),
        fields.get("deleted") is True,
    )


def _reference(found: object) -> StoredReference:
    if not isinstance(found, dict):
        raise DataError("a reference is not a JSON object")
    return StoredReference(_text(found, "name"), _text(found, "subject"), _number(found, "version"))


def _decode_object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the {what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the {what} is not a JSON object")
    return found


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = fields.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, str):
        raise DataError(f"{name} is not a string")
    return found


def _number(fields: Mapping[str, Any], name: str) -> int:
    found = fields.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_ID:
        raise DataError(f"{name} is not an integer from 0 to {MAX_ID}")
    return found


def _optional_object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found = fields.get(name)
    if found is not None and not isinstance(found, dict):
        raise DataError(f"{name} is not a JSON object")
    return found
