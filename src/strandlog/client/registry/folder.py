"""The schema registry of a data folder, read from the files of `_schemas`.

It takes no lock and writes nothing; a broker can own the folder at the same time. The class sees
only records that the broker has made durable. Before it answers, it reads the records that were
added since the last call; for a schema by id, only if the id is unknown. Like the broker, it skips
unusable records, and lists the first MAX_PROBLEMS of them in `problems`. It also skips batches that
cannot be read, and logs a warning.
"""

from __future__ import annotations

import os

from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.protobuf import ProtobufSchemas
from strandlog.broker.schemas.schema import Schema, SchemaType, digest_of, guid_of
from strandlog.broker.schemas.state import RegistryState
from strandlog.broker.topics.topic import SCHEMAS_TOPIC
from strandlog.client.consumer import Consumer
from strandlog.client.lifecycle import Closable
from strandlog.client.readonly.log import ReadOnlyLog
from strandlog.client.registry.api import NewestVersion, SchemaUse, SubjectSchema
from strandlog.errors import (
    DataError,
    SchemaError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema
from strandlog.protocol.schema_records import decode_record_key

POLL_RECORDS = 5_000
MAX_PROBLEMS = 20


class FolderRegistry(Closable):
    """The registry of a data folder. Only one thread at a time may use it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._log = ReadOnlyLog(path)
        self._consumer: Consumer | None = None
        self._state = RegistryState()
        self._protobuf = ProtobufSchemas(compile_proto)
        self._types: dict[str, SchemaType] = {
            AVRO: AvroSchemas(),
            JSON: JsonSchemas(),
            PROTOBUF: self._protobuf,
        }
        self._guids: dict[int, str] = {}
        self.problems: list[str] = []

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    def _load(self) -> RegistryState:
        """Apply the records that were added since the last call."""
        if self._consumer is None:
            try:
                self._consumer = self._log.consumer([SCHEMAS_TOPIC], on_unreadable="skip")
            except TopicNotFoundError:
                return self._state  # no schema has been registered yet
        while records := self._consumer.poll(POLL_RECORDS):
            for record in records:
                try:
                    if record.key is None:
                        raise DataError("it has no key")
                    self._state.apply(decode_record_key(record.key), record.value)
                except DataError as error:
                    if len(self.problems) < MAX_PROBLEMS:
                        self.problems.append(
                            f"record {record.offset} of {SCHEMAS_TOPIC} cannot be used: {error}"
                        )
        return self._state

    # -- schemas -----------------------------------------------------------------------------------

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id."""
        schema = self._state.schemas.get(schema_id) or self._load().schemas.get(schema_id)
        if schema is None:
            raise SchemaNotFoundError(40403, f"Schema {schema_id} not found")
        return self._registered(schema_id, schema)

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return a schema by its globally unique id, which is a UUID."""
        for schema_id, schema in self._load().schemas.items():
            if schema_id not in self._guids:
                self._guids[schema_id] = self._guid(schema)
            if self._guids[schema_id] == guid:
                return self._registered(schema_id, schema)
        raise SchemaNotFoundError(40403, f"Schema {guid} not found")

    def _guid(self, schema: Schema) -> str:
        try:
            text = self._types[schema.type].canonical(schema, self._state.resolve(schema))
        except (SchemaError, KeyError):
            text = schema.text
        return guid_of(digest_of(schema, text))

    def _registered(self, schema_id: int, schema: Schema) -> RegisteredSchema:
        resolved = tuple(self._state.resolve(schema))
        return RegisteredSchema(schema_id, schema.type, schema.text, resolved)

    def source_text(self, schema: RegisteredSchema) -> str:
        """Return a readable schema: for Protobuf, .proto source instead of a descriptor."""
        if schema.kind != PROTOBUF:
            return schema.text
        return self._protobuf.text(Schema(schema.kind, schema.text))

    def uses(self, schema_id: int) -> list[SchemaUse]:
        """Return the subjects and versions that use a schema."""
        found = self._load().uses(schema_id)
        if not found:
            raise SchemaNotFoundError(40403, f"Schema {schema_id} not found")
        return [SchemaUse(each.subject, each.version) for each in found if not each.is_deleted]

    # -- subjects ----------------------------------------------------------------------------------

    def subjects(self) -> list[str]:
        """Return the subjects, ordered by name."""
        return list(self._load().subjects())

    def newest(self) -> list[NewestVersion]:
        """Return the newest version of every subject, ordered by name."""
        state = self._load()
        found = [state.versions(subject)[-1] for subject in state.subjects()]
        return [NewestVersion(row.subject, row.version, row.id, row.schema.type) for row in found]

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, in order."""
        found = [each.version for each in self._load().versions(subject)]
        if not found:
            raise SchemaNotFoundError(40401, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, version: int | None = None) -> SubjectSchema:
        """Return a version of a subject, by default the newest."""
        versions = self.versions(subject)
        number = versions[-1] if version is None else version
        found = self._state.version(subject, number)
        if found is None or found.is_deleted:
            raise SchemaNotFoundError(40402, f"Version {number} not found.")
        return SubjectSchema(subject, number, self._registered(found.id, found.schema))

    def compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility level that applies to a subject, or the global one."""
        return str(self._load().config(subject)["compatibilityLevel"])
