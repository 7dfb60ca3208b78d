"""The state of the registry in memory: the result of applying the records of `_schemas` in order.

    versions     subject → version → schema, id and whether it is soft-deleted
    schemas      id → schema; several versions may have the same id
    configs      subject, or None for the global configuration → compatibility level and options
    modes        subject, or None for the global mode → READWRITE, READONLY or IMPORT

Replayed records and new ones both go through `apply`, so a restart yields the same state. `max_id`
never decreases: the id of a permanently deleted schema is not reused.

A soft-deleted version can still be read by its schema id; a permanently deleted version no longer
exists.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from strandlog.broker.schemas.schema import (
    Schema,
    SubjectVersion,
    canonical_json,
    too_many_references,
)
from strandlog.config.limits.schemas import (
    SCHEMA_MAX_REFERENCE_DEPTH,
    SCHEMA_MAX_REFERENCED_CHARACTERS,
    SCHEMA_MAX_REFERENCES,
)
from strandlog.errors import DataError, InvalidSchemaError
from strandlog.formats.registered_schema import Resolved, ResolvedReference
from strandlog.protocol.schema_records import (
    CLEAR_SUBJECT,
    RecordKey,
    decode_schema,
    decode_value,
)

DEFAULT_LEVEL = "BACKWARD"
LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
READWRITE, READONLY, IMPORT = "READWRITE", "READONLY", "IMPORT"
MODES = (READWRITE, READONLY, IMPORT)


class RegistryState:
    """Schemas, settings and modes of all subjects."""

    def __init__(self) -> None:
        self.max_id = 0
        self.revision = 0  # incremented by every change
        self.schemas: dict[int, Schema] = {}
        self.configs: dict[str | None, dict[str, Any]] = {}
        self.modes: dict[str | None, str] = {}
        # Subject → ids of its live versions. The sets are replaced, not changed, because other
        # threads check records with them.
        self.live_ids: dict[str, frozenset[int]] = {}
        self.version_count = 0  # number of versions of all subjects, including soft-deleted ones
        self.characters = 0  # of all schemas, and of the metadata and rules of all versions
        self._versions: dict[str, dict[int, SubjectVersion]] = {}
        self._names: list[str] = []  # names of all subjects, sorted
        self._uses: dict[int, set[tuple[str, int]]] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._digests: dict[int, bytes] = {}
        self._undigested: set[int] = set()
        self._ids: dict[tuple[str, bytes], tuple[int, ...]] = {}  # by type and digest, sorted

    # -- changes ---------------------------------------------------------------------------------

    def apply(self, key: RecordKey, value: bytes | None) -> None:
        """Apply one record; raise `DataError` if it is unusable. The subjects are then unchanged,
        but `max_id` may have increased."""
        value = value or None  # Karapace writes tombstones as empty values
        match key.kind:
            case "SCHEMA":
                self._apply_schema(key, value)
            case "CONFIG":
                self._apply_config(key.subject, value)
            case "MODE":
                self._apply_mode(key.subject, value)
            case "DELETE_SUBJECT" | "CLEAR_SUBJECT":
                assert key.subject is not None, "the decoder checks it"
                self._apply_deletion(key.kind, key.subject, value)
            case "NOOP" if value is not None:
                found = decode_value(value).get("maxId")
                if isinstance(found, int):
                    self.max_id = max(self.max_id, found)
        self.revision += 1

    def burn(self, schema_id: int) -> None:
        """Prevent an id from being assigned: writing its record failed, but the record may be in
        the log."""
        self.max_id = max(self.max_id, schema_id)

    def _apply_schema(self, key: RecordKey, value: bytes | None) -> None:
        subject, version = key.subject, key.version
        assert subject is not None and version is not None, "the decoder checks it"
        if value is None:
            self._remove(subject, version)
            return
        stored = decode_schema(value)
        if (stored.subject, stored.version) != (subject, version):
            raise DataError(f"key and value of version {version} of {subject!r} do not match")
        self.max_id = max(self.max_id, stored.id)
        known = self.schemas.get(stored.id)
        schema = Schema(
            stored.schema_type,
            # Many subjects may have the same schema: keep its text only once.
            known.text if known is not None and known.text == stored.schema else stored.schema,
            stored.references,
            stored.metadata,
            stored.rule_set,
        )
        uses = self._uses.get(stored.id, set())
        if known is not None and uses - {(subject, version)} and not _is_same(known, schema):
            raise DataError(
                f"version {version} of {subject!r} has the id {stored.id} of another schema"
            )
        added = SubjectVersion(subject, version, stored.id, schema, stored.is_deleted)
        current = self.version(subject, version)
        if current is None or current.id != stored.id or not _is_same(current.schema, schema):
            self._remove(subject, version)
        self._add(added)

    def _add(self, added: SubjectVersion) -> None:
        place = added.subject, added.version
        versions = self._versions.get(added.subject)
        if versions is None:
            versions = self._versions[added.subject] = {}
            insort(self._names, added.subject)
        self.version_count += added.version not in versions
        replaced, same_id = versions.get(added.version), self.schemas.get(added.id)
        self.characters += extra_characters(added.schema) + len(added.schema.text)
        self.characters -= 0 if replaced is None else extra_characters(replaced.schema)
        self.characters -= 0 if same_id is None else len(same_id.text)
        versions[added.version] = added
        self.schemas[added.id] = added.schema
        if added.id not in self._digests:
            self._undigested.add(added.id)
        self._uses.setdefault(added.id, set()).add(place)
        for each in added.schema.references:
            self._referrers.setdefault((each.subject, each.version), set()).add(place)
        if added.is_deleted:
            self._note_ids(added.subject)
        else:
            known = self.live_ids.get(added.subject, frozenset())
            self.live_ids[added.subject] = known | {added.id}

    def _remove(self, subject: str, version: int) -> None:
        versions = self._versions.get(subject, {})
        removed = versions.pop(version, None)
        if removed is None:
            return
        self.version_count -= 1
        self.characters -= extra_characters(removed.schema)
        if not versions:
            del self._versions[subject], self._names[bisect_left(self._names, subject)]
        for each in removed.schema.references:
            self._referrers.get((each.subject, each.version), set()).discard((subject, version))
        uses = self._uses[removed.id]
        uses.discard((subject, version))
        if not uses:
            self.characters -= len(self.schemas[removed.id].text)
            del self._uses[removed.id], self.schemas[removed.id]
            self._undigested.discard(removed.id)
            digest = self._digests.pop(removed.id, None)
            if digest is not None:
                self._forget_digest((removed.schema.type, digest), removed.id)
        self._note_ids(subject)

    def _forget_digest(self, key: tuple[str, bytes], schema_id: int) -> None:
        others = tuple(each for each in self._ids.get(key, ()) if each != schema_id)
        if others:
            self._ids[key] = others
        else:
            self._ids.pop(key, None)

    def _note_ids(self, subject: str) -> None:
        found = self._versions.get(subject, {}).values()
        ids = frozenset(each.id for each in found if not each.is_deleted)
        if ids:
            self.live_ids[subject] = ids
        else:
            self.live_ids.pop(subject, None)

    def _apply_config(self, subject: str | None, value: bytes | None) -> None:
        if value is None:
            self.configs.pop(subject, None)
            return
        found = decode_value(value)
        if found.get("compatibilityLevel", DEFAULT_LEVEL) not in LEVELS:
            raise DataError(f"{found['compatibilityLevel']!r} is not a compatibility level")
        found.pop("subject", None)
        self.configs[subject] = found

    def _apply_mode(self, subject: str | None, value: bytes | None) -> None:
        if value is None:
            self.modes.pop(subject, None)
            return
        mode = decode_value(value).get("mode")
        if mode not in MODES:
            raise DataError(f"{mode!r} is not a mode")
        self.modes[subject] = mode

    def _apply_deletion(self, kind: str, subject: str, value: bytes | None) -> None:
        if value is None:
            return
        found = decode_value(value)
        versions = list(self._versions.get(subject, {}).values())
        if kind == CLEAR_SUBJECT:
            for each in versions:
                if each.is_deleted:
                    self._remove(subject, each.version)
            return
        last = found.get("version")
        if not isinstance(last, int):
            raise DataError(f"the deletion record of subject {subject!r} has no version")
        for each in versions:
            if each.version <= last:
                self._versions[subject][each.version] = each._replace(is_deleted=True)
        self._note_ids(subject)

    # -- identity --------------------------------------------------------------------------------

    def without_digest(self) -> list[int]:
        """Return the ids of the schemas whose digest is not known yet."""
        return sorted(self._undigested)

    def set_digest(self, schema_id: int, digest: bytes) -> None:
        """Store the digest of a schema. If several ids have the same digest, `id_of` returns the
        lowest."""
        self._undigested.discard(schema_id)
        self._digests[schema_id] = digest
        key = self.schemas[schema_id].type, digest
        self._ids[key] = tuple(sorted({schema_id, *self._ids.get(key, ())}))

    def digest(self, schema_id: int) -> bytes | None:
        return self._digests.get(schema_id)

    def id_of(self, kind: str, digest: bytes) -> int | None:
        """Return the id of the schema with this type and digest, or None."""
        found = self._ids.get((kind, digest))
        return None if found is None else found[0]

    # -- lookups ---------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False) -> Iterator[str]:
        """Yield the subjects that have a live version or, with `deleted`, any version, ordered by
        name. The names are copied first, so subjects may change during the iteration."""
        for subject in self._names.copy():
            if deleted or subject in self.live_ids:
                yield subject

    def versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the live versions of a subject or, with `deleted`, all of them, in order."""
        found = self._versions.get(subject, {})
        return [found[each] for each in sorted(found) if deleted or not found[each].is_deleted]

    def version(self, subject: str, version: int) -> SubjectVersion | None:
        """Return a version, deleted or not."""
        return self._versions.get(subject, {}).get(version)

    def uses(self, schema_id: int) -> list[SubjectVersion]:
        """Return the versions with a schema id, deleted or not, in order."""
        places = sorted(self._uses.get(schema_id, ()))
        return [self._versions[subject][version] for subject, version in places]

    def referrers(self, subject: str, version: int) -> list[SubjectVersion]:
        """Return the versions that refer to a version, in order."""
        places = sorted(self._referrers.get((subject, version), ()))
        return [self._versions[other][number] for other, number in places]

    def resolve(self, schema: Schema) -> Resolved:
        """Return the schemas that a schema refers to, directly or through others; raise if one does
        not exist."""
        found: dict[str, ResolvedReference] = {}
        self._resolve(schema, found, 0)
        return list(found.values())

    def _resolve(self, schema: Schema, found: dict[str, ResolvedReference], depth: int) -> None:
        if depth > SCHEMA_MAX_REFERENCE_DEPTH or len(found) > SCHEMA_MAX_REFERENCES:
            raise too_many_references()
        if sum(len(each.text) for each in found.values()) > SCHEMA_MAX_REFERENCED_CHARACTERS:
            raise too_many_references()
        for each in schema.references:
            target = self.version(each.subject, each.version)
            if target is None:
                raise InvalidSchemaError(
                    f'No schema reference found for subject "{each.subject}" and version '
                    f"{each.version}"
                )
            if target.schema.type != schema.type:
                raise InvalidSchemaError(
                    f"reference {each.name!r} refers to a schema of type {target.schema.type}, not "
                    f"{schema.type}"
                )
            if each.name not in found:
                self._resolve(target.schema, found, depth + 1)
                found[each.name] = ResolvedReference(each.name, target.schema.text)

    def config(self, subject: str | None) -> dict[str, Any]:
        """Return the settings that apply to a subject."""
        return {
            "compatibilityLevel": DEFAULT_LEVEL,
            **self.configs.get(None, {}),
            **self.configs.get(subject, {}),
        }

    def mode(self, subject: str | None) -> str:
        """Return the mode that applies to a subject."""
        return self.modes.get(subject, self.modes.get(None, READWRITE))


def extra_characters(schema: Schema) -> int:
    """Return the size of the metadata and rules of a schema, as JSON."""
    extra = (each for each in (schema.metadata, schema.rule_set) if each)
    return sum(len(canonical_json(each)) for each in extra)


def _is_same(one: Schema, other: Schema) -> bool:
    return (one.type, one.text, one.references) == (other.type, other.text, other.references)
