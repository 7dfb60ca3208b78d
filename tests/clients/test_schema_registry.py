"""confluent-kafka's own registry client and serializers against strandlog's schema registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.http_client import http_address, http_broker

pytest.importorskip("httpx2", reason="confluent-kafka's registry client needs httpx2")
pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
pytest.importorskip("jsonschema", reason="confluent-kafka's JSONSerializer needs jsonschema")

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.testing.server import ServerThread

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
WITH_AGE = {
    **USER,
    "fields": [*USER["fields"], {"name": "age", "type": "int", "default": 0}],
}
WITHOUT_DEFAULT = {
    **USER,
    "fields": [*USER["fields"], {"name": "age", "type": "int"}],
}
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def registry(server: ServerThread) -> Iterator[Any]:
    with SchemaRegistryClient({"url": http_address(server)}) as client:
        yield client


def context(topic: str) -> Any:
    return SerializationContext(topic, MessageField.VALUE)


def test_avro_values_survive_the_evolution_of_their_schema(registry: Any) -> None:
    first = AvroSerializer(registry, json.dumps(USER))
    second = AvroSerializer(registry, json.dumps(WITH_AGE))
    written = first({"name": "ada"}, context("people"))
    assert written[0] == 0
    later = second({"name": "bob", "age": 7}, context("people"))
    assert registry.get_versions("people-value") == [1, 2]
    read = AvroDeserializer(registry, json.dumps(WITH_AGE))
    assert read(written, context("people")) == {"name": "ada", "age": 0}
    assert read(later, context("people")) == {"name": "bob", "age": 7}
    any_schema = AvroDeserializer(registry)
    assert any_schema(written, context("people")) == {"name": "ada"}


def test_an_incompatible_schema_is_a_409(registry: Any) -> None:
    registry.register_schema("strict-value", Schema(json.dumps(USER), "AVRO"))
    wrong = Schema(json.dumps(WITHOUT_DEFAULT), "AVRO")
    assert registry.test_compatibility("strict-value", wrong) is False
    with pytest.raises(SchemaRegistryError) as failed:
        registry.register_schema("strict-value", wrong)
    assert (failed.value.http_status_code, failed.value.error_code) == (409, 409)
    with pytest.raises(SchemaRegistryError):
        AvroSerializer(registry, json.dumps(WITHOUT_DEFAULT))(
            {"name": "ada", "age": 1}, context("strict")
        )


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("AVRO", json.dumps({**USER, "fields": [{"name": "a", "type": "array"}]}), "unknown type"),
        ("JSON", '{"type": "strange"}', "strange"),
        ("PROTOBUF", "message A { int32 a 1; }", "line 1"),
    ],
)
def test_the_error_for_an_invalid_schema_starts_like_that_of_confluents_registry(
    registry: Any, kind: str, text: str, reason: str
) -> None:
    """The tests of confluent-kafka expect these words."""
    with pytest.raises(SchemaRegistryError, match="Invalid schema") as failed:
        registry.lookup_schema("strict-value", Schema(text, kind))
    assert (failed.value.http_status_code, failed.value.error_code) == (422, 42201)
    assert reason in str(failed.value)


def test_avro_schemas_refer_to_each_other(registry: Any) -> None:
    registry.register_schema("user", Schema(json.dumps(USER), "AVRO"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "User"}]}
    schema = Schema(json.dumps(order), "AVRO", [SchemaReference("User", "user", 1)])
    write = AvroSerializer(registry, schema)
    data = write({"by": {"name": "ada"}}, context("orders"))
    assert AvroDeserializer(registry)(data, context("orders")) == {"by": {"name": "ada"}}
    with pytest.raises(SchemaRegistryError) as failed:
        registry.delete_subject("user")
    assert failed.value.error_code == 42206


def test_json_values(registry: Any) -> None:
    write = JSONSerializer(json.dumps(PERSON), registry)
    data = write({"name": "ada"}, context("persons"))
    read = JSONDeserializer(None, schema_registry_client=registry)
    assert read(data, context("persons")) == {"name": "ada"}
    wider = {**PERSON, "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    JSONSerializer(json.dumps(wider), registry)({"name": "b", "age": 1}, context("persons"))
    narrower = {**PERSON, "properties": {"name": {"type": "string", "maxLength": 3}}}
    with pytest.raises(SchemaRegistryError) as failed:
        registry.register_schema("persons-value", Schema(json.dumps(narrower), "JSON"))
    assert failed.value.error_code == 409


MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/money.proto";
message Other { string unused = 1; }
message Order {
  message Line { string name = 1; Money price = 2; }
  repeated Line lines = 1;
  google.protobuf.Timestamp at = 2;
}
"""


def message_class(name: str) -> Any:
    """The class of a message of shop/order.proto."""
    texts = {"shop/order.proto": ORDER, "shop/money.proto": MONEY}
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(compile_proto({"shop/money.proto": MONEY}))
    pool.AddSerializedFile(compile_proto(texts))
    return GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.parametrize("name", ["shop.Other", "shop.Order", "shop.Order.Line"])
def test_protobuf_values(registry: Any, name: str) -> None:
    kind = message_class(name)
    value = kind()
    if name == "shop.Order":
        value.lines.add(name="tea").price.cents = 250
    write = ProtobufSerializer(kind, registry, {"use.deprecated.format": False})
    data = write(value, context(name))
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, registry)
    assert read(data, context(name)) == value
    found = registry.get_latest_version(f"{name}-value").schema
    assert "message Order {" in found.schema_str, "people and Java get text"
    assert [each.name for each in found.references] == ["shop/money.proto"]


def test_a_proto_file_and_its_descriptor_are_one_schema(registry: Any) -> None:
    registry.register_schema("shop/money.proto", Schema(MONEY, "PROTOBUF"))
    kind = message_class("shop.Order")
    ProtobufSerializer(kind, registry, {"use.deprecated.format": False})(kind(), context("one"))
    reference = SchemaReference("shop/money.proto", "shop/money.proto", 1)
    found = registry.lookup_schema("one-value", Schema(ORDER, "PROTOBUF", [reference]))
    assert found.version == 1
    changed = ORDER.replace("repeated Line lines", "int32 lines")
    with pytest.raises(SchemaRegistryError) as failed:
        registry.register_schema("one-value", Schema(changed, "PROTOBUF", [reference]))
    assert failed.value.error_code == 409


def test_the_whole_client(registry: Any) -> None:
    schema = Schema(json.dumps(USER), "AVRO")
    first = registry.register_schema("a/b c-value", schema)
    assert registry.register_schema("other-value", schema) == first
    assert registry.lookup_schema("a/b c-value", schema).version == 1
    assert "a/b c-value" in registry.get_subjects()
    assert json.loads(registry.get_schema(first).schema_str) == USER
    assert registry.get_version("other-value", 1).schema_id == first
    registry.set_compatibility("other-value", "FULL")
    assert registry.get_compatibility("other-value") == "FULL"
    assert registry.delete_subject("other-value") == [1]
    assert "other-value" not in registry.get_subjects()
    assert registry.delete_subject("other-value", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as failed:
        registry.get_latest_version("other-value")
    assert (failed.value.http_status_code, failed.value.error_code) == (404, 40401)
