"""Looks up the schemas of a topic's values in a schema registry, for the source and the sink.

    driver    latest version of the subject ─▶ the reader's schema, which defines the columns
    task      id in front of a value ─▶ the writer's schema, which the Python process then keeps

The registry is the one at `schemaRegistry`, the broker's registry, or the topic `_schemas` of a
folder. Logins and certificates come from the `kafka.*` options. If the driver cannot reach the
registry, the query fails while Spark plans it; if a task cannot, the task fails and Spark retries
it.

A task looks up the unknown ids of an Arrow batch over one connection. It also remembers up to
MAX_UNKNOWN ids without a schema, because values that are not in the registry's format can start
with as many different ids as there are values; after UNKNOWN_MS, it looks these up again. Producers
register a schema before they write values with it, so the schemas of a task's values normally exist
before the task starts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from strandlog.clock import SystemClock
from strandlog.errors import InvalidSettingError, SchemaNotFoundError
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema
from strandlog.spark.option_checks import subject
from strandlog.spark.options import Options

if TYPE_CHECKING:
    from strandlog.client.registry.api import ReadableRegistry, SchemaRegistry
    from strandlog.formats.columns.registry import RegistryColumns

MAX_UNKNOWN = 100_000  # ids without a schema that a task remembers
UNKNOWN_MS = 5_000

# Schemas that tasks of this process have looked up, by registry.
_found: dict[Any, dict[int, RegisteredSchema]] = {}


# Advice to append to "register a schema" if the registry has no schema for the values.
ELSE = {
    AVRO: ", set schemaSubject, or set avroSchema",
    JSON: ', set schemaSubject, or pass the columns: .schema("id BIGINT, name STRING")',
    PROTOBUF: " or set schemaSubject",
}


def open_registry(options: Options) -> ReadableRegistry:
    """Return the registry that the options select; the caller must close it.

    Spark keeps its Python processes for later tasks, so a connection left open in one of them would
    delay the broker's shutdown.
    """
    if options["schemaRegistry"] is None and options["path"] is not None:
        from strandlog.client.registry.folder import FolderRegistry  # noqa: PLC0415

        return FolderRegistry(options["path"])
    return remote_registry(options)


def remote_registry(options: Options) -> SchemaRegistry:
    """Return the registry at `schemaRegistry`, or the broker's, to read and register schemas."""
    from strandlog.client.registry.connect import connect_registry  # noqa: PLC0415 - slow to load

    return connect_registry(
        options["bootstrap.servers"], options.client, url=options["schemaRegistry"]
    )


def latest_schema(options: Options) -> RegisteredSchema:
    """Return the newest version of the subject. Raise `InvalidSettingError` if the subject does not
    exist or has a schema of another type."""
    name, kind = subject(options), options["valueFormat"].upper()
    found = find_latest(options)
    if found is None:
        raise InvalidSettingError(
            "valueFormat",
            options["valueFormat"],
            f"the schema registry has no subject {name!r}: register a schema{ELSE[kind]}",
        )
    if found.kind != kind:
        raise InvalidSettingError(
            "valueFormat",
            options["valueFormat"],
            f"the newest schema of subject {name!r} is of type {found.kind}: set "
            f"valueFormat={found.kind.lower()}",
        )
    return found


def find_latest(options: Options) -> RegisteredSchema | None:
    """Return the newest version of the subject, or None if the subject does not exist."""
    with open_registry(options) as registry:
        try:
            return registry.version(subject(options)).schema
        except SchemaNotFoundError:
            return None


def registry_columns(options: Options, reader: RegisteredSchema) -> RegistryColumns:
    """Return the columns of the reader's schema; tasks look up the writers' schemas by id."""
    from strandlog.formats.columns.registry import RegistryColumns  # noqa: PLC0415 - slow to load

    message = options["protobufMessage"]
    return RegistryColumns(reader, look_up=SchemaLookUp(options), message=message)


class SchemaLookUp:
    """Finds writers' schemas by id in a task. Can be pickled; each task gets its own copy."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._unknown: OrderedDict[int, int] = OrderedDict()  # id → time of the request, in ms

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_unknown": OrderedDict()}

    def __call__(self, schema_ids: Sequence[int]) -> dict[int, RegisteredSchema]:
        """Return the schemas with these ids; ids without a schema are missing from the result."""
        known = self._known()
        self._expire_unknown()
        missing = [each for each in schema_ids if each not in known and each not in self._unknown]
        if missing:
            with open_registry(self._options) as registry:
                for schema_id in missing:
                    try:
                        known[schema_id] = registry.by_id(schema_id)
                    except SchemaNotFoundError:
                        self._add_unknown(schema_id)
        return {each: known[each] for each in schema_ids if each in known}

    def _expire_unknown(self) -> None:
        limit_ms = SystemClock().monotonic_ms() - UNKNOWN_MS
        while self._unknown and next(iter(self._unknown.values())) <= limit_ms:
            self._unknown.popitem(last=False)

    def _add_unknown(self, schema_id: int) -> None:
        self._unknown[schema_id] = SystemClock().monotonic_ms()
        if len(self._unknown) > MAX_UNKNOWN:
            self._unknown.popitem(last=False)

    def _known(self) -> dict[int, RegisteredSchema]:
        options = self._options
        key = (
            *(options[name] for name in ("schemaRegistry", "bootstrap.servers", "path")),
            frozenset(options.client.items()),
        )
        return _found.setdefault(key, {})
