"""Requests to the schema registry.

`Broker` inherits these methods. A subject belongs to a topic: `orders-key` and `orders-value` to
`orders` (TopicNameStrategy), any other subject to the topic with the same name, whether or not that
topic exists. A client needs these permissions on the topic:

    read, look up, check compatibility     DESCRIBE
    register                               WRITE
    delete                                 DELETE
    configuration and mode                 DESCRIBE_CONFIGS, ALTER_CONFIGS; global: on the cluster

A request that contains a schema also requires DESCRIBE for the subjects of the schema's references.
A client can read a schema by id if it has DESCRIBE on the topic of any of the schema's subjects; to
other clients, the schema appears not to exist. Lists contain only subjects that the client may
describe.

No result of these methods, except that of `value_schema`, shows a change that is not on disk.
Otherwise a crash could undo a registration whose id a client already uses, and the id would then be
assigned to a different schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from strandlog.broker.access.audit import resource_of
from strandlog.broker.access.permission import (
    ALTER_CONFIGS,
    CLUSTER,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    TOPIC,
    WRITE,
    Operation,
)
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, deferred
from strandlog.broker.facade.groups import GroupRequests
from strandlog.broker.schemas.protobuf import ProtobufSchemas
from strandlog.broker.schemas.registry import Candidate, Records, Registry, no_subject
from strandlog.broker.schemas.schema import FoundSchema, Schema, SubjectVersion
from strandlog.broker.schemas.state import DEFAULT_LEVEL, READWRITE
from strandlog.broker.schemas.store import SCHEMAS_OWNER, SchemaStore
from strandlog.errors import SchemaError, SchemaNotFoundError, StorageError, StrandlogError
from strandlog.formats.registered_schema import PROTOBUF, RegisteredSchema
from strandlog.storage.work import Work, run_inline, yield_control

T = TypeVar("T")

SUFFIXES = ("-key", "-value")
SUBJECTS_PER_STEP = 1_000


def topic_of(subject: str) -> str:
    """Return the topic whose permissions apply to a subject."""
    for suffix in SUFFIXES:
        if subject.endswith(suffix):
            return subject.removesuffix(suffix)
    return subject


class SchemaRequests(GroupRequests):
    """The schema registry requests of a `Broker`."""

    _registry: Registry
    _schema_store: SchemaStore
    _schemas_table: CompactedTable
    _protobuf: ProtobufSchemas

    # -- reading ---------------------------------------------------------------------------------

    def schema_subjects(
        self, context: RequestContext, prefix: str = "", *, deleted: bool = False
    ) -> Work[Deferred[list[str]]]:
        """Return the subjects with a prefix that the client may describe, ordered by name; with
        `deleted`, include soft-deleted ones."""
        found = self._registry.state.subjects(deleted=deleted)
        return self._stored((yield from self._visible(context, found, prefix)))

    def schemas(
        self,
        context: RequestContext,
        prefix: str = "",
        *,
        deleted: bool = False,
        latest_only: bool = False,
        page: slice = slice(None),
    ) -> Work[Deferred[list[FoundSchema]]]:
        """Return the versions of all subjects that the client may describe or, with `latest_only`,
        the latest version of each, limited to `page`."""
        found: list[SubjectVersion] = []
        state = self._registry.state
        subjects = yield from self._visible(context, state.subjects(deleted=deleted), prefix)
        for number, subject in enumerate(subjects):
            if not number % SUBJECTS_PER_STEP:
                yield yield_control
            versions = state.versions(subject, deleted=deleted)
            found += versions[-1:] if latest_only else versions
        return self._stored([self._found(each) for each in found[page]])

    def schema_versions(
        self, context: RequestContext, subject: str, *, deleted: bool = False
    ) -> Deferred[list[SubjectVersion]]:
        """Return the versions of a subject."""
        return self._asked(
            context, subject, lambda: self._registry.versions(subject, deleted=deleted)
        )

    def schema_version(
        self, context: RequestContext, subject: str, version: str, *, deleted: bool = False
    ) -> Deferred[FoundSchema]:
        """Return a version of a subject, by its number or "latest"."""
        return self._asked(
            context,
            subject,
            lambda: self._found(self._registry.version(subject, version, deleted=deleted)),
        )

    def schema_referrers(
        self, context: RequestContext, subject: str, version: str
    ) -> Deferred[list[int]]:
        """Return the ids of the live schemas that refer to a version of a subject."""

        def ask() -> list[int]:
            found = self._registry.version(subject, version, deleted=True)
            referrers = self._registry.state.referrers(subject, found.version)
            return sorted({each.id for each in referrers if not each.is_deleted})

        return self._asked(context, subject, ask)

    def schema_by_id(self, context: RequestContext, schema_id: int) -> Deferred[FoundSchema]:
        """Return a schema by its id."""
        return deferred(lambda: self._stored(self._found(self._uses(context, schema_id)[0])))

    def schema_by_guid(self, context: RequestContext, guid: str) -> Deferred[FoundSchema]:
        """Return a schema by its globally unique id."""
        for schema_id in self._registry.ids_of_guid(guid):
            uses = self._registry.state.uses(schema_id)
            if any(
                self._access.allows(context, DESCRIBE.on(TOPIC), topic_of(each.subject))
                for each in uses
            ):
                return self._stored(self._found(uses[0]))
        return Deferred.failed(SchemaNotFoundError(40403, f"Schema {guid[:50]} not found"))

    def value_schema(
        self, context: RequestContext, schema_id: int | None, guid: str | None
    ) -> tuple[RegisteredSchema, str] | None:
        """Return the schema whose id or guid a record's key or value contains, and a subject that
        has the schema. Return None if the schema does not exist or the client may not describe it.
        The caller checks that the client may read the record."""
        ids = [schema_id] if schema_id is not None else self._registry.ids_of_guid(guid or "")
        for each in ids:
            try:
                found = self._uses(context, each)[0]
                resolved = tuple(self._registry.resolve(found.schema))
            except SchemaError:
                continue
            schema = found.schema
            return RegisteredSchema(each, schema.type, schema.text, resolved), found.subject
        return None

    def schema_uses(
        self, context: RequestContext, schema_id: int, *, deleted: bool = False
    ) -> Deferred[list[SubjectVersion]]:
        """Return the subjects and versions that contain the schema with an id."""

        def ask() -> Deferred[list[SubjectVersion]]:
            found = self._uses(context, schema_id)
            return self._stored([each for each in found if deleted or not each.is_deleted])

        return deferred(ask)

    def _uses(self, context: RequestContext, schema_id: int) -> list[SubjectVersion]:
        """Return the versions that have a schema id and that the client may describe; raise if
        there are none."""
        found = [
            each
            for each in self._registry.state.uses(schema_id)
            if self._access.allows(context, DESCRIBE.on(TOPIC), topic_of(each.subject))
        ]
        if not found:
            raise SchemaNotFoundError(40403, f"Schema {schema_id} not found")
        return found

    def schema_text(self, context: RequestContext, schema: Schema, form: str = "") -> Work[str]:
        """Return the text of a schema that the client may read. A Protobuf schema is returned as a
        base64 descriptor if `form` is "serialized", otherwise as the text of a .proto file."""
        if schema.type != PROTOBUF:
            return schema.text
        resolved = self._registry.resolve(schema)
        found: list[str] = []

        def convert() -> None:
            if form == "serialized":
                found.append(self._protobuf.serialized(schema, resolved))
            else:
                found.append(self._protobuf.text(schema))

        yield convert
        return found[0]

    # -- checking a schema that the client sends -------------------------------------------------

    def find_schema(
        self,
        context: RequestContext,
        subject: str,
        schema: Schema,
        *,
        normalize: bool = False,
        deleted: bool = False,
    ) -> Work[Deferred[FoundSchema]]:
        """Return the newest version of a subject that contains a schema; raise if there is none."""
        self._require_subject(context, DESCRIBE, subject)
        self._registry.versions(subject, deleted=deleted)
        candidate = yield from self._prepared(context, subject, schema, normalize)
        found = self._registry.find(subject, candidate, deleted=deleted)
        if found is None:
            raise SchemaNotFoundError(40403, "Schema not found")
        return self._stored(self._found(found))

    def check_schema(
        self,
        context: RequestContext,
        subject: str,
        schema: Schema,
        version: str | None = None,
        *,
        normalize: bool = False,
    ) -> Work[Deferred[list[str]]]:
        """Return the reasons why a schema is incompatible with a version of a subject or, without a
        version, with the versions that the compatibility level requires. The list is empty if the
        schema is compatible."""
        self._require_subject(context, DESCRIBE, subject)
        candidate = yield from self._prepared(context, subject, schema, normalize)
        messages = yield from self._registry.compatibility(subject, candidate, version)
        return self._stored(messages)

    def _prepared(
        self, context: RequestContext, subject: str, schema: Schema, normalize: bool
    ) -> Work[Candidate]:
        for each in schema.references:
            self._require_subject(context, DESCRIBE, each.subject)
        normalize = normalize or self._registry.state.config(subject).get("normalize") is True
        return (yield from self._registry.prepare(schema, normalize=normalize))

    # -- changes ---------------------------------------------------------------------------------

    def register_schema(
        self,
        context: RequestContext,
        subject: str,
        schema: Schema,
        *,
        normalize: bool = False,
        schema_id: int = -1,
        version: int = -1,
    ) -> Work[Deferred[FoundSchema]]:
        """Register a schema, unless the subject has it already; return its id and version when
        they are durable."""
        context = context.copy()
        try:
            self._require_subject(context, WRITE, subject)
            candidate = yield from self._prepared(context, subject, schema, normalize)
            decided = yield from self._registry.registration(subject, candidate, schema_id, version)
        except StrandlogError as error:
            self.audit.admin(
                context, "register_schema", resource_of(TOPIC, topic_of(subject)), error
            )
            raise
        if not decided.records:
            return self._stored(self._found(decided.found))
        revision = self._registry.state.revision

        def write() -> Deferred[FoundSchema]:
            nonlocal decided
            if self._registry.state.revision != revision:  # changed while the topic was created
                again = self._registry.registration(subject, candidate, schema_id, version)
                decided = run_inline(again)
            if decided.records:
                self._schema_store.write(decided.records, candidate.digest)
            return self._stored(self._found(decided.found))

        result = self._with_table(self._schemas_table, write)
        details = {"subject": subject, "version": decided.found.version, "id": decided.found.id}
        return self._audited(context, "register_schema", TOPIC, topic_of(subject), result, details)

    def delete_schema_subject(
        self, context: RequestContext, subject: str, *, permanent: bool = False
    ) -> Deferred[list[int]]:
        """Delete all versions of a subject; return their numbers."""

        def change() -> tuple[list[int], Records]:
            self._require_subject(context, DELETE, subject)
            return self._registry.subject_deletion(subject, permanent=permanent)

        result = self._changed(change)
        details = {"subject": subject, "permanent": permanent}
        return self._audited(
            context, "delete_schema_subject", TOPIC, topic_of(subject), result, details
        )

    def delete_schema_version(
        self, context: RequestContext, subject: str, version: str, *, permanent: bool = False
    ) -> Deferred[int]:
        """Delete a version of a subject; return its number."""

        def change() -> tuple[int, Records]:
            self._require_subject(context, DELETE, subject)
            return self._registry.version_deletion(subject, version, permanent=permanent)

        result = self._changed(change)
        details = {"subject": subject, "version": version, "permanent": permanent}
        return self._audited(
            context, "delete_schema_version", TOPIC, topic_of(subject), result, details
        )

    # -- configuration and mode ------------------------------------------------------------------

    def schema_config(
        self, context: RequestContext, subject: str | None, *, default_to_global: bool = False
    ) -> Deferred[dict[str, Any]]:
        """Return the compatibility level and options of a subject, or the global ones."""

        def ask() -> Deferred[dict[str, Any]]:
            self._require_config(context, DESCRIBE_CONFIGS, subject)
            state = self._registry.state
            if subject is None or default_to_global:
                return self._stored(state.config(subject))
            if subject not in state.configs:
                raise SchemaNotFoundError(
                    40408,
                    f"Subject '{subject}' does not have subject-level compatibility configured",
                )
            return self._stored(state.configs[subject])

        return deferred(ask)

    def alter_schema_config(
        self, context: RequestContext, subject: str | None, changes: Mapping[str, Any]
    ) -> Deferred[None]:
        """Change the compatibility level and options of a subject, or the global ones."""

        def change() -> tuple[None, Records]:
            self._require_config(context, ALTER_CONFIGS, subject)
            return None, self._registry.config_change(subject, changes)

        result = self._changed(change)
        return self._audited(
            context, "alter_schema_config", *_resource(subject), result, dict(changes)
        )

    def delete_schema_config(
        self, context: RequestContext, subject: str | None
    ) -> Deferred[dict[str, Any]]:
        """Reset the configuration of a subject, or the global one; return the old one."""

        def change() -> tuple[dict[str, Any], Records]:
            self._require_config(context, ALTER_CONFIGS, subject)
            configs = self._registry.state.configs
            if subject is not None and subject not in configs:
                raise no_subject(subject)
            old = configs.get(subject, {"compatibilityLevel": DEFAULT_LEVEL})
            return old, self._registry.config_removal(subject)

        result = self._changed(change)
        return self._audited(context, "delete_schema_config", *_resource(subject), result)

    def schema_mode(
        self, context: RequestContext, subject: str | None, *, default_to_global: bool = False
    ) -> Deferred[str]:
        """Return the mode of a subject, or the global one."""

        def ask() -> Deferred[str]:
            self._require_config(context, DESCRIBE_CONFIGS, subject)
            state = self._registry.state
            if subject is not None and not default_to_global and subject not in state.modes:
                raise SchemaNotFoundError(
                    40409, f"Subject '{subject}' does not have subject-level mode configured"
                )
            return self._stored(state.mode(subject))

        return deferred(ask)

    def alter_schema_mode(
        self, context: RequestContext, subject: str | None, mode: str, *, force: bool = False
    ) -> Deferred[None]:
        """Change the mode of a subject, or the global one."""

        def change() -> tuple[None, Records]:
            self._require_config(context, ALTER_CONFIGS, subject)
            return None, self._registry.mode_change(subject, mode, force=force)

        result = self._changed(change)
        details = {"mode": mode, "force": force}
        return self._audited(context, "alter_schema_mode", *_resource(subject), result, details)

    def delete_schema_mode(self, context: RequestContext, subject: str | None) -> Deferred[str]:
        """Reset the mode of a subject, or the global one; return the old mode."""

        def change() -> tuple[str, Records]:
            self._require_config(context, ALTER_CONFIGS, subject)
            modes = self._registry.state.modes
            if subject is not None and subject not in modes:
                raise no_subject(subject)
            return modes.get(subject, READWRITE), self._registry.mode_removal(subject)

        result = self._changed(change)
        return self._audited(context, "delete_schema_mode", *_resource(subject), result)

    # -- permissions and durability --------------------------------------------------------------

    def _require_subject(self, context: RequestContext, operation: Operation, subject: str) -> None:
        self._access.require(context, operation.on(TOPIC), topic_of(subject))

    def _require_config(
        self, context: RequestContext, operation: Operation, subject: str | None
    ) -> None:
        if subject is None:
            self._access.require(context, operation.on(CLUSTER))
        else:
            self._require_subject(context, operation, subject)

    def _visible(
        self, context: RequestContext, subjects: Iterable[str], prefix: str
    ) -> Work[list[str]]:
        """Return the subjects with a prefix that the client may describe, in steps because there
        may be many."""
        found = []
        for number, each in enumerate(subjects):
            if not number % SUBJECTS_PER_STEP:
                yield yield_control
            if each.startswith(prefix) and self._access.allows(
                context, DESCRIBE.on(TOPIC), topic_of(each)
            ):
                found.append(each)
        return found

    def _found(self, found: SubjectVersion) -> FoundSchema:
        return FoundSchema(found, self._registry.guid(found.id))

    def _asked(self, context: RequestContext, subject: str, ask: Callable[[], T]) -> Deferred[T]:
        """Return the result of `ask` if the client may describe the subject."""

        def allowed() -> Deferred[T]:
            self._access.require(context, DESCRIBE.on(TOPIC), topic_of(subject))
            return self._stored(ask())

        return deferred(allowed)

    def _changed(self, change: Callable[[], tuple[T, Records]]) -> Deferred[T]:
        """Write the records that `change` returns; return its result when they are durable."""

        def decided() -> Deferred[T]:
            value, records = change()
            if not records:
                return self._stored(value)
            self._schema_store.write(records)
            return self._stored(value)

        def checked() -> Deferred[T]:
            if not self._schemas_table.exists:
                change()  # raises if the request is invalid, before the topic is created
            return self._with_table(self._schemas_table, decided)

        return deferred(checked)

    def _stored(self, value: T) -> Deferred[T]:
        """Return a result that completes with `value` when all earlier changes are on disk."""
        result: Deferred[T] = Deferred()
        if not self._schemas_table.exists:
            result.complete(value)
            return result
        log = self._schemas_table.existing_log_for(SCHEMAS_OWNER)

        def on_durable(error: StorageError | None) -> None:
            if error is None:
                result.complete(value)
            else:
                result.fail(error)

        self._durability.when_durable(log, log.log_end_offset, on_durable)
        return result


def _resource(subject: str | None) -> tuple[Any, str]:
    return (CLUSTER, "") if subject is None else (TOPIC, topic_of(subject))
