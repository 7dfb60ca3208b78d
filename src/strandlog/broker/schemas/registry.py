"""Decides what a schema registry request changes, and returns the records to write.

    registration    a schema is checked for compatibility and gets the next version; a known
                    schema keeps its id, and a new one gets the next id
    deletion        soft first, then permanent; never a version that a live schema refers to, nor
                    permanently one that a soft-deleted schema refers to
    configuration   compatibility levels and modes, global or per subject

Nothing here writes or waits. A method that decides on a change returns records for `_schemas`; the
caller writes them and applies them to `state`. Parsing and comparing schemas takes milliseconds to
seconds, so the methods that do so return work in steps. If another request changes the state while
a registration is being decided, the decision is repeated.

Registering a schema that is already live in the subject returns the existing version without a
compatibility check. If the schema is soft-deleted there, it gets a new version with its old id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from strandlog.broker.schemas.schema import Schema, SchemaType, SubjectVersion, digest_of, guid_of
from strandlog.broker.schemas.state import (
    DEFAULT_LEVEL,
    IMPORT,
    LEVELS,
    MODES,
    READONLY,
    RegistryState,
    extra_characters,
)
from strandlog.config.limits.schemas import (
    SCHEMA_MAX_IDS,
    SCHEMA_MAX_SUBJECT_CHARACTERS,
    SCHEMA_MAX_TOTAL_CHARACTERS,
    SCHEMA_MAX_TOTAL_VERSIONS,
    SCHEMA_MAX_VERSIONS,
)
from strandlog.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    MissingExtraError,
    SchemaError,
    SchemaNotFoundError,
)
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, Resolved
from strandlog.protocol.schema_records import (
    CLEAR_SUBJECT,
    CONFIG,
    DELETE_SUBJECT,
    MAX_ID,
    MODE,
    NOOP,
    SCHEMA,
    RecordKey,
    encode_json,
)
from strandlog.storage.work import Work

T = TypeVar("T")
Records = list[tuple[RecordKey, bytes | None]]

LATEST = ("latest", "-1")
CACHED_SCHEMAS = 256  # maximum number of parsed schemas in memory; a large one takes about 100 KB
OPTIONS = frozenset({"compatibilityGroup", "normalize"})  # configuration fields besides the level


class Candidate(NamedTuple):
    """A schema that a client sent, after parsing."""

    schema: Schema
    parsed: Any
    digest: bytes


class Registration(NamedTuple):
    """The outcome of a registration. `records` is empty if the version already exists."""

    found: SubjectVersion
    records: Records


class Registry:
    """Decides on the changes that client requests make."""

    def __init__(self, types: Mapping[str, SchemaType], max_schema_bytes: int = 2**20) -> None:
        self.state = RegistryState()
        self._max_schema_bytes = max_schema_bytes
        self._types = types
        self._parsed: OrderedDict[int, tuple[Schema, Any]] = OrderedDict()

    # -- schemas ---------------------------------------------------------------------------------

    def prepare(self, schema: Schema, *, normalize: bool = False) -> Work[Candidate]:
        """Parse a schema that a client sent."""
        if not schema.text.strip():
            raise InvalidSchemaError("Empty schema")
        size = len(schema.text.encode("utf-8", "surrogatepass"))
        if size > self._max_schema_bytes:
            raise InvalidSchemaError(
                f"the schema has {size} bytes; the maximum is {self._max_schema_bytes} "
                "(schema.registry.max.schema.bytes)",
                42209,
            )
        kind = self._type(schema)
        resolved = self.resolve(schema)

        def parse() -> Candidate:
            parsed, text = kind.parse(schema, resolved), kind.canonical(schema, resolved)
            changed = _normalized(schema, text) if normalize else schema
            return Candidate(changed, parsed, digest_of(changed, text))

        return (yield from _computed(parse))

    def _type(self, schema: Schema) -> SchemaType:
        found = self._types.get(schema.type)
        if found is None:
            raise InvalidSchemaError(
                f"Invalid schema type {schema.type[:50]!r}; use {AVRO}, {JSON} or {PROTOBUF}"
            )
        return found

    def resolve(self, schema: Schema) -> Resolved:
        """Return the schemas that a schema refers to, directly or through others; raise if one does
        not exist."""
        return self.state.resolve(schema)

    def add_digests(self, report: Callable[[str], None]) -> None:
        """Compute the digests of the schemas that were loaded."""
        for schema_id in self.state.without_digest():
            schema = self.state.schemas[schema_id]
            try:
                text = self._type(schema).canonical(schema, self.resolve(schema))
            except (SchemaError, MissingExtraError) as error:
                report(f"schema {schema_id} cannot be parsed: {error}")
                text = schema.text
            self.state.set_digest(schema_id, digest_of(schema, text))

    def guid(self, schema_id: int) -> str | None:
        digest = self.state.digest(schema_id)
        return None if digest is None else guid_of(digest)

    def ids_of_guid(self, guid: str) -> list[int]:
        """Return the ids of the schemas with a guid. There may be several, because schemas of
        different types can have the same digest."""
        try:
            digest = UUID(guid).bytes
        except ValueError:
            return []
        found = (self.state.id_of(kind, digest) for kind in self._types)
        return [each for each in found if each is not None]

    # -- registration ----------------------------------------------------------------------------

    def registration(
        self, subject: str, candidate: Candidate, schema_id: int = -1, version: int = -1
    ) -> Work[Registration]:
        """Decide which id and version a schema gets; raise if it is incompatible."""
        check_subject(subject)
        while True:
            revision = self.state.revision
            known = self._registered(subject, candidate, schema_id)
            if known is not None:
                return Registration(known, [])
            self._check_mode(subject, schema_id)
            if schema_id < 0:
                earlier = self._compared_versions(subject, candidate.schema)
                messages = yield from self._messages(subject, candidate, earlier)
                if messages:
                    raise IncompatibleSchemaError(
                        "Schema being registered is incompatible with an earlier schema for "
                        f'subject "{subject}", details: {messages[:10]}'
                    )
            if self.state.revision == revision:
                self.resolve(candidate.schema)  # raises if a reference was deleted after `prepare`
                return self._new_version(subject, candidate, schema_id, version)

    def _registered(
        self, subject: str, candidate: Candidate, schema_id: int
    ) -> SubjectVersion | None:
        found = self.find(subject, candidate)
        if found is not None and schema_id not in (-1, found.id):
            raise SchemaError(
                42207,
                f"the schema is registered in {subject!r} with id {found.id}, not {schema_id}",
            )
        return found

    def _check_mode(self, subject: str, schema_id: int = -1) -> None:
        mode = self.state.mode(subject)
        if mode == READONLY:
            raise SchemaError(42205, f"Subject {subject} is in read-only mode")
        if schema_id >= 0 and mode != IMPORT:
            raise SchemaError(42205, f"Subject {subject} is not in import mode")
        if schema_id < 0 and mode == IMPORT:
            raise SchemaError(42205, f"Subject {subject} is in import mode; specify an id")

    def _new_version(
        self, subject: str, candidate: Candidate, schema_id: int, version: int
    ) -> Registration:
        state, schema = self.state, candidate.schema
        every = state.versions(subject, deleted=True)
        if len(every) >= SCHEMA_MAX_VERSIONS:
            raise SchemaError(
                42205, f"subject {subject!r} has {len(every)} versions, which is the maximum"
            )
        if state.version_count >= SCHEMA_MAX_TOTAL_VERSIONS:
            raise SchemaError(
                42205, f"the registry has {state.version_count} versions, which is the maximum"
            )
        known = state.id_of(schema.type, candidate.digest)
        added_characters = extra_characters(schema) + (0 if known else len(schema.text))
        if state.characters + added_characters > SCHEMA_MAX_TOTAL_CHARACTERS:
            raise SchemaError(
                42205,
                f"the schemas of the registry have {state.characters} characters; the maximum is "
                f"{SCHEMA_MAX_TOTAL_CHARACTERS}",
            )
        if schema_id >= 0:
            taken = state.schemas.get(schema_id)
            if taken is not None and known != schema_id:
                raise SchemaError(42207, f"id {schema_id} belongs to another schema")
        else:
            schema_id = state.max_id + 1 if known is None else known
        if schema_id not in state.schemas and len(state.schemas) >= SCHEMA_MAX_IDS:
            raise SchemaError(
                42205, f"the registry has {SCHEMA_MAX_IDS} schemas, which is the maximum"
            )
        if not 0 < schema_id <= MAX_ID:
            raise SchemaError(42207, f"schema id must be between 1 and {MAX_ID}, got {schema_id}")
        number = version if version > 0 else 1 + max((each.version for each in every), default=0)
        if any(each.version == number and not each.is_deleted for each in every):
            raise SchemaError(42205, f"subject {subject!r} already has a version {number}")
        added = SubjectVersion(subject, number, schema_id, state.schemas.get(schema_id, schema))
        records: Records = [
            (RecordKey(SCHEMA, subject, each.version), None)
            for each in every
            if each.is_deleted
            and each.id == schema_id
            and each.version != number
            and not state.referrers(subject, each.version)
        ]
        # The new record comes first, so that the id stays in use if a crash loses later records.
        records.insert(0, (RecordKey(SCHEMA, subject, number), added.stored().encode()))
        return Registration(added, records)

    def find(
        self, subject: str, candidate: Candidate, *, deleted: bool = False
    ) -> SubjectVersion | None:
        """Return the newest live version of a subject that has this schema, or None. With
        `deleted`, consider soft-deleted versions too."""
        schema_id = self.state.id_of(candidate.schema.type, candidate.digest)
        if schema_id is None:
            return None
        versions = self.state.versions(subject, deleted=deleted)
        found = [each for each in versions if each.id == schema_id]
        return found[-1] if found else None

    # -- compatibility ---------------------------------------------------------------------------

    def compatibility(
        self, subject: str, candidate: Candidate, version: str | None
    ) -> Work[list[str]]:
        """Return the reasons why a schema is incompatible with a version of a subject or, if
        `version` is None, with the versions that the compatibility level requires."""
        if version is None:
            earlier: Sequence[SubjectVersion] = self._compared_versions(subject, candidate.schema)
        elif version in LATEST and not self.state.versions(subject):
            return []
        else:
            earlier = [self.version(subject, version)]
        return (yield from self._messages(subject, candidate, earlier))

    def _compared_versions(self, subject: str, schema: Schema) -> list[SubjectVersion]:
        """Return the versions that a new one must be compatible with, newest first."""
        config = self.state.config(subject)
        versions = self.state.versions(subject)
        group = config.get("compatibilityGroup")
        if group:
            ours = _property(schema, group)
            versions = [each for each in versions if _property(each.schema, group) == ours]
        if not config["compatibilityLevel"].endswith("_TRANSITIVE"):
            versions = versions[-1:]
        return versions[::-1]

    def _messages(
        self, subject: str, candidate: Candidate, earlier: Sequence[SubjectVersion]
    ) -> Work[list[str]]:
        """Compare a schema with versions until one is incompatible; return the reasons."""
        level = self.state.config(subject)["compatibilityLevel"]
        if level == "NONE":
            return []
        kind = self._type(candidate.schema)
        for each in earlier:
            if each.schema.type != candidate.schema.type:
                return [f"version {each.version} has a different type: {each.schema.type}"]
            old = yield from self._parsed_schema(each)
            messages = yield from _computed(
                lambda old=old: _directions(kind, level, candidate.parsed, old)  # type: ignore[misc]
            )
            if messages:
                return [f"version {each.version}: {message}" for message in messages]
        return []

    def _parsed_schema(self, found: SubjectVersion) -> Work[Any]:
        cached = self._parsed.get(found.id)
        if cached is not None and cached[0] == found.schema:
            self._parsed.move_to_end(found.id)
            return cached[1]
        kind, resolved = self._type(found.schema), self.resolve(found.schema)
        parsed = yield from _computed(lambda: kind.parse(found.schema, resolved))
        self._parsed[found.id] = found.schema, parsed
        if len(self._parsed) > CACHED_SCHEMAS:
            self._parsed.popitem(last=False)
        return parsed

    # -- lookups ---------------------------------------------------------------------------------

    def version(self, subject: str, version: str, *, deleted: bool = False) -> SubjectVersion:
        """Return a version by its number or "latest"; raise if there is none."""
        versions = self.versions(subject, deleted=deleted)
        if version in LATEST:
            return versions[-1]
        number = version_number(version)
        for each in versions:
            if each.version == number:
                return each
        raise SchemaNotFoundError(40402, f"Version {number} not found.")

    def versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        """Return the versions of a subject; raise if there are none."""
        found = self.state.versions(subject, deleted=deleted)
        if not found:
            raise no_subject(subject)
        return found

    # -- deletion --------------------------------------------------------------------------------

    def subject_deletion(self, subject: str, *, permanent: bool) -> tuple[list[int], Records]:
        """Return the numbers of the versions to delete with a subject, and the records to write."""
        self._check_deletion(subject)
        every = self.state.versions(subject, deleted=True)
        live = [each for each in every if not each.is_deleted]
        if not every:
            raise no_subject(subject)
        if permanent:
            if live:
                raise SchemaNotFoundError(
                    40405,
                    f"Subject '{subject}' was not deleted first before being permanently deleted",
                )
            self._check_unreferenced(every)
            return [each.version for each in every], self._removal(subject, every, every)
        if not live:
            raise SchemaNotFoundError(
                40404,
                f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
            )
        self._check_unreferenced(live)
        last = live[-1].version
        value = encode_json({"subject": subject, "version": last})
        return [each.version for each in live], [(RecordKey(DELETE_SUBJECT, subject), value)]

    def version_deletion(
        self, subject: str, version: str, *, permanent: bool
    ) -> tuple[int, Records]:
        """Return the number of the version to delete, and the records to write."""
        self._check_deletion(subject)
        if version not in LATEST:
            version_number(version)
        found = self.version(subject, version, deleted=permanent or version not in LATEST)
        self._check_unreferenced([found])
        if permanent:
            if not found.is_deleted:
                raise SchemaNotFoundError(
                    40407,
                    f"Subject '{subject}' Version {found.version} was not deleted first "
                    "before being permanently deleted",
                )
            every = self.state.versions(subject, deleted=True)
            return found.version, self._removal(subject, [found], every)
        if found.is_deleted:
            raise SchemaNotFoundError(
                40406,
                f"Subject '{subject}' Version {found.version} was soft deleted. Set "
                "permanent=true to delete permanently",
            )
        value = found._replace(is_deleted=True).stored().encode()
        return found.version, [(RecordKey(SCHEMA, subject, found.version), value)]

    def _check_deletion(self, subject: str) -> None:
        if self.state.mode(subject) == READONLY:
            raise SchemaError(42205, f"Subject {subject} is in read-only mode")

    def _check_unreferenced(self, versions: Sequence[SubjectVersion]) -> None:
        """Raise if any other schema refers to one of these versions. A soft-deleted referrer counts
        only if the version itself is soft-deleted, as it is before a permanent deletion."""
        together = {(each.subject, each.version) for each in versions}
        for each in versions:
            referrers = self.state.referrers(each.subject, each.version)
            if any(
                (other.subject, other.version) not in together
                and (each.is_deleted or not other.is_deleted)
                for other in referrers
            ):
                raise SchemaError(
                    42206,
                    f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,"
                    f"subject={each.subject},version={each.version}}}.",
                )

    def _removal(
        self, subject: str, removed: Sequence[SubjectVersion], every: Sequence[SubjectVersion]
    ) -> Records:
        """Return the tombstones of versions, preceded by a record that prevents the reuse of their
        ids. If no version is left, the subject's configuration and mode are deleted too."""
        records: Records = [(RecordKey(NOOP), encode_json({"maxId": self.state.max_id}))]
        records += [(RecordKey(SCHEMA, subject, each.version), None) for each in removed]
        if len(removed) == len(every):
            if subject in self.state.configs:
                records.append((RecordKey(CONFIG, subject), None))
            if subject in self.state.modes:
                records.append((RecordKey(MODE, subject), None))
        return records

    # -- configuration and mode ------------------------------------------------------------------

    def config_change(self, subject: str | None, changes: Mapping[str, Any]) -> Records:
        """Return the record that sets the level and options of a subject, or the global ones."""
        if subject is not None:
            check_subject(subject)
        config = {**self.state.configs.get(subject, {}), **changes}
        level = config.get("compatibilityLevel", DEFAULT_LEVEL)
        if level not in LEVELS:
            raise InvalidSchemaError(
                f"Invalid compatibility level {str(level)[:50]!r}. Valid values are none, "
                "backward, forward, full, backward_transitive, forward_transitive, and "
                "full_transitive",
                42203,
            )
        if unknown := set(changes) - OPTIONS - {"compatibilityLevel"}:
            raise InvalidSchemaError(f"the option {min(unknown)[:50]!r} is not supported", 42203)
        key = RecordKey(CONFIG, subject)
        fields = {} if subject is None else {"subject": subject}
        return [(key, encode_json({**fields, "compatibilityLevel": level, **config}))]

    def config_removal(self, subject: str | None) -> Records:
        """Return the record that resets the configuration of a subject, or the global one."""
        return [(RecordKey(CONFIG, subject), None)] if subject in self.state.configs else []

    def mode_removal(self, subject: str | None) -> Records:
        """Return the record that resets the mode of a subject, or the global one."""
        return [(RecordKey(MODE, subject), None)] if subject in self.state.modes else []

    def mode_change(self, subject: str | None, mode: str, *, force: bool) -> Records:
        """Return the records that set the mode of a subject, or the global one. Entering IMPORT
        also removes soft-deleted versions; live ones must not exist, unless `force` is true."""
        if subject is not None:
            check_subject(subject)
        if mode not in MODES:
            raise InvalidSchemaError(
                f"Invalid mode {mode[:50]!r}. Valid values are {', '.join(MODES)}", 42204
            )
        records: Records = []
        if mode == IMPORT and self.state.mode(subject) != IMPORT:
            subjects = list(self.state.subjects(deleted=True)) if subject is None else [subject]
            if not force and any(self.state.versions(each) for each in subjects):
                raise SchemaError(
                    42205,
                    "Cannot import since found existing subjects; delete them, or use force=true",
                )
            records = [(RecordKey(NOOP), encode_json({"maxId": self.state.max_id}))]
            records += [
                (RecordKey(CLEAR_SUBJECT, each), encode_json({"subject": each}))
                for each in subjects
            ]
        fields = {} if subject is None else {"subject": subject}
        return [*records, (RecordKey(MODE, subject), encode_json({**fields, "mode": mode}))]


def check_subject(subject: str) -> None:
    """Raise if a subject cannot have this name."""
    if not subject or len(subject) > SCHEMA_MAX_SUBJECT_CHARACTERS:
        raise InvalidSchemaError(
            f"The specified subject has {len(subject)} characters; it must have 1 to "
            f"{SCHEMA_MAX_SUBJECT_CHARACTERS}",
            42208,
        )
    if subject.startswith(":") or subject in ("__GLOBAL", "__EMPTY"):
        raise InvalidSchemaError(
            f"The specified subject '{subject}' is not valid: contexts are not supported", 42208
        )
    if any(ord(each) < 32 or 0xD800 <= ord(each) < 0xE000 for each in subject):
        raise InvalidSchemaError("The specified subject contains control characters", 42208)


def version_number(version: str) -> int:
    """Parse the version number in a request; raise if it is invalid."""
    if version.isascii() and version.isdigit() and 1 <= int(version[:20]) <= MAX_ID:
        return int(version)
    raise InvalidSchemaError(
        f"The specified version '{version[:50]}' is not a valid version id. Allowed values are "
        'between [1, 2^31-1] and the string "latest"',
        42202,
    )


def no_subject(subject: str) -> SchemaNotFoundError:
    return SchemaNotFoundError(40401, f"Subject '{subject}' not found.")


def _computed(call: Callable[[], T]) -> Work[T]:
    """Run `call` as one step and return its result."""
    found: list[T] = []
    yield lambda: found.append(call())
    return found[0]


def _directions(kind: SchemaType, level: str, new: Any, old: Any) -> list[str]:
    messages = []
    if level.startswith(("BACKWARD", "FULL")):
        messages += [
            f"{each} (new schema reading old data)" for each in kind.incompatibilities(new, old)
        ]
    if level.startswith(("FORWARD", "FULL")):
        messages += [
            f"{each} (old schema reading new data)" for each in kind.incompatibilities(old, new)
        ]
    return messages


def _normalized(schema: Schema, canonical: str) -> Schema:
    text = schema.text if schema.type == PROTOBUF else canonical
    references = tuple(sorted(schema.references))
    return Schema(schema.type, text, references, schema.metadata, schema.rule_set)


def _property(schema: Schema, name: str) -> Any:
    properties = (schema.metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None
