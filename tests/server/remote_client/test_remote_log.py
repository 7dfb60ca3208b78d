"""`strandlog.connect`: topics, settings and groups of a broker, and translated errors."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.server import RunningBroker

import strandlog
from strandlog import AclFilter, RemoteLog, TopicPartition, errors
from strandlog.client.api import UNKNOWN
from strandlog.client.remote.errors import confluent, error_of
from strandlog.errors import InvalidRecordError
from strandlog.testing.server import ServerThread


def test_a_topics_life(remote: RemoteLog) -> None:
    made = remote.create_topic("t", 3, {"retention.ms": "1d"})
    assert (made.name, len(made.partitions)) == ("t", 3)
    assert made.config == {"retention.ms": 86_400_000}
    assert made.partitions[0] == strandlog.PartitionInfo(0, 0, 0, UNKNOWN, UNKNOWN)
    assert remote.topics() == ["t"]
    altered = remote.alter_topic("t", {"retention.ms": None, "segment.bytes": "1MiB"}, 4)
    assert (altered.config, len(altered.partitions)) == ({"segment.bytes": 1_048_576}, 4)
    assert altered.topic_id == made.topic_id
    settings = remote.topic_settings("t")
    assert settings["segment.bytes"] == 1_048_576
    assert settings["cleanup.policy"] == ("delete",)
    remote.delete_topic("t")
    assert remote.topics() == []


def test_a_topic_is_the_same_as_its_owner_sees_it(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2, {"retention.ms": "3d", "max.message.bytes": "2MiB"})
        log.producer().send_batch("t", [b"1", b"2", b"3"])
        log.delete_records("t", 0, 1)
        log.commit_offsets("g", {TopicPartition("t", 1): 1})
        mine = log.describe_topic("t")
    broker = ServerThread(tmp_path / "data")
    broker.start()
    with strandlog.connect(broker.address) as remote:
        theirs = remote.describe_topic("t")
        assert theirs[:2] == mine[:2]
        assert theirs.config == mine.config
        assert [row[:3] for row in theirs.partitions] == [row[:3] for row in mine.partitions]
        assert remote.groups() == ["g"]
        assert remote.committed_offsets("g")[TopicPartition("t", 1)].offset == 1
    broker.stop()


def test_looking_at_a_topic_does_not_make_it(remote: RemoteLog) -> None:
    for look in (remote.describe_topic, remote.partition_count, remote.topic_settings):
        with pytest.raises(strandlog.TopicNotFoundError, match="'nope' does not exist"):
            look("nope")
    with pytest.raises(strandlog.TopicNotFoundError):
        remote.producer().send("nope", b"x")
    with pytest.raises(strandlog.TopicNotFoundError):
        remote.consumer(["nope"])
    assert remote.topics() == []


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda log: log.create_topic("t"), errors.TopicExistsError, "already exists"),
        (lambda log: log.create_topic("a b"), errors.InvalidTopicError, "invalid topic name"),
        (lambda log: log.create_topic("u", 0), errors.InvalidPartitionsError, "partitions"),
        (
            lambda log: log.create_topic("u", 1, {"retenion.ms": 1}),
            errors.SettingError,
            "did you mean 'retention.ms'",
        ),
        (lambda log: log.alter_topic("t", {"segment.ms": "x"}), errors.SettingError, "segment.ms"),
        (lambda log: log.alter_topic("t", None, 1), errors.InvalidPartitionsError, "only grow"),
        (lambda log: log.alter_topic("u", None, 1), errors.TopicNotFoundError, "not exist"),
        (lambda log: log.delete_topic("u"), errors.TopicNotFoundError, "not exist"),
        (lambda log: log.delete_records("t", 0, 9), errors.OffsetOutOfRangeError, ""),
        (lambda log: log.describe_group("u"), errors.GroupNotFoundError, "'u' does not exist"),
        (lambda log: log.delete_group("u"), errors.GroupNotFoundError, "'u' does not exist"),
        (
            lambda log: log.commit_offsets("g", {TopicPartition("u", 0): 1}),
            errors.TopicNotFoundError,
            "'u' does not exist",
        ),
        (lambda log: log.producer(acks=2), errors.InvalidSettingError, "acks"),
        (lambda log: log.producer(partitioner="x"), errors.InvalidSettingError, "murmur2"),
        (lambda log: log.producer(compression="x"), errors.UnsupportedCodecError, ""),
        (lambda log: log.consumer(assignors="sticky"), errors.InvalidSettingError, "roundrobin"),
        (lambda log: log.consumer(auto_commit=True), errors.InvalidGroupError, "auto_commit"),
    ],
)
def test_mistakes_are_the_errors_of_the_tree(
    remote: RemoteLog, call: Callable[[RemoteLog], object], kind: type[Exception], words: str
) -> None:
    remote.create_topic("t", 2)
    with pytest.raises(kind) as found:
        call(remote)
    assert words in str(found.value)


def test_every_code_that_has_a_class_becomes_that_class() -> None:
    make = confluent().KafkaError
    for kind in (
        errors.CorruptRecordError,
        errors.GroupFullError,
        errors.GroupNotEmptyError,
        errors.MessageTooLargeError,
        errors.RebalanceInProgressError,
        errors.StorageError,
        errors.TopicAuthorizationError,
        errors.UnknownMemberError,
    ):
        found = error_of(make(kind.kafka_code, "because"))
        assert type(found) is kind
        assert str(found) == "because"
    other = error_of(make(52, "no class"))
    assert type(other) is errors.RemoteError
    assert (other.code, str(other)) == (52, "no class")
    assert type(error_of(make(-185, "late"))) is errors.UnreachableError


@pytest.mark.timeout(60)
def test_a_wrong_address_fails_before_the_timeout() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        port = taken.getsockname()[1]
        with pytest.raises(strandlog.UnreachableError) as found:
            strandlog.connect(f"127.0.0.1:{port}", timeout_ms=600_000)
    assert f"no broker at 127.0.0.1:{port}" in str(found.value)
    assert "Connection refused" in str(found.value)
    assert found.value.retriable


@pytest.mark.timeout(60)
def test_the_port_of_an_http_server_is_taken_for_a_size_limit() -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_address[1]}"
            with pytest.raises(strandlog.UnreachableError) as found:
                strandlog.connect(address, timeout_ms=20_000)
        finally:
            server.shutdown()
            thread.join()
    assert str(found.value).startswith(f"{address} is an HTTP server, not a Kafka listener")


def test_something_that_does_not_answer_has_a_time_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(strandlog.UnreachableError, match=r"no response from 127\.0\.0\.1"):
            strandlog.connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout_ms=1000)


def test_a_setting_that_librdkafka_does_not_have_is_named(broker: RunningBroker) -> None:
    with pytest.raises(errors.SettingError, match=r"no\.such\.setting"):
        strandlog.connect(broker.address, no_such_setting=1)


def test_settings_go_through_with_underscores_or_dots(broker: RunningBroker) -> None:
    dotted = {"socket.keepalive.enable": "true"}
    with strandlog.RemoteLog(broker.address, {"client_id": "me", **dotted}) as log:
        assert log.client_config["client.id"] == "me"
        assert log.client_config["socket.keepalive.enable"] == "true"


def test_settings_of_the_broker_say_where_they_come_from(remote: RemoteLog) -> None:
    rows = {row.name: row for row in remote.broker_settings()}
    assert rows["group.initial.rebalance.delay.ms"].value == "0"
    assert rows["group.max.session.timeout.ms"].source == "default"


def test_records_are_deleted_from_the_beginning(remote: RemoteLog) -> None:
    remote.create_topic("t")
    remote.producer().send_batch("t", [b"1", b"2", b"3"])
    remote.delete_records("t", 0, 2)
    assert remote.describe_topic("t").partitions[0][1:3] == (2, 3)
    assert [record.value for record in remote.consumer(["t"]).poll()] == [b"3"]


def test_a_closed_log_raises_closed_error(broker: RunningBroker) -> None:
    log = strandlog.connect(broker.address)
    producer, consumer = log.producer(), log.consumer()
    log.close()
    log.close()
    for call in (log.topics, log.producer, log.consumer, producer.flush, consumer.poll):
        with pytest.raises(strandlog.ClosedError):
            call()


def test_without_the_extra_there_is_one_line_to_say_so() -> None:
    script = (
        "import sys; sys.modules['confluent_kafka'] = None; import strandlog\n"
        "try: strandlog.connect('localhost:9092')\n"
        "except strandlog.StrandlogError as error: print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "confluent_kafka is not installed: pip install 'strandlog[client]'\n"


def test_a_producer_that_fails_to_close_leaves_no_consumer_open(
    remote: strandlog.RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise errors.AuthenticationError("rejected")

    log = strandlog.connect(remote.bootstrap)
    log.create_topic("t")
    consumers = []
    for _ in range(2):
        monkeypatch.setattr(log.producer(), "close", fail)
        consumers.append(log.consumer(["t"]))
    with pytest.raises(errors.AuthenticationError, match="rejected"):
        log.close()
    assert "closed" in repr(log)
    for consumer in consumers:
        assert consumer._is_closed


BAD = "\ud800"


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda log: log.create_topic(BAD), errors.InvalidTopicError),
        (lambda log: log.create_topic("u", config={BAD: "1"}), errors.InvalidRequestError),
        (lambda log: log.describe_topic(BAD), errors.InvalidTopicError),
        (lambda log: log.topic_settings(BAD), errors.InvalidTopicError),
        (lambda log: log.delete_topic(BAD), errors.InvalidTopicError),
        (lambda log: log.consumer([BAD]), errors.InvalidTopicError),
        (lambda log: log.consumer(["t"], group=BAD), errors.InvalidGroupError),
        (lambda log: log.describe_group(BAD), errors.InvalidGroupError),
        (lambda log: log.committed_offsets(BAD), errors.InvalidGroupError),
        (lambda log: log.delete_group(BAD), errors.InvalidGroupError),
        (lambda log: log.delete_user(BAD), errors.InvalidRequestError),
        (lambda log: log.delete_records(BAD, 0, 0), errors.InvalidTopicError),
        (
            lambda log: log.commit_offsets("g", {TopicPartition(BAD, 0): 0}),
            errors.InvalidTopicError,
        ),
        (lambda log: log.producer().send(BAD, b"v"), errors.InvalidTopicError),
        (lambda log: log.producer().send("t", b"v", headers={BAD: b""}), errors.InvalidRecordError),
        (lambda log: strandlog.connect(log.bootstrap, {"client.id": BAD}), errors.SettingError),
    ],
)
def test_text_that_is_not_unicode_does_not_crash_the_process(
    remote: RemoteLog, use: Callable[[RemoteLog], object], error: type[Exception]
) -> None:
    remote.create_topic("t")
    with pytest.raises(error, match="surrogate"):
        use(remote)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda log: log.delete_topic("t\0x"), errors.InvalidTopicError),
        (lambda log: log.delete_group("g\0x"), errors.InvalidGroupError),
        (lambda log: log.delete_acls([AclFilter(name="t\0x")]), errors.InvalidRequestError),
        (lambda log: log.delete_user("u\0x"), errors.InvalidRequestError),
        (lambda log: log.producer().send("t", b"", headers={"a\0b": b""}), InvalidRecordError),
    ],
)
def test_a_name_is_not_cut_off_at_a_nul_character(
    remote: RemoteLog, use: Callable[[RemoteLog], object], error: type[Exception]
) -> None:
    remote.create_topic("t")
    remote.commit_offsets("g", {TopicPartition("t", 0): 0})
    with pytest.raises(error, match="NUL character"):
        use(remote)
    assert (remote.topics(), remote.groups()) == (["t"], ["g"])
    assert remote.describe_topic("t").partitions[0].end_offset == 0


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda log: log.describe_topic(""), errors.InvalidTopicError),
        (lambda log: log.describe_topics(["t", ""]), errors.InvalidTopicError),
        (lambda log: log.alter_topic("", {"retention.ms": "1d"}), errors.InvalidTopicError),
        (lambda log: log.topic_settings(""), errors.InvalidTopicError),
        (lambda log: log.delete_topic(""), errors.InvalidTopicError),
        (lambda log: log.delete_records("", 0, 0), errors.InvalidTopicError),
        (lambda log: log.consumer([""]), errors.InvalidTopicError),
        (lambda log: log.producer().send("", b"v"), errors.InvalidTopicError),
        (lambda log: log.commit_offsets("g", {TopicPartition("", 0): 0}), errors.InvalidTopicError),
        (lambda log: log.committed_offsets(""), errors.InvalidGroupError),
        (lambda log: log.delete_user(""), errors.ResourceNotFoundError),
    ],
)
def test_an_empty_name_is_not_a_raw_error(
    remote: RemoteLog, use: Callable[[RemoteLog], object], error: type[Exception]
) -> None:
    """confluent_kafka raised ValueError, which the command line showed as a traceback."""
    remote.create_topic("t")
    with pytest.raises(error):
        use(remote)
