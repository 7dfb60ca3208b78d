"""Stores the registry in the compacted topic `_schemas`, in the format of Confluent's registry.

A change is appended, then applied to the state in memory; its request is answered when it is on
disk. At start-up, a record that is damaged or unknown is reported and skipped; all other schemas
stay usable. If an append fails, its schema ids are not reused, because the records may be in the
log.

The topic has one partition, because the order of records matters: a DELETE_SUBJECT record deletes
only versions that were registered before it.
"""

from __future__ import annotations

from strandlog.broker.compacted_table import CompactedTable, TableRecord
from strandlog.broker.schemas.registry import Records, Registry
from strandlog.broker.topics.topic import SCHEMAS_TOPIC
from strandlog.clock import Clock
from strandlog.errors import DataError, StorageError
from strandlog.protocol.schema_records import SCHEMA, decode_record_key, decode_schema

SCHEMAS_OWNER = ""  # all records of the table are in one partition
REPORTED_RECORDS = 20  # maximum number of unusable records that are reported individually


class SchemaStore:
    """Stores the registry's records; `registry` holds the resulting state in memory."""

    def __init__(
        self, table: CompactedTable, registry: Registry, clock: Clock, problems: list[str]
    ) -> None:
        self._table = table
        self._registry = registry
        self._clock = clock
        self._problems = problems

    def load(self) -> None:
        """Load the stored schemas; report records that cannot be used."""
        if not self._table.exists:
            return
        if (count := self._table.partition_count) != 1:
            self._problems.append(
                f"the topic {SCHEMAS_TOPIC} has {count} partitions, so the order of changes is "
                "unknown and some schemas may be wrong; stop all registries, copy its records to "
                f"a topic with one partition, delete {SCHEMAS_TOPIC} and copy the records back"
            )
        unusable = 0
        for key, value in self._table.replay():
            try:
                if key is None:
                    raise DataError("it has no key")
                self._registry.state.apply(decode_record_key(key), value)
            except DataError as error:
                unusable += 1
                if unusable <= REPORTED_RECORDS:
                    self._problems.append(f"a record of {SCHEMAS_TOPIC} cannot be used: {error}")
        if unusable > REPORTED_RECORDS:
            self._problems.append(f"{unusable} records of {SCHEMAS_TOPIC} cannot be used")
        self._registry.add_digests(self._problems.append)

    def write(self, records: Records, digest: bytes | None = None) -> None:
        """Append records and apply them; the caller waits until they are on disk. `digest` is the
        digest of the schema that the records register, if any."""
        encoded: list[TableRecord] = [(key.encode(), value) for key, value in records]
        try:
            self._table.append(encoded, self._clock.now_ms())
        except StorageError:
            for key, value in records:
                if key.kind == SCHEMA and value is not None:
                    self._registry.state.burn(decode_schema(value).id)
            raise
        for key, value in records:
            self._registry.state.apply(key, value)
        if digest is not None:
            for schema_id in self._registry.state.without_digest():
                self._registry.state.set_digest(schema_id, digest)
