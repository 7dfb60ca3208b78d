"""The source on a real Spark: batches and streams, over the wire and from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import NOW_MS, fill

import strandlog
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int>"
)


@pytest.fixture
def reading(spark: Any, broker: BrokerProcess, topic: str) -> Callable[..., Any]:
    """A batch of the topic, with options."""

    def read(schema: str | None = None, **options: str) -> Any:
        reader = spark.read.format("strandlog").option("kafka.bootstrap.servers", broker.address)
        if not options.keys() & {"assign", "subscribePattern"}:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return (reader if schema is None else reader.schema(schema)).load()

    return read


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_a_batch_has_kafkas_columns(
    client: WireClient, topic: str, reading: Callable[..., Any]
) -> None:
    fill(client, topic, 100)
    frame = reading()
    assert frame.schema.simpleString() == SCHEMA
    row = frame.where("partition = 1 and offset = 2").collect()[0]
    assert (bytes(row.key), bytes(row.value), row.topic) == (b"k5", b"5", topic)
    assert (row.timestamp.timestamp() * 1000, row.timestampType) == (NOW_MS, 0)
    assert numbers(frame) == list(range(100))


def test_options_bound_a_batch(client: WireClient, topic: str, reading: Callable[..., Any]) -> None:
    fill(client, topic, 100)
    start, end = json.dumps({topic: {"0": 10, "1": -2}}), json.dumps({topic: {"0": 20, "1": 5}})
    bounded = reading(startingOffsets=start, endingOffsets=end)
    assert numbers(bounded) == sorted([*range(20, 40, 2), *range(1, 11, 2)])
    assert reading(assign=json.dumps({topic: [1]})).count() == 50
    assert reading(subscribePattern=f"^{topic[:-1]}[{topic[-1]}]$").count() == 100
    assert reading(startingTimestamp=str(NOW_MS)).count() == 100
    late = {
        "startingTimestamp": str(NOW_MS + 3_600_000),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert reading(**late).count() == 0
    assert reading(minPartitions="7").rdd.getNumPartitions() >= 7
    assert reading(maxRecordsPerPartition="20").rdd.getNumPartitions() == 6


def test_headers_nulls_and_text(
    client: WireClient, topic: str, reading: Callable[..., Any]
) -> None:
    batch = build_batch(NOW_MS, [b"v", None, b""], [None, b"k", b""], [(("h", b"x"),), (), ()])
    assert client.produce({TopicPartition(topic, 0): [batch]})
    rows = reading(includeHeaders="true").orderBy("offset").collect()
    assert [row.value and bytes(row.value) for row in rows] == [b"v", None, b""]
    assert [row.key and bytes(row.key) for row in rows] == [None, b"k", b""]
    assert [(each.key, bytes(each.value)) for each in rows[0].headers] == [("h", b"x")]
    assert [row.headers for row in rows[1:]] == [None, None]
    texts = reading(valueFormat="string").orderBy("offset").collect()
    assert [(row.key, row.value) for row in texts] == [(None, "v"), ("k", None), ("", "")]


def test_json_becomes_typed_columns(
    client: WireClient, topic: str, reading: Callable[..., Any]
) -> None:
    values = [
        b'{"id": 1, "name": "a", "at": "2013-01-01T05:00:00Z", "extra": [1]}',
        b"no json",
        b'{"id": "text", "name": "b"}',
        None,
        b'  {"name": "c"}\n',
        b'{"id": 2}{"id": 3}',
        b"[1]",
    ]
    assert client.produce({TopicPartition(topic, 0): [build_batch(NOW_MS, values)]})
    schema = "offset BIGINT, id BIGINT, name STRING, at TIMESTAMP, _corrupt STRING"
    rows = reading(schema, valueFormat="json").orderBy("offset").collect()
    assert [(row.id, row.name) for row in rows] == [
        (1, "a"),
        (None, None),
        (None, "b"),
        (None, None),
        (None, "c"),
        (2, None),
        (None, None),
    ]
    assert rows[0].at.isoformat().startswith("2013-01-01T05:00")
    corrupt = [row.offset for row in rows if row._corrupt is not None]
    assert corrupt == [1, 2, 5, 6]
    assert rows[1]._corrupt == "no json"


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("value BINARY", {}),
        ("offset BIGINT, partition INT", {}),
        (
            "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key STRING",
            {"valueFormat": "string"},
        ),
    ],
)
def test_some_columns_in_any_order(
    reading: Callable[..., Any],
    client: WireClient,
    topic: str,
    schema: str,
    options: dict[str, str],
) -> None:
    from pyspark.sql.types import StructType

    fill(client, topic, 100)
    everything = reading(includeHeaders="true", **options)
    some = reading(schema, **options)
    names = some.columns
    assert names == [field.name for field in StructType.fromDDL(schema)]
    assert sorted(some.collect(), key=str) == sorted(everything.select(names).collect(), key=str)


@pytest.mark.parametrize("schema", ["value STRING", "valu BINARY", "key BINARY, key BINARY"])
def test_unknown_columns_are_an_error(reading: Callable[..., Any], schema: str) -> None:
    with pytest.raises(Exception) as error:
        reading(schema).count()
    assert "schema" in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "nowhere"}, "'nowhere' does not exist"),
        ({"startingOffsets": "{"}, "startingOffsets"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "not read: other-0"),
        ({"assign": '{"t": [0]}', "subscribe": "t"}, "exactly one of"),
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"valueFormat": "json"}, ".schema("),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "300",
          "kafka.default.api.timeout.ms": "600"}, "127.0.0.1:1"),
    ],
)  # fmt: skip
def test_an_invalid_option_is_an_error_that_names_it(
    spark: Any, broker: BrokerProcess, topic: str, options: dict[str, str], words: str
) -> None:
    base = {"kafka.bootstrap.servers": broker.address, "subscribe": topic}
    with pytest.raises(Exception) as error:
        spark.read.format("strandlog").options(**(base | options)).load().count()
    text = str(error.value)
    assert words in text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) <= 2, "the line, and Spark's SQLSTATE"


def run_available(frame: Any, checkpoint: str, name: str) -> Any:
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_resumes_where_it_stopped_and_shows_its_lag(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    out = str(tmp_path / "out")

    def run() -> list[int]:
        query = (
            spark.readStream.format("strandlog")
            .option("bootstrap.servers", broker.address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .option("groupId", topic)
            .load()
            .writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert run() == [40, 40, 20]
    committed = client.committed_offsets(topic)
    assert {tp.partition: at.offset for tp, at in committed.items()} == {0: 50, 1: 50}
    fill(client, topic, 10)
    assert run() == [10]
    assert spark.read.parquet(out).count() == 110
    offsets = json.loads(Path(tmp_path / "checkpoint" / "offsets" / "2").read_text().split("\n")[2])
    assert offsets.pop("#topicIds").keys() == {topic}
    assert offsets == {topic: {"0": 50, "1": 50}}


def test_a_folder_is_read_without_a_broker(spark: Any, tmp_path: Path, checkpoint: str) -> None:
    data = str(tmp_path / "data")
    with strandlog.open(data) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            producer.send_batch("t", [(b"k%d" % (n % 7), b"%d" % n) for n in range(5000)])
            producer.flush()
            frame = spark.read.format("strandlog").option("path", data).option("subscribe", "t")
            assert numbers(frame.load()) == list(range(5000))  # beside its owner
    stream = (
        spark.readStream.format("strandlog")
        .option("path", data)
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "30000")
        .load()
    )
    query = run_available(stream, checkpoint, "folder")
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == 5000
    assert len(rows) > 1


def test_deleted_records_are_an_error_or_skipped(
    broker: BrokerProcess, client: WireClient, topic: str, reading: Callable[..., Any]
) -> None:
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import AdminClient

    fill(client, topic, 100)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([KafkaPartition(topic, 0, 30)]).values():
        future.result(20)
    wanted = json.dumps({topic: {"0": 10, "1": 0}})
    with pytest.raises(Exception, match=f"offsets 10 to 29 of {topic}-0 were deleted"):
        reading(startingOffsets=wanted).count()
    assert reading(startingOffsets=wanted, failOnDataLoss="false").count() == 70


def test_uncommitted_records_are_not_read(
    client: WireClient, topic: str, reading: Callable[..., Any]
) -> None:
    tp = TopicPartition(topic, 0)
    fill(client, topic, 10)
    for number, commit in enumerate([True, False, None]):
        name = f"{topic}-{number}"
        producer = client.init_producer_id(name)
        client.add_partitions_to_txn(name, *producer, [tp])
        batch = build_batch(
            NOW_MS,
            [b"10%d" % number],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
            is_transactional=True,
        )
        assert client.produce({tp: [batch]}, transactional_id=name)[tp].error is None
        if commit is not None:
            client.end_txn(name, *producer, commit=commit)
    assert numbers(reading()) == [*range(10), 100]
    loose = reading(**{"kafka.isolation.level": "read_uncommitted"})
    assert numbers(loose) == [*range(10), 100, 101, 102]
