"""Options on a real Spark: timestamps, triggers, formats, and the errors that a user sees."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import NOW_MS, fill
from tests.support.waiting import eventually

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch


@pytest.fixture
def options(broker: BrokerProcess, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.address, "subscribe": topic}


@pytest.fixture
def available(spark: Any, options: dict[str, str], checkpoint: str) -> Callable[..., list[int]]:
    """Run a stream to the end; returns the rows of its non-empty micro-batches."""

    def run(schema: str | None = None, **more: str) -> list[int]:
        reader = spark.readStream.format("strandlog").options(**(options | more))
        query = (
            (reader if schema is None else reader.schema(schema))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = [progress["numInputRows"] for progress in query.recentProgress]
        return [count for count in rows if count]

    return run


def put(client: WireClient, topic: str, partition: int, *values: bytes, at_ms: int = 0) -> None:
    tp = TopicPartition(topic, partition)
    batch = build_batch(NOW_MS + at_ms, list(values))
    assert client.produce({tp: [batch]})[tp].error is None


def test_a_batch_starts_and_ends_at_timestamps(
    spark: Any, client: WireClient, topic: str, options: dict[str, str]
) -> None:
    for second in range(4):
        for partition in range(2):
            put(client, topic, partition, b"%d%d" % (partition, second), at_ms=second * 1000)

    def times(**seconds: int) -> str:
        return json.dumps({topic: {key[1:]: NOW_MS + at * 1000 for key, at in seconds.items()}})

    def values(**more: str) -> list[str]:
        frame = spark.read.format("strandlog").options(**(options | more)).load()
        return sorted(row.value.decode() for row in frame.select("value").collect())

    assert values(startingTimestamp=str(NOW_MS + 2000)) == ["02", "03", "12", "13"]
    assert values(endingTimestamp=str(NOW_MS + 1000)) == ["00", "10"]
    begin, end = times(p0=3, p1=1), times(p0=9, p1=3)  # nothing is so late: read to the end
    given = {"startingOffsetsByTimestamp": begin, "endingOffsetsByTimestamp": end}
    assert values(**given) == ["03", "11", "12"]
    late = {"startingOffsetsByTimestamp": times(p0=9, p1=3)}
    with pytest.raises(Exception, match=f"no record at or after that time in {topic}-0"):
        values(**late)
    assert values(**late, startingOffsetsByTimestampStrategy="latest") == ["13"]


def test_a_stream_starts_at_the_end_and_finds_new_partitions(
    client: WireClient, broker: BrokerProcess, topic: str, available: Callable[..., list[int]]
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    fill(client, topic, 10)
    assert available() == []
    put(client, topic, 1, b"a", b"b")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    put(client, topic, 2, b"c", b"d", b"e")
    assert available() == [5]


@pytest.mark.long
def test_a_micro_batch_waits_for_its_minimum_until_the_delay(
    spark: Any, client: WireClient, topic: str, options: dict[str, str], checkpoint: str
) -> None:
    def start(name: str, delay: str) -> Any:
        limits = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": delay}
        return (
            spark.readStream.format("strandlog")
            .options(**(options | limits), startingOffsets="earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{checkpoint}-{name}")
            .start()
        )

    def rows(query: Any) -> list[int]:
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    fill(client, topic, 6)
    patient, hasty = start("patient", "1h"), start("hasty", "2s")
    try:
        eventually(lambda: rows(hasty) and rows(patient), "both queries read")
        assert rows(hasty) == rows(patient) == [6], "the first one is due at once"
        fill(client, topic, 6)
        eventually(lambda: len(rows(hasty)) == 2, "the hasty query reads again")
        assert (rows(hasty), rows(patient)) == ([6, 6], [6])
        fill(client, topic, 6)
        eventually(lambda: len(rows(patient)) == 2, "the patient query reads again")
        assert rows(patient) == [6, 12]
    finally:
        patient.stop()
        hasty.stop()


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "price", "type": {
            "type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}  # fmt: skip


def test_avro_becomes_typed_columns(
    spark: Any, client: WireClient, topic: str, options: dict[str, str], available: Any
) -> None:
    import fastavro

    bare = json.loads(json.dumps(AVRO).replace('"logicalType"', '"was"'))  # numbers as they are
    values = []
    for number in range(3):
        stream = io.BytesIO()
        stream.write(b"\0\0\0\0\x07")
        order = {"id": number, "tags": {"a": ["x"]}, "at": NOW_MS, "price": b"\x04\xd2"}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(bare), order)
        values.append(stream.getvalue())
    put(client, topic, 0, *values, b"junk")
    given = {"valueFormat": "avro", "avroSchema": json.dumps(AVRO)}
    frame = spark.read.format("strandlog").options(**(options | given)).load()
    assert frame.schema.simpleString() == (
        "struct<id:bigint,tags:map<string,array<string>>,at:timestamp,price:decimal(10,2),"
        "_corrupt:string>"
    )
    *good, bad = frame.orderBy("_corrupt", "id").collect()
    assert [(row.id, row.tags, str(row.price)) for row in good] == [
        (number, {"a": ["x"]}, "12.34") for number in range(3)
    ]
    assert good[0].at.timestamp() * 1000 == NOW_MS
    assert bytes.fromhex(bad._corrupt) == b"junk"
    typed = "key BINARY, id BIGINT, offset BIGINT"
    assert available(typed, **given, startingOffsets="earliest") == [4]


@pytest.mark.parametrize(
    ("wrong", "schema", "words"),
    [
        ({"subscribe": "nowhere"}, None, "topic 'nowhere' does not exist"),
        (
            {"startingOffsets": "{"},
            None,
            "invalid value '{' for startingOffsets: expected earliest, latest, or JSON like",
        ),
        ({"assign": '{"t": [0]}'}, None, "set exactly one of subscribe"),
        ({}, "a INT", "invalid value 'a:int' for schema"),
        ({"valueFormat": "json", "groupIdPrefix": "x"}, "a INT", "for groupIdPrefix"),
    ],
)
def test_an_invalid_option_of_a_stream_is_one_line(
    available: Callable[..., list[int]], wrong: dict[str, str], schema: str | None, words: str
) -> None:
    with pytest.raises(Exception) as error:
        available(schema, **wrong)
    text = str(error.value)
    [line] = [line for line in text.splitlines() if words in line]
    assert "strandlog.errors." in line
    assert "Traceback" not in text
    assert "\tat " not in text, "no Java stack trace"


def test_an_error_in_a_task_has_no_traceback(
    spark: Any, client: WireClient, topic: str, options: dict[str, str]
) -> None:
    fill(client, topic, 10)
    tp = TopicPartition(topic, 1)
    producer = client.init_producer_id(topic)
    client.add_partitions_to_txn(topic, *producer, [tp])
    batch = build_batch(
        NOW_MS,
        [b"a", b"b"],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        is_transactional=True,
    )
    assert client.produce({tp: [batch]}, transactional_id=topic)[tp].error is None
    beyond = {
        "endingOffsets": json.dumps({topic: {"0": 5, "1": 7}}),
        "kafkaConsumer.pollTimeoutMs": "300",
    }
    with pytest.raises(Exception) as failed:
        spark.read.format("strandlog").options(**(options | beyond)).load().collect()
    text = str(failed.value)
    assert "is readable up to offset 5, not up to 7" in text
    assert "a transaction is still open" in text
    assert "see kafkaConsumer.pollTimeoutMs" in text
    assert "Traceback" not in text
