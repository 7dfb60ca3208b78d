"""The gRPC service over a real channel to a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from confluent_kafka import Consumer, Producer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of
from tests.support.kafka_transactions import KafkaTransactions
from tests.support.waiting import eventually
from tools.gen_grpc import TARGET, generate

from strandlog.protocol.rpc import log_pb2 as messages
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub

PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = BrokerProcess(
        tmp_path_factory.mktemp("grpc") / "data",
        {"group.initial.rebalance.delay.ms": "0", "message.max.bytes": "200000"},
        listeners=("--grpc-port", "0", "--http-port", "0"),
    )
    running.start()
    yield running
    assert running.stop() == 0, "it stops cleanly"


def address_of(broker: BrokerProcess) -> str:
    [found] = [word for word in broker.ready.split() if word.startswith("grpc=")]
    return found.removeprefix("grpc=")


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address_of(broker)) as opened:
        yield opened


@pytest.fixture
def log(channel: grpc.Channel) -> Any:
    return LogServiceStub(channel)  # type: ignore[no-untyped-call]


def record(value: bytes | None, key: bytes | None = None, **headers: bytes) -> messages.Record:
    return messages.Record(
        key=key,
        value=value,
        headers=[messages.Header(key=name, value=each) for name, each in headers.items()],
    )


def make(log: Any, name: str, partitions: int = 1, **config: str) -> str:
    log.CreateTopic(
        messages.CreateTopicRequest(name=name, num_partitions=partitions, config=config)
    )
    return name


def entries(log: Any, topic: str, partition: int = 0, offset: int = 0, **more: Any) -> list[Any]:
    request = messages.ConsumeRequest(topic=topic, partition=partition, offset=offset, **more)
    return [entry for batch in log.Consume(request) for entry in batch.entries]


@pytest.mark.parametrize("acks", [messages.ACKS_NONE, messages.ACKS_LEADER, messages.ACKS_ALL])
def test_consumed_records_equal_produced_records(log: Any, acks: messages.Acks) -> None:
    topic = make(log, f"as-they-are-{acks}")
    sent = [
        record(b"v", b"k", color=b"red"),
        record(b"", b""),
        record(None, b"only a key"),
        messages.Record(value=b"old", timestamp=1_700_000_000_000),
        messages.Record(value=b"h", headers=[messages.Header(key="null")]),
    ]
    answer = log.Produce(messages.ProduceRequest(topic=topic, partition=0, records=sent, acks=acks))
    if acks == messages.ACKS_NONE:
        assert not answer.offsets
    else:
        assert list(answer.offsets) == [0, 1, 2, 3, 4]
        assert list(answer.partitions) == [0] * 5
    found = entries(log, topic)
    assert [entry.offset for entry in found] == [0, 1, 2, 3, 4]
    for before, after in zip(sent, found, strict=True):
        assert before.HasField("key") == after.HasField("key")
        assert before.HasField("value") == after.HasField("value")
        assert (before.key, before.value, before.headers) == (after.key, after.value, after.headers)
    assert found[3].timestamp == 1_700_000_000_000
    assert abs(found[0].timestamp - time.time() * 1000) < 60_000


def test_a_key_maps_to_the_same_partition_as_in_kafka_clients(
    log: Any, broker: BrokerProcess
) -> None:
    topic = make(log, "routed", 5)
    keys = [b"key-%d" % number for number in range(50)]
    records = [record(key, key) for key in keys]
    answer = log.Produce(
        messages.ProduceRequest(topic=topic, records=records, acks=messages.ACKS_LEADER)
    )
    chosen: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(
            topic, key, key, on_delivery=lambda _, m: chosen.__setitem__(m.key(), m.partition())
        )
    assert producer.flush(PATIENCE_S) == 0
    assert dict(zip(keys, answer.partitions, strict=True)) == chosen
    assert len(set(answer.partitions)) == 5


def test_kafka_clients_and_grpc_read_each_other(log: Any, broker: BrokerProcess) -> None:
    topic = make(log, "both")
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": "zstd"})
    for number in range(100):
        producer.produce(topic, b"kafka %d" % number, b"k", headers={"h": b"x"})
    assert producer.flush(PATIENCE_S) == 0
    log.Produce(
        messages.ProduceRequest(topic=topic, records=[record(b"grpc")], acks=messages.ACKS_ALL)
    )
    values = [entry.value for entry in entries(log, topic)]
    assert values == [*(b"kafka %d" % number for number in range(100)), b"grpc"]
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "both",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    seen: list[bytes] = []
    while len(seen) < 101:
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.error() is None
        seen.append(message.value() or b"")
    consumer.close()
    assert seen == values


def test_a_following_stream_returns_later_records(log: Any) -> None:
    topic = make(log, "followed")
    stream = log.Consume(messages.ConsumeRequest(topic=topic, follow=True))
    found: list[bytes] = []

    def follow() -> None:
        for batch in stream:
            found.extend(entry.value for entry in batch.entries)
            if len(found) == 3:
                stream.cancel()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(3):
        eventually(lambda sent=number: len(found) == sent, "the stream delivers each record")  # type: ignore[misc]
        request = messages.ProduceRequest(
            topic=topic, records=[record(b"%d" % number)], acks=messages.ACKS_LEADER
        )
        log.Produce(request)
    thread.join(PATIENCE_S)
    assert found == [b"0", b"1", b"2"]


def test_consume_omits_aborted_transactions_unless_uncommitted_records_are_requested(
    log: Any, broker: BrokerProcess
) -> None:
    topic = make(log, "committed")
    transactions = KafkaTransactions(broker.address, "grpc-test")
    transactions.begin(topic, b"kept")
    transactions.commit()
    transactions.begin(topic, b"not")
    transactions.abort()
    assert [entry.value for entry in entries(log, topic)] == [b"kept"]
    everything = entries(log, topic, include_uncommitted=True)
    assert [entry.value for entry in everything] == [b"kept", b"not"]


def test_a_base_offset_that_changes_while_the_broker_runs_ends_a_consume_with_an_error(
    log: Any, broker: BrokerProcess
) -> None:
    topic = make(log, "changed-offset")
    for number in range(5):
        one = messages.ProduceRequest(topic=topic, partition=0, records=[record(b"%d" % number)])
        log.Produce(one)
    file = broker.data / f"{topic}-0" / "00000000000000000000.log"
    size = file.stat().st_size // 5
    with file.open("r+b") as opened:
        opened.seek(2 * size + 7)
        opened.write(b"\3")  # the third batch now claims the offset of the fourth
    calls = log.Consume(messages.ConsumeRequest(topic=topic, partition=0, offset=0))
    seen = []
    with pytest.raises(grpc.RpcError) as failed:
        for answer in calls:
            seen += [(each.offset, each.value) for each in answer.entries]
    assert seen == [(0, b"0"), (1, b"1")]
    assert failed.value.code() is grpc.StatusCode.DATA_LOSS


def test_consume_messages_have_about_the_requested_size(log: Any) -> None:
    topic = make(log, "sizes")
    for _ in range(20):
        rows = [record(b"x" * 1000) for _ in range(10)]
        log.Produce(messages.ProduceRequest(topic=topic, records=rows, acks=messages.ACKS_LEADER))
    request = messages.ConsumeRequest(topic=topic, max_bytes=30_000)
    batches = list(log.Consume(request))
    assert sum(len(batch.entries) for batch in batches) == 200
    assert all(batch.ByteSize() < 45_000 for batch in batches)
    assert len(batches) >= 7
    assert [batch.next_offset for batch in batches][-1] == batches[-1].high_watermark == 200
    again = entries(log, topic, offset=batches[2].next_offset)
    assert again[0].offset == batches[2].next_offset


def test_topics_are_created_described_and_deleted(log: Any) -> None:
    make(log, "described", 3, **{"retention.ms": "86400000"})
    rows = [record(b"x", b"k%d" % number) for number in range(30)]
    log.Produce(messages.ProduceRequest(topic="described", records=rows, acks=messages.ACKS_ALL))
    told = log.DescribeTopic(messages.DescribeTopicRequest(name="described"))
    assert sum(part.end_offset - part.start_offset for part in told.partitions) == 30
    assert sum(part.size_bytes for part in told.partitions) > 30
    assert dict(told.config) == {"retention.ms": "86400000"}
    listed = log.ListTopics(messages.ListTopicsRequest()).topics
    assert [list(each.partitions) for each in listed if each.name == "described"] == [[0, 1, 2]]
    assert not [each.name for each in listed if each.name.startswith("__")]
    log.DeleteTopic(messages.DeleteTopicRequest(name="described"))
    listed = log.ListTopics(messages.ListTopicsRequest()).topics
    assert "described" not in [each.name for each in listed]


def test_offsets_of_a_group_are_kept(log: Any) -> None:
    topic = make(log, "offsets", 2)
    ask = messages.FetchOffsetRequest(group="g", topic=topic, partition=1)
    assert not log.FetchOffset(ask).HasField("offset")
    log.CommitOffset(
        messages.CommitOffsetRequest(group="g", topic=topic, partition=1, offset=7, metadata="note")
    )
    told = log.FetchOffset(ask)
    assert (told.offset, told.metadata) == (7, "note")


def _produce(topic: str, *values: bytes, **more: Any) -> tuple[str, Any]:
    rows = [record(value) for value in values]
    return "Produce", messages.ProduceRequest(
        topic=topic, records=rows, acks=messages.ACKS_LEADER, **more
    )


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (_produce("nowhere", b"x"), "NOT_FOUND", "nowhere"),
        (_produce("errors", b"x", partition=9), "NOT_FOUND", "9"),
        (_produce("errors"), "INVALID_ARGUMENT", "no records"),
        (_produce("errors", b"x" * 300_000), "RESOURCE_EXHAUSTED", "300"),
        (_produce("__consumer_offsets", b"x", partition=0), "INVALID_ARGUMENT", "internal topic"),
        (("Consume", messages.ConsumeRequest(topic="nowhere")), "NOT_FOUND", "nowhere"),
        (("Consume", messages.ConsumeRequest(topic="errors", offset=5)), "OUT_OF_RANGE", "0"),
        (
            ("Consume", messages.ConsumeRequest(topic="errors", offset=2**64 - 1)),
            "OUT_OF_RANGE",
            "0",
        ),
        (("CreateTopic", messages.CreateTopicRequest(name="errors")), "ALREADY_EXISTS", "errors"),
        (("CreateTopic", messages.CreateTopicRequest(name="a/b")), "INVALID_ARGUMENT", "a/b"),
        (
            ("CreateTopic", messages.CreateTopicRequest(name="x", config={"retention.m": "1"})),
            "INVALID_ARGUMENT",
            "retention.ms",
        ),
        (
            ("CreateTopic", messages.CreateTopicRequest(name="x", num_partitions=10**7)),
            "INVALID_ARGUMENT",
            "partitions",
        ),
        (("DescribeTopic", messages.DescribeTopicRequest(name="no")), "NOT_FOUND", "no"),
        (("DeleteTopic", messages.DeleteTopicRequest(name="no")), "NOT_FOUND", "no"),
        (
            ("CommitOffset", messages.CommitOffsetRequest(group="", topic="errors")),
            "INVALID_ARGUMENT",
            "group",
        ),
        (("FetchOffset", messages.FetchOffsetRequest(group="g", topic="no")), "NOT_FOUND", "no"),
    ],
)
def test_errors_have_a_code_and_name_the_cause(
    log: Any, call: tuple[str, Any], code: str, words: str
) -> None:
    try:
        make(log, "errors")
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    log.CommitOffset(messages.CommitOffsetRequest(group="g", topic="errors"))
    method, request = call
    with pytest.raises(grpc.RpcError) as refused:
        answer = getattr(log, method)(request)
        list(answer) if method == "Consume" else None
    assert refused.value.code().name == code
    assert words in refused.value.details()


def test_only_members_commit_offsets_of_an_active_group(log: Any, broker: BrokerProcess) -> None:
    topic = make(log, "membered")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "membered"})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.1) or consumer.assignment(), "an assignment")
    with pytest.raises(grpc.RpcError) as refused:
        log.CommitOffset(messages.CommitOffsetRequest(group="membered", topic=topic, offset=1))
    consumer.close()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_topic_is_not_deleted_if_deletion_is_disabled(tmp_path: Path) -> None:
    settings = {"delete.topic.enable": "false"}
    strict = BrokerProcess(tmp_path / "data", settings, listeners=("--grpc-port", "0", "--no-http"))
    strict.start()
    try:
        with grpc.insecure_channel(address_of(strict)) as channel:
            log: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
            make(log, "kept")
            with pytest.raises(grpc.RpcError) as refused:
                log.DeleteTopic(messages.DeleteTopicRequest(name="kept"))
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert [each.name for each in log.ListTopics(messages.ListTopicsRequest()).topics] == [
                "kept"
            ]
    finally:
        strict.stop()


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    told = health.Check(health_pb2.HealthCheckRequest(service="strandlog.v1.LogService"))
    assert told.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    [answer] = reflection.ServerReflectionInfo(iter([asked]))
    names = {service.name for service in answer.list_services_response.service}
    assert {"strandlog.v1.LogService", "grpc.health.v1.Health"} <= names


def waiting_fetches(http: httpx.Client) -> int:
    lines = http.get("/metrics").text.splitlines()
    [line] = [each for each in lines if each.startswith("strandlog_waiting_fetches ")]
    return int(float(line.split()[1]))


def test_two_hundred_streams_follow_at_once(log: Any, broker: BrokerProcess) -> None:
    topic = make(log, "streams")
    began = threading.Barrier(201)

    def follow() -> bytes:
        stream = log.Consume(messages.ConsumeRequest(topic=topic, follow=True))
        began.wait(PATIENCE_S)
        batch = next(iter(stream))
        stream.cancel()
        value: bytes = batch.entries[0].value
        return value

    with ThreadPoolExecutor(200) as pool, client_of(broker) as http:
        waiting = [pool.submit(follow) for _ in range(200)]
        began.wait(PATIENCE_S)
        eventually(lambda: waiting_fetches(http) == 200, "all streams wait for records")
        log.Produce(
            messages.ProduceRequest(
                topic=topic, records=[record(b"all")], acks=messages.ACKS_LEADER
            )
        )
        assert {each.result(PATIENCE_S) for each in waiting} == {b"all"}


@pytest.mark.slow
def test_streams_that_are_not_read_lose_no_record(log: Any) -> None:
    topic = make(log, "slow")
    rows = [record(b"x" * 1000) for _ in range(100)]
    request = messages.ProduceRequest(topic=topic, records=rows, acks=messages.ACKS_LEADER)
    log.Produce(request)
    streams = [log.Consume(messages.ConsumeRequest(topic=topic, follow=True)) for _ in range(3)]
    firsts = [next(iter(stream)) for stream in streams]
    for _ in range(99):
        log.Produce(request)
    for stream, first in zip(streams, firsts, strict=True):
        seen = len(first.entries)
        while seen < 10_000:
            batch = next(iter(stream))
            assert batch.entries[0].offset == seen
            seen += len(batch.entries)
        stream.cancel()


def test_a_stream_does_not_continue_in_a_recreated_topic(log: Any, broker: BrokerProcess) -> None:
    topic = make(log, "recreated")
    large = [record(b"old" + bytes(40_000)) for _ in range(4)]
    for _ in range(100):  # more than fits between a server and a client that does not read
        log.Produce(messages.ProduceRequest(topic=topic, records=large, acks=messages.ACKS_ALL))
    request = messages.ConsumeRequest(topic=topic, follow=True, max_bytes=50_000)
    stream = log.Consume(request, timeout=PATIENCE_S)
    values = [entry.value[:3] for entry in next(stream).entries]
    with client_of(broker) as client:
        fetched = [-1.0]  # grows until the connection takes no more and the server waits

        def is_waiting() -> bool:
            [total] = re.findall(
                r"\nstrandlog_fetched_bytes_total (\S+)", client.get("/metrics").text
            )
            fetched.append(float(total))
            return fetched[-1] == fetched[-2]

        eventually(is_waiting, "the server to wait for the client")
    log.DeleteTopic(messages.DeleteTopicRequest(name=topic))
    make(log, topic)
    small = [record(b"new") for _ in range(500)]
    log.Produce(messages.ProduceRequest(topic=topic, records=small, acks=messages.ACKS_ALL))
    with pytest.raises(grpc.RpcError) as ended:
        values += [entry.value[:3] for batch in stream for entry in batch.entries]
    assert set(values) == {b"old"}
    assert ended.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.slow
def test_clients_that_disconnect_during_a_write_are_internal_errors(tmp_path: Path) -> None:
    """One in fifty was."""
    listeners = ("--grpc-port", "0", "--no-http")
    running = BrokerProcess(tmp_path / "data", log=tmp_path / "stderr.txt", listeners=listeners)
    running.start()
    local = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address_of(running)) as channel:
        log: Any = LogServiceStub(channel)  # type: ignore[no-untyped-call]
        topic = make(log, "left")
        large = [record(bytes(40_000)) for _ in range(4)]
        for _ in range(100):
            log.Produce(messages.ProduceRequest(topic=topic, records=large, acks=messages.ACKS_ALL))
    for _ in range(30):
        channels = [grpc.insecure_channel(address_of(running), local) for _ in range(10)]
        stubs: list[Any] = [LogServiceStub(each) for each in channels]  # type: ignore[no-untyped-call]
        request = messages.ConsumeRequest(topic=topic, follow=True)
        streams = [stub.Consume(request, timeout=PATIENCE_S) for stub in stubs]
        for number, stream in enumerate(streams):
            for _ in range(number % 4):
                next(stream)
        for each in channels:
            each.close()
    assert running.stop() == 0
    assert "internal error" not in (tmp_path / "stderr.txt").read_text()


def test_compressed_batches_are_split_into_messages_that_clients_accept(
    log: Any, broker: BrokerProcess
) -> None:
    topic = make(log, "compressed")
    settings = {"compression.type": "zstd", "linger.ms": 100, "batch.num.messages": 2000}
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    for number in range(20_000):
        producer.produce(topic, f"{number:05}" + "x" * 1000, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    seen = 0
    for batch in log.Consume(messages.ConsumeRequest(topic=topic)):  # clients take 4 MB at most
        assert batch.ByteSize() < 1_500_000, "about as much as was asked for"
        for entry in batch.entries:
            assert entry.offset == seen and entry.value.startswith(b"%05d" % seen)
            seen += 1
        assert batch.next_offset == seen
    assert seen == 20_000
    small = next(iter(log.Consume(messages.ConsumeRequest(topic=topic, max_bytes=1))))
    assert [entry.offset for entry in small.entries] == [0], "one is always sent"


@pytest.mark.slow
def test_a_port_in_use_is_reported(broker: BrokerProcess, tmp_path: Path) -> None:
    port = address_of(broker).rpartition(":")[2]
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "d"), "--port", "0"]
    ended = subprocess.run(
        [*command, "--grpc-port", port], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert "--grpc-port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_generated_modules_are_those_of_the_proto() -> None:
    for name, text in generate().items():
        assert (TARGET / name).read_text() == text, "run `make grpc`"
