"""The two phases of the exactly-once sink against a real broker, without Spark around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.server import RunningBroker

from strandlog.client.wire.client import WireClient
from strandlog.errors import DataLossError, MessageTooLargeError, StrandlogError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.record.aborted import AbortedBatches
from strandlog.record.batch import iter_batches

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.options import SINK, parse_options  # noqa: E402
from strandlog.spark.sink.commit_log import CommitLog, Decision  # noqa: E402
from strandlog.spark.sink.writer import BatchSink, BatchWriter, TaskId, TaskMessage  # noqa: E402

QUERY = "8c0f7a1e-phases"


@pytest.fixture
def sink(broker: RunningBroker, topic: str) -> BatchSink:
    options = parse_options(SINK, {"bootstrap.servers": broker.address, "topic": topic})
    return BatchSink(options, is_exact=True)


def rows(*values: bytes) -> Iterator[Any]:
    return iter([pa.record_batch({"value": pa.array(values, pa.binary())})])


def task(topic: str, batch_id: int, partition: int = 0, attempt: int = 0) -> TaskId:
    return TaskId(f"{QUERY}-{topic}", batch_id, partition, attempt)


def committed(client: WireClient, topic: str) -> list[bytes]:
    """What a reader of committed records sees, up to the last stable offset."""
    found: list[bytes] = []
    for number in range(2):
        tp = TopicPartition(topic, number)
        end = client.latest_offsets([tp], IsolationLevel.READ_COMMITTED)[tp]
        for piece in client.read_range(tp, 0, end, IsolationLevel.READ_COMMITTED):
            aborted = AbortedBatches(piece.aborted)
            for batch in iter_batches(piece.data):
                batch.check()
                if not aborted.hides(batch):
                    found += [record.value or b"" for record in batch.records(*tp)]
    return sorted(found)


def end_of(client: WireClient, topic: str, isolation: IsolationLevel) -> int:
    tps = [TopicPartition(topic, number) for number in range(2)]
    return sum(client.latest_offsets(tps, isolation).values())


def test_rows_are_visible_when_the_driver_has_committed(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    messages = [sink.write(task(topic, 0, number), rows(b"%d" % number)) for number in range(3)]
    assert committed(client, topic) == []
    sink.publish(messages, 0)
    assert committed(client, topic) == [b"0", b"1", b"2"]


def test_a_batch_is_published_once(sink: BatchSink, client: WireClient, topic: str) -> None:
    sink.publish([sink.write(task(topic, 0), rows(b"a"))], 0)
    again = sink.write(task(topic, 0), rows(b"a"))
    assert (again.staged, again.rows) == (None, 0), "it is known to be published"
    sink.publish([again], 0)
    sink.publish([sink.write(task(topic, 1), rows(b"b"))], 1)
    assert committed(client, topic) == [b"a", b"b"]


def test_an_abort_never_undoes_a_published_batch(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    messages = [sink.write(task(topic, 0), rows(b"a"))]
    sink.publish(messages, 0)
    sink.give_up(messages, 0)  # Spark does that when commit() raised after it was done
    assert committed(client, topic) == [b"a"]
    sink.publish([sink.write(task(topic, 1), rows(b"b"))], 1)
    assert committed(client, topic) == [b"a", b"b"]


def test_an_abort_leaves_no_transaction_open(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    messages = [sink.write(task(topic, 0, number), rows(b"a")) for number in range(2)]
    sink.give_up(messages[:1], 0)  # the other task died before it returned
    assert committed(client, topic) == []
    stable = end_of(client, topic, IsolationLevel.READ_COMMITTED)
    assert stable == end_of(client, topic, IsolationLevel.READ_UNCOMMITTED)
    sink.publish([sink.write(task(topic, 0), rows(b"b"))], 0)
    assert committed(client, topic) == [b"b"]


def test_a_task_that_spark_gave_up_is_fenced(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    def slow() -> Iterator[Any]:
        yield from rows(b"zombie")
        second = sink.write(task(topic, 0, attempt=1), rows(b"alive"))
        messages.append(second)
        yield from rows(b"zombie again")

    messages: list[TaskMessage] = []
    with pytest.raises(StrandlogError):
        sink.write(task(topic, 0), slow())
    sink.publish(messages, 0)
    assert committed(client, topic) == [b"alive"]


def test_a_driver_that_commits_too_late_publishes_nothing(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    late = [sink.write(task(topic, 0), rows(b"old"))]
    fresh = [sink.write(task(topic, 0), rows(b"new"))]  # the same task, started by the next driver
    with pytest.raises(StrandlogError):
        sink.publish(late, 0)
    assert committed(client, topic) == []
    fresh = [sink.write(task(topic, 0), rows(b"new"))]
    sink.publish(fresh, 0)
    assert committed(client, topic) == [b"new"]


def test_a_batch_that_can_only_be_published_in_part_is_an_error(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    messages = [sink.write(task(topic, 0, number), rows(b"%d" % number)) for number in range(2)]
    lost = messages[1].staged
    assert lost is not None
    client.end_txn(*lost, commit=False)  # as the cluster does at its time-out
    client.init_producer_id(lost.transactional_id)
    for _ in range(2):  # every attempt fails
        with pytest.raises(DataLossError, match=r"1 of 2 transactions.*at_least_once"):
            sink.publish(messages, 0)
    assert committed(client, topic) == [b"0"]


def named_writer(broker: RunningBroker, topic: str | None, name: str, version: int) -> BatchWriter:
    given = {"bootstrap.servers": broker.address, "txnAppId": name, "txnVersion": str(version)}
    if topic is not None:
        given["topic"] = topic
    return BatchWriter(BatchSink(parse_options(SINK, given), is_exact=True))


def write_named(writer: BatchWriter, batches: Iterator[Any]) -> None:
    writer.commit([writer.write(batches)])


def test_each_topic_has_its_own_versions_of_a_name(
    broker: RunningBroker, client: WireClient, topic: str
) -> None:
    other = f"{topic}-other"
    client.create_topic(other, 2)
    for version in (1, 1, 2):
        write_named(named_writer(broker, topic, "job", version), rows(b"%d" % version))
        write_named(named_writer(broker, other, "job", version), rows(b"%d" % version))
    assert committed(client, topic) == committed(client, other) == [b"1", b"2"]


def test_rows_with_a_topic_column_are_one_write(
    broker: RunningBroker, client: WireClient, topic: str
) -> None:
    other = f"{topic}-other"
    client.create_topic(other, 2)
    name = f"columns-{topic}"

    def both(value: bytes) -> Iterator[Any]:
        columns = {"value": pa.array([value] * 2, pa.binary()), "topic": [topic, other]}
        return iter([pa.record_batch(columns)])

    for version, value in ((1, b"a"), (1, b"again"), (2, b"b")):
        write_named(named_writer(broker, None, name, version), both(value))
    assert committed(client, topic) == committed(client, other) == [b"a", b"b"]


@pytest.mark.parametrize(("version", "expected"), [(7, []), (8, [b"x"])])
def test_a_batch_that_version_0_1_0_published_is_not_published_again(
    broker: RunningBroker, client: WireClient, topic: str, version: int, expected: list[bytes]
) -> None:
    CommitLog(client, "strandlog.spark.commits", f"app-{topic}").write(Decision(7))
    write_named(named_writer(broker, topic, topic, version), rows(b"x"))
    assert committed(client, topic) == expected


def test_a_decision_is_found_after_the_commit_topic_was_created_again(
    broker: RunningBroker, client: WireClient, topic: str
) -> None:
    from confluent_kafka.admin import AdminClient

    log = CommitLog(client, f"{topic}-commits", topic)
    for number in range(4):
        log.write(Decision(number))
    tp = TopicPartition(f"{topic}-commits", 0)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([tp.topic])[tp.topic].result(20)
    client.create_topic(tp.topic, 1)
    CommitLog(client, tp.topic, topic).write(Decision(9))
    client.commit_offsets(f"strandlog-spark-{topic}", {tp: 3})  # what brokers may still remember
    assert log.last().batch_id == 9


def test_a_row_that_is_too_large_is_an_error_that_names_the_limit(
    sink: BatchSink, client: WireClient, topic: str
) -> None:
    large = f"{topic}-large"
    client.create_topic(large, 1, {"max.message.bytes": "4000000"})
    given = {"bootstrap.servers": sink.options["bootstrap.servers"], "topic": large}
    with pytest.raises(MessageTooLargeError, match=r"raise kafka\.max\.request\.size, and max\.me"):
        BatchSink(parse_options(SINK, given), is_exact=True).write(
            task(large, 0), rows(bytes(2**21))
        )
    wider = parse_options(SINK, {**given, "kafka.max.request.size": "3000000"})
    message = BatchSink(wider, is_exact=True).write(task(large, 0), rows(bytes(2**21)))
    assert message.rows == 1
