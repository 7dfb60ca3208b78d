"""Typed columns by the schema registry, on a real Spark: confluent-kafka's serializers write what
Spark reads, and its deserializers read what Spark writes."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import NOW_MS

pytest.importorskip("httpx2", reason="confluent-kafka's registry client needs httpx2")
pytest.importorskip("authlib", reason="confluent-kafka's registry client needs authlib")
pytest.importorskip("cachetools", reason="confluent-kafka's registry client needs cachetools")
pytest.importorskip("jsonschema", reason="confluent-kafka's JSONSerializer needs jsonschema")

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from strandlog.client.registry.connect import connect_registry
from strandlog.client.wire.client import WireClient
from strandlog.formats.columns.descriptors import message_class
from strandlog.formats.columns.values import prefix_of
from strandlog.model import TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch
from strandlog.spark import register_views

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
WITH_CITY = {
    **USER,
    "fields": [
        {"name": "id", "type": "long"},
        *USER["fields"][1:],
        {"name": "city", "type": "string", "default": "?"},
    ],
}
SEEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, datetime.UTC)
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PROTO = """
syntax = "proto3";
package shop;
message Other {}
message Order { int64 id = 1; map<string, uint64> sums = 2; }
"""


@pytest.fixture(scope="module")
def registry_url(broker: BrokerProcess) -> str:
    with WireClient(broker.address) as client:
        address = client.http_address()
    assert address is not None
    return address


@pytest.fixture
def registry(registry_url: str) -> Iterator[Any]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


def context(topic: str) -> Any:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.fixture
def write(client: WireClient, topic: str) -> Callable[..., None]:
    def produce(*values: bytes | None) -> None:
        result = client.produce({TopicPartition(topic, 0): [build_batch(NOW_MS, list(values))]})
        assert result[TopicPartition(topic, 0)].error is None

    return produce


@pytest.fixture
def reader(spark: Any, broker: BrokerProcess, topic: str) -> Callable[..., Any]:
    def read(kind: str, **options: str) -> Any:
        base = {"bootstrap.servers": broker.address, "subscribe": topic, "valueFormat": kind}
        return spark.read.format("strandlog").options(**(base | options))

    return read


def users(registry: Any, topic: str, schema: Any, *rows: dict[str, Any]) -> list[bytes]:
    serialize = AvroSerializer(registry, json.dumps(schema))
    return [serialize(row, context(topic)) for row in rows]


def user(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "seen": SEEN, "tags": ["a"], **more}


def test_avro_of_confluents_serializer(
    registry: Any, topic: str, write: Callable[..., None], reader: Callable[..., Any]
) -> None:
    write(*users(registry, topic, USER, user(1), user(2, name=None)), None, b"x", prefix_of(9999))
    frame = reader("avro").load()
    assert frame.schema.simpleString() == (
        "struct<id:int,name:string,seen:timestamp,tags:array<string>,_corrupt:string>"
    )
    rows = frame.collect()
    assert [(row.id, row.name, row.tags) for row in rows[:2]] == [
        (1, "n1", ["a"]),
        (2, None, ["a"]),
    ]
    assert rows[0].seen.timestamp() == SEEN.timestamp()
    assert [row._corrupt for row in rows] == [None, None, None, "78", prefix_of(9999).hex()]
    reasons = "offset BIGINT, id INT, _corrupt STRUCT<reason: STRING>"
    found = reader("avro").schema(reasons).load().where("_corrupt IS NOT NULL").collect()
    assert [row._corrupt.reason for row in found] == [
        "the value has no schema id: it does not start with a zero byte and four bytes",
        "the registry has no schema 9999",
    ]


def test_the_columns_of_a_frame_stay_when_the_schema_changes(
    registry: Any, topic: str, write: Callable[..., None], reader: Callable[..., Any]
) -> None:
    write(*users(registry, topic, USER, user(1)))
    before = reader("avro").load()
    write(*users(registry, topic, WITH_CITY, user(2**40, city="Kyiv"), user(3, city="Rome")))
    assert reader("avro").load().select("id", "city").collect() == [
        (1, "?"), (2**40, "Kyiv"), (3, "Rome")
    ]  # fmt: skip
    # A long does not become an int, so these values are reported; the columns are as before.
    assert before.columns == ["id", "name", "seen", "tags", "_corrupt"]
    assert [row.id for row in before.collect()] == [1, None, None]
    assert before.where("_corrupt IS NOT NULL").count() == 2


@pytest.mark.long
def test_a_stream_gets_new_columns_after_a_restart(
    spark: Any,
    broker: BrokerProcess,
    registry: Any,
    topic: str,
    write: Callable[..., None],
    checkpoint: str,
) -> None:
    seen: list[tuple[list[str], list[Any]]] = []

    def run() -> None:
        options = {
            "bootstrap.servers": broker.address,
            "subscribe": topic,
            "valueFormat": "avro",
            "startingOffsets": "earliest",
        }
        stream = spark.readStream.format("strandlog").options(**options).load()
        query = (
            stream.writeStream.foreachBatch(
                lambda batch, _: seen.append((batch.columns, batch.collect()))
            )
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    write(*users(registry, topic, USER, user(1)))
    run()
    write(*users(registry, topic, WITH_CITY, user(2, city="Kyiv")))
    run()
    (old, first), (new, second) = seen
    assert "city" not in old
    assert "city" in new
    assert [row.id for row in first] == [1]
    assert [(row.id, row.city) for row in second] == [(2, "Kyiv")]


def test_json_of_confluents_serializer(
    registry: Any, topic: str, write: Callable[..., None], reader: Callable[..., Any]
) -> None:
    serialize = JSONSerializer(json.dumps(PERSON), registry)
    write(serialize({"name": "ada", "age": 36, "home": {"city": "London"}}, context(topic)))
    write(b'{"name": "plain", "age": 1}')
    [row, bad] = reader("json").load().collect()
    assert (row.name, row.age, row.home.city, row._corrupt) == ("ada", 36, "London", None)
    assert (bad.name, bad._corrupt) == (None, b'{"name": "plain", "age": 1}'.hex())
    plain = reader("json").schema("name STRING, age BIGINT").load()
    assert plain.where("age = 1").collect() == [("plain", 1)], "a schema of the user: no registry"
    named = reader("json", schemaSubject=f"{topic}-value").schema("name STRING, offset BIGINT")
    assert named.load().where("name IS NOT NULL").collect() == [("ada", 0)]


def test_protobuf_of_confluents_serializer(
    broker: BrokerProcess,
    registry: Any,
    topic: str,
    write: Callable[..., None],
    reader: Callable[..., Any],
) -> None:
    registry.register_schema(f"{topic}-value", Schema(PROTO, "PROTOBUF"))
    with connect_registry(broker.address) as ours:
        kind = message_class(ours.version(f"{topic}-value").schema, (1,))
    serialize = ProtobufSerializer(kind, registry, {"use.deprecated.format": False})
    write(serialize(kind(id=7, sums={"a": 2**64 - 1}), context(topic)))
    frame = reader("protobuf", protobufMessage="shop.Order").load()
    assert frame.schema.simpleString() == (
        "struct<id:bigint,sums:map<string,decimal(20,0)>,_corrupt:string>"
    )
    [row] = frame.collect()
    assert (row.id, row.sums) == (7, {"a": decimal.Decimal(2**64 - 1)})


def test_a_folder_has_its_own_registry(
    spark: Any, broker: BrokerProcess, registry: Any, topic: str, write: Callable[..., None]
) -> None:
    write(*users(registry, topic, USER, user(1)))
    options = {"path": str(broker.data), "subscribe": topic, "valueFormat": "avro"}
    rows = spark.read.format("strandlog").options(**options).load().collect()
    assert [(row.id, row._corrupt) for row in rows] == [(1, None)]


def test_views_of_topics_with_a_schema(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    registry: Any,
    topic: str,
    write: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = f"{topic}-plain"
    client.create_topic(plain, 1)
    write(*users(registry, topic, USER, user(1)))
    serialize = JSONSerializer(json.dumps(PERSON), registry)
    data = serialize({"name": "ada"}, context(plain))
    client.produce({TopicPartition(plain, 0): [build_batch(NOW_MS, [data])]})
    options = {"bootstrap.servers": broker.address}
    found = register_views(spark, options | {"valueFormat": "avro"})
    assert topic in found
    assert plain not in found
    assert f"topic '{plain}' has no view" in caplog.text
    assert spark.sql(f"SELECT id, name FROM `{topic}`").collect() == [(1, "n1")]
    assert plain in register_views(spark, options | {"valueFormat": "json"})
    assert spark.sql(f"SELECT name, age FROM `{plain}`").collect() == [("ada", None)]


def test_errors_of_the_source(topic: str, reader: Callable[..., Any]) -> None:
    cases = {
        f"the schema registry has no subject '{topic}-value'": {},
        "set schemaSubject: the default requires one topic": {"subscribe": f"{topic},other"},
        "cannot reach": {"schemaRegistry": "http://127.0.0.1:1"},
        "expected http://HOST:PORT": {"schemaRegistry": "127.0.0.1:1"},
    }
    for text, options in cases.items():
        with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as failed:
            reader("avro", **options).load()
        assert text in str(failed.value)


# -- the sink --------------------------------------------------------------------------------------


def values(client: WireClient, topic: str) -> list[bytes]:
    """All committed values of a topic."""
    found = []
    partitions = [TopicPartition(topic, number) for number in (0, 1)]
    ends = client.latest_offsets(partitions)
    for tp in partitions:
        for chunk in client.read_range(tp, 0, ends[tp]):
            for batch in iter_batches(chunk.data):
                if not batch.header.is_control:
                    found += [record.value for record in batch.records(*tp)]
    return [each for each in found if each is not None]


def save(frame: Any, broker: BrokerProcess, topic: str, kind: str, **options: str) -> None:
    base = {"bootstrap.servers": broker.address, "topic": topic, "valueFormat": kind}
    frame.write.format("strandlog").mode("append").options(**(base | options)).save()


ROWS = """
    SELECT id, concat('n', id) AS name, CAST(id AS DECIMAL(10, 2)) AS price,
           array(id, id + 1) AS list, named_struct('x', CAST(id AS INT)) AS inner,
           CAST(id AS STRING) AS key
    FROM range(3)
"""


def test_avro_for_confluents_deserializer(
    spark: Any, broker: BrokerProcess, client: WireClient, registry: Any, topic: str
) -> None:
    save(spark.sql(ROWS), broker, topic, "avro")
    read = AvroDeserializer(registry)
    found = sorted((read(each, context(topic)) for each in values(client, topic)), key=str)
    assert found == [
        {
            "id": number,
            "name": f"n{number}",
            "price": decimal.Decimal(number),
            "list": [number, number + 1],
            "inner": {"x": number},
        }
        for number in range(3)
    ]
    wider = spark.sql("SELECT 9L AS id, 'x' AS name, 'new' AS more")
    with pytest.raises(Exception, match="incompatible with an earlier schema"):
        save(wider.selectExpr("CAST(name AS BINARY) AS id"), broker, topic, "avro")
    assert len(values(client, topic)) == 3, "nothing is written with an incompatible schema"
    save(wider, broker, topic, "avro")
    assert registry.get_latest_version(f"{topic}-value").version == 2
    assert len(values(client, topic)) == 4


def test_json_for_confluents_deserializer(
    spark: Any, broker: BrokerProcess, client: WireClient, registry: Any, topic: str
) -> None:
    save(spark.sql(ROWS), broker, topic, "json")
    read = JSONDeserializer(None, schema_registry_client=registry)
    found = sorted((read(each, context(topic)) for each in values(client, topic)), key=str)
    assert [(row["id"], row["inner"], row["list"]) for row in found] == [
        (number, {"x": number}, [number, number + 1]) for number in range(3)
    ]


def test_protobuf_for_confluents_deserializer(
    spark: Any, broker: BrokerProcess, client: WireClient, registry: Any, topic: str
) -> None:
    save(spark.sql(ROWS).drop("price"), broker, topic, "protobuf")
    with connect_registry(broker.address) as ours:
        kind = message_class(ours.version(f"{topic}-value").schema, (0,))
    read = ProtobufDeserializer(kind, {"use.deprecated.format": False}, registry)
    found = sorted((read(each, context(topic)) for each in values(client, topic)), key=str)
    assert sorted((row.id, row.name, list(row.list), row.inner.x) for row in found) == [
        (number, f"n{number}", [number, number + 1], number) for number in range(3)
    ]
    with pytest.raises(Exception, match="has no field 'price'"):
        save(spark.sql(ROWS), broker, topic, "protobuf")


@pytest.mark.long
def test_a_stream_of_typed_rows_is_written_once(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    registry: Any,
    topic: str,
    write: Callable[..., None],
    checkpoint: str,
) -> None:
    target = f"{topic}-copy"
    client.create_topic(target, 2)
    write(*users(registry, topic, USER, *(user(number) for number in range(50))))
    for _ in range(2):
        stream = (
            spark.readStream.format("strandlog")
            .options(**{"bootstrap.servers": broker.address, "subscribe": topic})
            .options(valueFormat="avro", startingOffsets="earliest", maxOffsetsPerTrigger="30")
            .load()
            .drop("_corrupt")
        )
        query = (
            stream.writeStream.format("strandlog")
            .options(**{"bootstrap.servers": broker.address, "topic": target})
            .options(valueFormat="avro", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    read = AvroDeserializer(registry)
    found = [read(each, context(target)) for each in values(client, target)]
    assert sorted(row["id"] for row in found) == list(range(50))
    assert {json.dumps(row["tags"]) for row in found} == {'["a"]'}
    assert found[0]["seen"] == SEEN
