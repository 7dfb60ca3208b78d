"""The registry with odd names, parallel clients, hostile schemas and foreign records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_client import http_address, http_broker

import strandlog
from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.schema import Schema
from strandlog.broker.topics.topic import SCHEMAS_TOPIC
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.client.registry.folder import FolderRegistry
from strandlog.client.registry.remote import RemoteRegistry
from strandlog.errors import InvalidSchemaError, SchemaNotFoundError
from strandlog.formats.registered_schema import JSON, PROTOBUF
from strandlog.protocol.schema_records import RecordKey, StoredReference, StoredSchema
from strandlog.testing.server import ServerThread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def registry(server: ServerThread) -> Iterator[RemoteRegistry]:
    with connect_registry(url=http_address(server)) as found:
        yield found


@pytest.mark.parametrize(
    "name",
    [
        *("a/b", "/", "//", "a?b=c", "a#b", "a b", "a+b", "%2F", "%", "a\\b", "'\"", "ä€", "😀"),
        *(".", "..", "a/../b", "versions", "-value", "latest", "x" * 1000, "null", "{}", "\x7f"),
    ],
)
def test_a_subject_may_have_any_name(
    server: ServerThread, registry: RemoteRegistry, name: str
) -> None:
    added = registry.register(name, NewSchema('"int"'))
    assert registry.version(name) == added
    assert name in registry.subjects()
    registry.set_compatibility("FULL", name)
    assert registry.compatibility(name) == "FULL"
    with FolderRegistry(server.data) as folder:
        assert folder.version(name) == added
    assert registry.delete(name) == [1]
    assert registry.delete(name, permanent=True) == [1]


@pytest.mark.parametrize("name", ["", "x" * 1001, ":.ctx:s", "a\nb", "a\0b", "__GLOBAL"])
def test_a_name_that_no_subject_can_have_is_an_error(registry: RemoteRegistry, name: str) -> None:
    with pytest.raises((InvalidSchemaError, SchemaNotFoundError, strandlog.StrandlogError)):
        registry.register(name, NewSchema('"int"'))


def test_parallel_registrations_give_every_schema_one_id(server: ServerThread) -> None:
    with connect_registry(url=http_address(server)) as registry:
        registry.set_compatibility("NONE", "parallel-value")

    def register(number: int) -> tuple[int, int, int]:
        schema = {"type": "fixed", "name": "P", "size": number % 8 + 1}
        with connect_registry(url=http_address(server)) as client:
            found = client.register("parallel-value", NewSchema(json.dumps(schema)))
        return number % 8, found.version, found.schema.id

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(register, range(64)))
    assert len(set(results)) == 8, "each schema has one version and one id"
    assert sorted({version for _, version, _ in results}) == list(range(1, 9))


def json_verdict(schema: Any) -> list[str]:
    types = JsonSchemas()
    text = json.dumps(schema)
    one, other = (types.parse(Schema(JSON, text), ()) for _ in range(2))
    return types.incompatibilities(one, other)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/a", "a": {"$ref": "#/a"}},
        {"not": {"$ref": "#"}},
        {"allOf": [{"$ref": "#"}] * 20},
        {"oneOf": [{"$ref": "#"}] * 20},
        {"properties": {"a": {"$ref": "#"}, "b": {"not": {"$ref": "#"}}}},
        {"allOf": [{"not": {"allOf": [{"not": {"type": "string"}}] * 60}}] * 60},
        {"pattern": "(a+)+$"},
        {
            "$ref": "#/d/0",
            "d": {str(n): {"$ref": f"#/d/{n + 1}"} for n in range(500)} | {"500": {}},
        },
    ],
)
def test_a_hostile_json_schema_is_compared_within_the_limits(schema: Any) -> None:
    assert isinstance(json_verdict(schema), list)


def test_many_negations_share_one_limit() -> None:
    part = {"not": {"oneOf": [{"const": number} for number in range(100)]}}
    [reason] = json_verdict({"properties": {str(number): part for number in range(50)}})
    assert "too complex" in reason


def nested_messages(depth: int) -> str:
    return 'syntax = "proto3";' + "message M {" * depth + "int32 a = 1;" + "}" * depth


def test_deeply_nested_messages_are_rejected_or_usable(registry: RemoteRegistry) -> None:
    found = registry.register("nested-value", NewSchema(nested_messages(20), PROTOBUF))
    assert "message M {" in registry.source_text(found.schema)
    for depth in (100, 1_000, 5_000):
        try:
            registry.register(f"deep{depth}-value", NewSchema(nested_messages(depth), PROTOBUF))
        except InvalidSchemaError as error:
            assert "Invalid schema (Protobuf)" in str(error)


def test_a_protobuf_message_with_too_many_fields_is_an_error(registry: RemoteRegistry) -> None:
    fields = "".join(f"int32 f{number} = {number + 1};" for number in range(18_000))
    text = f'syntax = "proto3"; message M {{ {fields} }}'
    with pytest.raises(InvalidSchemaError, match=r"Invalid schema \(Protobuf\)"):
        registry.register("wide-value", NewSchema(text, PROTOBUF))


def stored(subject: str, schema_id: int, *references: StoredReference) -> tuple[bytes, bytes]:
    value = StoredSchema(subject, 1, schema_id, "AVRO", '"int"', references)
    return RecordKey("SCHEMA", subject, 1).encode(), value.encode()


def test_foreign_contents_of_the_topic_are_reported_and_skipped(tmp_path: Path) -> None:
    cycle = [
        stored("c1", 11, *(StoredReference(f"n{each}", f"c{each}", 1) for each in (1, 2))),
        stored("c2", 12, *(StoredReference(f"n{each}", f"c{each}", 1) for each in (1, 2))),
    ]
    records = [
        (None, b"no key"),
        (b"\xff\xfe", b"x"),
        (b"{}", b"{}"),
        (b"[" * 5_000, b"x"),
        (b'{"keytype":"OTHER","magic":0}', b"{}"),
        (RecordKey("SCHEMA", "s", 1).encode(), b"{"),
        (
            RecordKey("SCHEMA", "s", 2).encode(),
            b'{"subject":"other","version":2,"id":1,"schema":""}',
        ),
        (RecordKey("CONFIG", "s").encode(), b'{"compatibilityLevel":"SOME"}'),
        (RecordKey("MODE", None).encode(), b'{"mode":7}'),
        *cycle,
        stored("missing", 13, StoredReference("n", "nowhere", 1)),
        stored("good", 14),
    ]
    off = {"schema.registry.enable": "false"}
    with ServerThread(tmp_path, off) as server, strandlog.connect(server.address) as log:
        log.create_topic(SCHEMAS_TOPIC)
        with log.producer() as producer:
            producer.send_batch(SCHEMAS_TOPIC, records)
    with FolderRegistry(tmp_path) as folder:
        assert folder.version("good").schema.id == 14
        with pytest.raises(InvalidSchemaError, match="too many references"):
            folder.by_id(11)
        with pytest.raises(InvalidSchemaError, match="nowhere"):
            folder.by_id(13)
        assert len(folder.problems) == 9
    with ServerThread(tmp_path, http=True) as server:
        assert len(server.call(lambda: list(server.server.broker.problems))) >= 9
        with connect_registry(server.address) as registry:
            assert registry.version("good").schema.id == 14
            assert registry.register("new", NewSchema('"long"')).schema.id == 15
