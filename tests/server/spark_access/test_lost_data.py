"""Topics that change under a query: what is lost is an error, or a warning, and never silence.

Readers are plain classes; Spark's part, keeping the offsets, is played here. The broker is real.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.numbered_values import NOW_MS, fill
from tests.support.server import RunningBroker

import strandlog
from strandlog.client.wire.client import WireClient
from strandlog.errors import DataLossError, InvalidSettingError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from strandlog.spark.options import BATCH, STREAM, parse_options
from strandlog.spark.schema import record_schema
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.reader import BatchReader, RangeReader, StreamReader

LENIENT = {"failOnDataLoss": "false"}
EVERYTHING = ReadAllAvailable()


def range_reader(use: str, given: dict[str, str]) -> RangeReader:
    options = parse_options(use, given)
    return RangeReader(options, Decoder(options, record_schema(options)), 2)


class Stream:
    """A streaming query: its reader and its checkpoint."""

    def __init__(self, given: dict[str, str], offset: dict[str, Any] | None = None) -> None:
        self.reader = StreamReader(range_reader(STREAM, given))
        try:
            self.offset = self.reader.initialOffset() if offset is None else offset
        except BaseException:
            self.close()
            raise

    def run(self, limit: Any = EVERYTHING) -> list[int]:
        """The values of one micro-batch."""
        end = self.reader.latestOffset(self.offset, limit)
        found = values(self.reader, self.reader.partitions(self.offset, end))
        self.offset = end
        return found

    def close(self) -> None:
        self.reader.stop()


def values(reader: Any, tasks: list[Any]) -> list[int]:
    tables = (batch for task in tasks for batch in reader.read(task))
    return sorted(int(value.as_py()) for table in tables for value in table.column("value"))


@pytest.fixture
def given(broker: RunningBroker, topic: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }


@pytest.fixture
def streams() -> Iterator[Callable[..., Stream]]:
    opened: list[Stream] = []

    def start(*args: Any) -> Stream:
        opened.append(Stream(*args))
        return opened[-1]

    yield start
    for stream in opened:
        stream.close()


@pytest.fixture
def delete(broker: RunningBroker) -> Callable[[str], None]:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.address})

    def run(topic: str) -> None:
        admin.delete_topics([topic])[topic].result(20)

    return run


def delete_records(broker: RunningBroker, topic: str, partition: int, offset: int) -> None:
    from confluent_kafka import TopicPartition as KafkaPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([KafkaPartition(topic, partition, offset)]).values():
        future.result(20)


# -- a start beyond the end ----------------------------------------------------------------------


@pytest.mark.parametrize("refilled", [50, 100, 150])
def test_a_topic_that_was_created_again_and_refilled_is_an_error_or_read_from_its_start(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    delete: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
    refilled: int,
) -> None:
    fill(client, topic, 100)
    stream = streams(given)
    assert len(stream.run()) == 100
    kept = json.loads(json.dumps(stream.offset))  # as Spark's checkpoint keeps it
    delete(topic)
    client.create_topic(topic, 2)
    fill(client, topic, refilled)
    with pytest.raises(DataLossError, match="deleted and created again"):
        stream.run()
    with pytest.raises(DataLossError, match="deleted and created again"):
        streams(given, kept).run()
    lenient = streams(given | LENIENT, kept)
    with caplog.at_level(logging.WARNING):
        assert lenient.run() == list(range(refilled))
    assert "deleted and created again" in caplog.text
    assert lenient.run() == []
    fill(client, topic, 4)
    assert lenient.run() == [0, 1, 2, 3]


def test_a_checkpoint_without_topic_ids_detects_offsets_beyond_the_end(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 50)
    old = {topic: {"0": 100, "1": 25}}
    with pytest.raises(DataLossError, match=f"{topic}-0 ends at offset 25"):
        streams(given, old).run()
    stream = streams(given | LENIENT, old)
    with caplog.at_level(logging.WARNING):
        assert stream.run() == []
    assert f"{topic}-0 ends at offset 25" in caplog.text
    fill(client, topic, 10)
    assert stream.run() == list(range(10))  # continues at the end, like Spark's Kafka source


def test_a_checkpoint_without_topic_ids_resumes_where_it_stopped(
    client: WireClient, topic: str, given: dict[str, str], streams: Callable[..., Stream]
) -> None:
    fill(client, topic, 100)
    old = {topic: {"0": 50, "1": 50}}
    stream = streams(given, old)
    assert stream.run() == []
    assert stream.offset == old, "another text would make Spark run an empty batch"
    fill(client, topic, 10)
    assert stream.run() == list(range(10))
    assert "#topicIds" in stream.offset


def test_a_batch_that_is_planned_again_does_not_read_a_recreated_topic(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    delete: Callable[[str], None],
) -> None:
    fill(client, topic, 100)
    first = streams(given)
    end = first.reader.latestOffset(first.offset, ReadMaxRows(60))
    tasks = first.reader.partitions(first.offset, end)
    delete(topic)
    client.create_topic(topic, 2)
    fill(client, topic, 100)
    with pytest.raises(DataLossError, match="deleted and created again"):
        values(first.reader, tasks)  # tasks that were planned before
    with pytest.raises(DataLossError, match="deleted and created again"):
        streams(given, first.offset).reader.partitions(first.offset, end)  # after a restart
    lenient = streams(given | LENIENT, first.offset).reader
    assert lenient.partitions(first.offset, end) == []
    assert values(lenient, tasks) == []


@pytest.mark.parametrize(
    ("start", "end", "error", "words"),
    [
        (999, -1, DataLossError, "ends at offset 3 and cannot be read from 999"),
        (0, 999, DataLossError, "ends at offset 3"),
        (2, 1, InvalidSettingError, "before its start"),
    ],
)
def test_a_batch_outside_of_the_existing_offsets_is_an_error(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    start: int,
    end: int,
    error: type[Exception],
    words: str,
) -> None:
    fill(client, topic, 6)
    wanted = {
        "startingOffsets": json.dumps({topic: {"0": start, "1": 0}}),
        "endingOffsets": json.dumps({topic: {"0": end, "1": 3}}),
    }
    with pytest.raises(error, match=words):
        BatchReader(range_reader(BATCH, given | wanted)).partitions()
    if error is DataLossError:
        lenient = BatchReader(range_reader(BATCH, given | wanted | LENIENT))
        expected = {1, 3, 5} | ({0, 2, 4} if start == 0 else set())
        assert values(lenient, lenient.partitions()) == sorted(expected)


def test_a_stream_that_starts_beyond_the_end_is_an_error(
    client: WireClient, topic: str, given: dict[str, str], streams: Callable[..., Stream]
) -> None:
    fill(client, topic, 6)
    far = {"startingOffsets": json.dumps({topic: {"0": 999, "1": 0}})}
    with pytest.raises(DataLossError, match="cannot be read from 999"):
        streams(given | far)
    assert streams(given | far | LENIENT).run() == [1, 3, 5]


def test_records_behind_an_open_transaction_are_no_loss(
    client: WireClient, topic: str, given: dict[str, str], streams: Callable[..., Stream]
) -> None:
    fill(client, topic, 10)
    tp = TopicPartition(topic, 0)
    producer = client.init_producer_id(topic)
    client.add_partitions_to_txn(topic, *producer, [tp])
    batch = build_batch(
        NOW_MS,
        [b"77"],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        is_transactional=True,
    )
    assert client.produce({tp: [batch]}, transactional_id=topic)[tp].error is None
    loose = streams(given | {"kafka.isolation.level": "read_uncommitted"})
    assert 77 in loose.run()
    strict = streams(given, loose.offset)  # the same checkpoint, for committed records now
    assert strict.run() == []
    assert strict.offset == loose.offset
    client.end_txn(topic, *producer, commit=False)
    fill(client, topic, 4)
    found = strict.run()
    while len(found) < 4:  # Apache Kafka writes the end of a transaction a little later
        found += strict.run()
    assert sorted(found) == [0, 1, 2, 3]


# -- deleted topics and records ------------------------------------------------------------------


def test_a_deleted_topic_does_not_reset_the_offsets_of_the_others(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    delete: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = f"{topic}-other"
    client.create_topic(other, 2)
    for name in (topic, other):
        fill(client, name, 20)
    by_pattern = {"subscribePattern": f"^{topic}(-other)?$", **given, **LENIENT}
    del by_pattern["subscribe"]
    stream = streams(by_pattern)
    assert len(stream.run()) == 40
    read_earliest = WireClient.earliest_offsets

    def deleted_meanwhile(self: WireClient, partitions: Any) -> Any:
        monkeypatch.undo()
        delete(other)
        return read_earliest(self, partitions)

    monkeypatch.setattr(WireClient, "earliest_offsets", deleted_meanwhile)
    assert stream.run() == [], "what was read is not read again"
    assert stream.offset[topic] == {"0": 10, "1": 10}
    assert other not in stream.offset
    fill(client, topic, 4)
    assert stream.run() == [0, 1, 2, 3]


def test_records_deleted_while_a_task_reads_are_reported_and_none_is_read_twice(
    client: WireClient, broker: RunningBroker, topic: str, given: dict[str, str]
) -> None:
    tp = TopicPartition(topic, 0)
    large = b"x" * 2000
    for start in range(0, 3000, 500):
        numbered = [b"%d" % number for number in range(start, start + 500)]
        batch = build_batch(NOW_MS, numbered, [large] * 500)
        assert client.produce({tp: [batch]})[tp].error is None
    wanted = given | {"kafka.max.partition.fetch.bytes": "1000", "assign": f'{{"{topic}": [0]}}'}
    del wanted["subscribe"]

    def read(options: dict[str, str], upto: int) -> list[int]:
        reader = BatchReader(range_reader(BATCH, options))
        [task] = reader.partitions()
        found: list[int] = []
        for number, batch in enumerate(reader.read(task)):
            found += [int(value.as_py()) for value in batch.column("value")]
            if number == 0:
                delete_records(broker, topic, 0, upto)
        return found

    with pytest.raises(DataLossError, match=f"offsets 1000 to 1499 of {topic}-0 were deleted"):
        read(wanted, 1500)
    found = read(wanted | LENIENT, 2900)
    assert found == sorted(set(found)), "nothing twice"
    assert {*range(1500, 2000), *range(2900, 3000)} <= set(found)


def test_a_topic_deleted_between_planning_and_reading_is_reported(
    client: WireClient, topic: str, given: dict[str, str], delete: Callable[[str], None]
) -> None:
    fill(client, topic, 10)
    strict = BatchReader(range_reader(BATCH, given))
    tasks = strict.partitions()
    delete(topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 was deleted"):
        values(strict, tasks)
    assert values(BatchReader(range_reader(BATCH, given | LENIENT)), tasks) == []


def test_a_new_partition_is_read_from_its_start_or_reported(
    client: WireClient,
    broker: RunningBroker,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    fill(client, topic, 10)
    strict, lenient = streams(given), streams(given | LENIENT)
    assert strict.run() == lenient.run() == list(range(10))
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    added = TopicPartition(topic, 2)
    assert client.produce({added: [build_batch(NOW_MS, [b"7", b"8"])]})[added].error is None
    before = strict.offset
    assert strict.run() == [7, 8]
    delete_records(broker, topic, 2, 1)
    with pytest.raises(DataLossError, match=f"offsets 0 to 0 of {topic}-2 were deleted"):
        streams(given, before).run()
    assert lenient.run() == [8]


def test_an_empty_topic_is_no_loss(
    topic: str, given: dict[str, str], streams: Callable[..., Stream]
) -> None:
    stream = streams(given)
    assert stream.run() == []
    assert BatchReader(range_reader(BATCH, given)).partitions() == []


# -- folders -------------------------------------------------------------------------------------


def test_a_folder_whose_topic_was_created_again_is_an_error_or_read_from_its_start(
    tmp_path: Path, streams: Callable[..., Stream]
) -> None:
    given = {"path": str(tmp_path / "data"), "subscribe": "t", "startingOffsets": "earliest"}
    with strandlog.open(given["path"]) as log:

        def refill() -> None:
            log.create_topic("t", partitions=1)
            with log.producer() as producer:
                producer.send_batch("t", [(None, b"%d" % number) for number in range(100)])

        refill()
        stream, lenient = streams(given), streams(given | LENIENT)
        assert stream.run() == lenient.run() == list(range(100))
        log.delete_topic("t")
        refill()
        with pytest.raises(DataLossError, match="deleted and created again"):
            stream.run()
        assert lenient.run() == list(range(100))


def test_a_folder_does_not_end_a_range_early(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "data"), "subscribe": "t"}
    with strandlog.open(given["path"]) as log:
        log.create_topic("t", partitions=1)
        with log.producer() as producer:
            producer.send_batch("t", [(None, b"%d" % number) for number in range(5)])
        wanted = given | {"endingOffsets": '{"t": {"0": 9}}'}
        with pytest.raises(DataLossError, match="t-0 ends at offset 5"):
            BatchReader(range_reader(BATCH, wanted)).partitions()
        reader = BatchReader(range_reader(BATCH, given))
        [task] = reader.partitions()
        task.wanted = task.wanted._replace(end=9)  # planned when there were nine
        with pytest.raises(DataLossError, match="t-0 ends at offset 5"):
            values(reader, [task])


# -- calls of an idle query ----------------------------------------------------------------------


def test_a_loss_is_reported_once_while_a_query_waits_for_more(
    client: WireClient,
    broker: RunningBroker,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 10)
    stream = streams(given | LENIENT | {"minOffsetsPerTrigger": "1000"})
    assert len(stream.run()) == 10
    fill(client, topic, 10)
    delete_records(broker, topic, 0, 7)
    with caplog.at_level(logging.WARNING):
        found = [stream.reader.latestOffset(stream.offset, EVERYTHING)]
        found += [stream.reader.latestOffset(found[-1], EVERYTHING) for _ in range(20)]
    assert caplog.text.count("offsets 5 to 6") == 1
    assert found[1:] == found[:1] * 20


def test_a_failed_commit_of_progress_is_not_retried_at_every_call(
    client: WireClient,
    topic: str,
    given: dict[str, str],
    streams: Callable[..., Stream],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(client, topic, 10)
    stream = streams(given | {"groupId": ""})
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            stream.run()
    assert caplog.text.count("cannot commit progress") == 1


def test_min_offsets_per_trigger_does_not_cause_an_empty_micro_batch(
    client: WireClient, topic: str, given: dict[str, str], streams: Callable[..., Stream]
) -> None:
    fill(client, topic, 6)
    stream = streams(given | {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"})
    assert len(stream.run()) == 6, "the first one is due at once"
    fill(client, topic, 6)
    assert stream.run() == []
    fill(client, topic, 6)
    assert len(stream.run()) == 12
