"""strandlog's registry client against strandlog's registry, over HTTP and on the data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.http_client import http_address, http_broker

from strandlog.client.registry.api import NewSchema, ReadableRegistry, SchemaUse
from strandlog.client.registry.connect import connect_registry
from strandlog.client.registry.folder import FolderRegistry
from strandlog.client.registry.remote import RemoteRegistry
from strandlog.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    SchemaNotFoundError,
    SettingError,
)
from strandlog.formats.protobuf.files import decoded
from strandlog.formats.registered_schema import ResolvedReference
from strandlog.protocol.schema_records import StoredReference
from strandlog.testing.server import ServerThread

ADDRESS = '{"type": "record", "name": "x.Address", "fields": [{"name": "city", "type": "string"}]}'
PERSON = json.dumps(
    {
        "type": "record",
        "name": "Person",
        "fields": [{"name": "home", "type": "x.Address"}],
    }
)
PROTO = 'syntax = "proto3"; // a comment\nmessage A { int32 n = 1; }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def registry(server: ServerThread) -> Iterator[RemoteRegistry]:
    with connect_registry(server.address) as found:
        yield found


def readers(server: ServerThread) -> list[ReadableRegistry]:
    """The registry over HTTP with an empty cache, and the same in the folder."""
    return [connect_registry(server.address), FolderRegistry(server.data)]


def test_a_broker_announces_its_registry(server: ServerThread, registry: RemoteRegistry) -> None:
    added = registry.register("announced-value", NewSchema('"int"'))
    with connect_registry(url=http_address(server)) as other:
        assert other.by_id(added.schema.id).text == '"int"'
    with connect_registry(client={"schema.registry.url": http_address(server)}) as other:
        assert other.version("announced-value") == added
    with pytest.raises(SettingError, match=r"set schema\.registry\.url"):
        connect_registry()


def test_references_are_resolved_in_the_order_in_which_they_are_needed(
    server: ServerThread, registry: RemoteRegistry
) -> None:
    registry.register("address-value", NewSchema(ADDRESS))
    reference = StoredReference("x.Address", "address-value", 1)
    added = registry.register("person-value", NewSchema(PERSON, references=(reference,)))
    outer = json.dumps({"type": "array", "items": "Person"})
    person = StoredReference("Person", "person-value", 1)
    last = registry.register("people-value", NewSchema(outer, references=(person,)))
    for reader in readers(server):
        with reader:
            found = reader.by_id(added.schema.id)
            assert found.references == (ResolvedReference("x.Address", ADDRESS),)
            assert [each.name for each in reader.by_id(last.schema.id).references] == [
                "x.Address",
                "Person",
            ]
            assert reader.version("person-value") == ("person-value", 1, found)


def test_versions_and_uses_are_the_same_over_http_and_in_the_folder(
    server: ServerThread, registry: RemoteRegistry
) -> None:
    first = registry.register("a/b c-value", NewSchema('"string"'))
    second = registry.register("a/b c-value", NewSchema('["null", "string"]'))
    again = registry.register("a/b c-value", NewSchema(' "string" '))
    assert again == first, "the same schema is not registered twice"
    for reader in readers(server):
        with reader:
            assert "a/b c-value" in reader.subjects()
            assert reader.versions("a/b c-value") == [1, 2]
            assert reader.version("a/b c-value") == second
            assert reader.version("a/b c-value", 1) == first
            assert SchemaUse("a/b c-value", 1) in reader.uses(first.schema.id)
            assert reader.compatibility("a/b c-value") == "BACKWARD"
            assert reader.compatibility() == "BACKWARD"


def test_a_schema_is_found_by_its_guid(server: ServerThread, registry: RemoteRegistry) -> None:
    added = registry.register("guid-value", NewSchema(ADDRESS))
    import httpx

    guid = httpx.get(f"{http_address(server)}/schemas/ids/{added.schema.id}").json()["guid"]
    for reader in readers(server):
        with reader:
            assert reader.by_guid(guid) == added.schema
            with pytest.raises(SchemaNotFoundError):
                reader.by_guid("00000000-0000-0000-0000-000000000000")


def test_a_protobuf_schema_has_a_descriptor_for_programs_and_text_for_people(
    server: ServerThread, registry: RemoteRegistry
) -> None:
    added = registry.register("proto-value", NewSchema(PROTO, "PROTOBUF"))
    assert decoded(added.schema.text).message_type[0].name == "A"
    for reader in readers(server):
        with reader:
            assert reader.source_text(reader.by_id(added.schema.id)) == PROTO


def test_what_does_not_exist_is_an_error(server: ServerThread) -> None:
    for reader in readers(server):
        with reader:
            with pytest.raises(SchemaNotFoundError, match="99999"):
                reader.by_id(99999)
            with pytest.raises(SchemaNotFoundError, match="no-such-subject"):
                reader.version("no-such-subject")
            with pytest.raises(SchemaNotFoundError, match="no-such-subject"):
                reader.versions("no-such-subject")
            with pytest.raises(SchemaNotFoundError):
                reader.uses(99999)


def test_a_missing_version_is_an_error(server: ServerThread, registry: RemoteRegistry) -> None:
    registry.register("one-value", NewSchema('"int"'))
    for reader in readers(server):
        with reader, pytest.raises(SchemaNotFoundError, match="7"):
            reader.version("one-value", 7)


def test_an_incompatible_schema_is_rejected_with_reasons(registry: RemoteRegistry) -> None:
    registry.register("strict-value", NewSchema('"int"'))
    assert registry.check("strict-value", NewSchema('"int"')) == []
    [reason] = registry.check("strict-value", NewSchema('"string"'))
    assert "version 1" in reason
    with pytest.raises(IncompatibleSchemaError, match="strict-value"):
        registry.register("strict-value", NewSchema('"string"'))
    with pytest.raises(InvalidSchemaError, match="not JSON"):
        registry.register("strict-value", NewSchema("{"))
    registry.set_compatibility("none", "strict-value")
    assert registry.compatibility("strict-value") == "NONE"
    assert registry.check("strict-value", NewSchema('"string"')) == []
    registry.reset_compatibility("strict-value")
    assert registry.compatibility("strict-value") == "BACKWARD"


def test_a_schema_is_looked_up_by_its_text(registry: RemoteRegistry) -> None:
    added = registry.register("lookup-value", NewSchema('"bytes"'))
    assert registry.find("lookup-value", NewSchema('"bytes"')) == added
    with pytest.raises(SchemaNotFoundError):
        registry.find("lookup-value", NewSchema('"float"'))


def test_versions_are_deleted_in_two_steps(server: ServerThread, registry: RemoteRegistry) -> None:
    added = registry.register("gone-value", NewSchema('{"type": "fixed", "name": "G", "size": 1}'))
    registry.register(
        "gone-value", NewSchema('["null", {"type": "fixed", "name": "G", "size": 1}]')
    )
    assert registry.delete("gone-value", 2) == [2]
    assert registry.versions("gone-value") == [1]
    assert registry.delete("gone-value") == [1]
    for reader in readers(server):
        with reader:
            assert "gone-value" not in reader.subjects()
            assert reader.by_id(added.schema.id) == added.schema, "still readable by its id"
    assert registry.delete("gone-value", permanent=True) == [1, 2]
    for reader in [registry, *readers(server)]:
        with reader, pytest.raises(SchemaNotFoundError):
            reader.by_id(added.schema.id)


def test_a_folder_without_schemas_is_an_empty_registry(tmp_path: Path) -> None:
    with http_broker(tmp_path):
        pass
    with FolderRegistry(tmp_path) as registry:
        assert registry.subjects() == []
        with pytest.raises(SchemaNotFoundError):
            registry.by_id(1)


def test_an_open_folder_shows_schemas_that_are_added_later(
    server: ServerThread, registry: RemoteRegistry
) -> None:
    with FolderRegistry(server.data) as folder:
        before = folder.subjects()
        added = registry.register("later-value", NewSchema('"double"'))
        assert folder.by_id(added.schema.id) == added.schema
        assert sorted([*before, "later-value"]) == folder.subjects()
