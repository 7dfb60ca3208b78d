"""Looks up the schemas of a topic's values in a schema registry, for the source and the sink.

    driver    latest version of the subject ─▶ the reader's schema, which defines the columns
    task      id in front of a value ─▶ the writer's schema, which the Python process then keeps

The registry is the one at `schemaRegistry`, the broker's registry, or the topic `_schemas` of a
folder. Logins and certificates come from the `kafka.*` options. If the registry cannot be reached,
the driver reports an error when it plans the query; a task fails, and Spark retries it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandlog.errors import InvalidSettingError, SchemaNotFoundError
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema
from strandlog.spark.option_checks import subject
from strandlog.spark.options import Options

if TYPE_CHECKING:
    from strandlog.client.registry.api import ReadableRegistry, SchemaRegistry
    from strandlog.formats.columns.registry import RegistryColumns

# Schemas that tasks of this process have looked up, by registry.
_found: dict[Any, dict[int, RegisteredSchema]] = {}


# Advice to append to "register a schema" if the registry has no schema for the values.
ELSE = {
    AVRO: ", set schemaSubject, or set avroSchema",
    JSON: ', set schemaSubject, or pass the columns: .schema("id BIGINT, name STRING")',
    PROTOBUF: " or set schemaSubject",
}


def open_registry(options: Options) -> ReadableRegistry:
    """Return the registry that the options name; the caller must close it.

    Spark keeps its Python processes for later tasks, so a connection left open in one of them would
    delay the broker's shutdown.
    """
    if options["schemaRegistry"] is None and options["path"] is not None:
        from strandlog.client.registry.folder import FolderRegistry  # noqa: PLC0415

        return FolderRegistry(options["path"])
    return remote_registry(options)


def remote_registry(options: Options) -> SchemaRegistry:
    """Return a registry in which schemas can be registered."""
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
    """Finds writers' schemas by id in a task. Can be pickled."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(self, schema_id: int) -> RegisteredSchema | None:
        options = self._options
        key = (
            *(options[name] for name in ("schemaRegistry", "bootstrap.servers", "path")),
            frozenset(options.client.items()),
        )
        known = _found.setdefault(key, {})
        if schema_id not in known:
            with open_registry(options) as registry:
                try:
                    known[schema_id] = registry.by_id(schema_id)
                except SchemaNotFoundError:
                    return None
        return known[schema_id]
