"""The remote producer: the same records, partitions and errors as the embedded producer."""

from __future__ import annotations

import gc
import signal
import threading
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.samples import one_in

import strandlog
from strandlog import Record, RecordMetadata, RemoteLog
from strandlog.errors import InvalidRecordError
from strandlog.record.batch_header import read_header
from strandlog.record.codecs import Codec
from strandlog.record.partitioner import fnv1a, md5_hash, murmur2
from strandlog.testing.server import ServerThread


def read_all(log: RemoteLog, topic: str = "t") -> list[Record]:
    found: list[Record] = []
    with log.consumer([topic]) as consumer:
        while records := consumer.poll():
            found += records
    return sorted(found, key=lambda record: record[:3])


def test_every_field_of_a_record_round_trips(remote: RemoteLog) -> None:
    remote.create_topic("t", 3)
    headers = {"h": b"x", "n": None, "e": b""}
    meta = remote.producer().send(
        "t", b"value", b"key", headers=headers, partition=2, timestamp=1_700_000_000_000
    )
    assert meta == RecordMetadata("t", 2, 0, 1_700_000_000_000)
    assert read_all(remote) == [
        Record("t", 2, 0, 1_700_000_000_000, b"key", b"value", tuple(headers.items()))
    ]


def test_null_and_empty_are_not_the_same(remote: RemoteLog) -> None:
    remote.create_topic("t")
    given = [(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    with remote.producer() as producer:
        producer.send_batch("t", given)
        for key, value in given:
            producer.send("t", value, key)
    assert [(record.key, record.value) for record in read_all(remote)] == given * 2


def test_a_batch_returns_where_each_record_went(remote: RemoteLog) -> None:
    remote.create_topic("t", 3)
    with remote.producer() as producer:
        metas = producer.send_batch(
            "t", [(b"k%d" % number, b"%d" % number) for number in range(500)]
        )
    assert len(metas) == 500
    by_place = {record[:3]: record.value for record in read_all(remote)}
    assert [by_place[meta[:3]] for meta in metas] == [b"%d" % number for number in range(500)]
    assert metas[-1] == list(metas)[-1] == metas[499:][0]


@pytest.mark.parametrize(
    ("partitioner", "hash_of"), [("murmur2", murmur2), ("md5", md5_hash), ("fnv1a", fnv1a)]
)
@pytest.mark.parametrize("with_headers", [False, True])
def test_keys_go_where_an_embedded_log_puts_them(
    remote: RemoteLog, partitioner: str, hash_of: object, with_headers: bool
) -> None:
    assert callable(hash_of)
    remote.create_topic("t", 7)
    keys = [b"key-%d" % number for number in range(100)] + [b"", b"\xff" * 300]
    headers = {"h": b"x"} if with_headers else {}
    with remote.producer(partitioner=partitioner) as producer:
        metas = producer.send_batch(
            "t", [{"key": key, "value": b"v", "headers": headers} for key in keys]
        )
    assert [meta.partition for meta in metas] == [hash_of(key) % 7 for key in keys]


def test_records_of_a_named_partition_go_there_in_bulk(remote: RemoteLog) -> None:
    """They went to any partition: librdkafka ignores it in a message of a batch."""
    remote.create_topic("t", 3)
    with remote.producer() as producer:
        metas = producer.send_batch(
            "t", [{"value": b"%d" % number, "partition": number % 3} for number in range(30)]
        )
        with pytest.raises(strandlog.TopicNotFoundError, match="has no partition 3"):
            producer.send("t", b"x", partition=3)
        remote.alter_topic("t", partitions=4)
        assert producer.send("t", b"x", partition=3).offset == 0
    assert [(meta.partition, meta.offset) for meta in metas] == [
        (number % 3, number // 3) for number in range(30)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", one_in(3, ["all", 1, 0]))
def test_codecs_and_acks(remote: RemoteLog, codec: str, acks: object) -> None:
    remote.create_topic("t")
    values = [b"value %d" % number for number in range(1000)]
    with remote.producer(acks=acks, compression=codec) as producer:  # type: ignore[arg-type]
        metas = producer.send_batch("t", values)
    offsets = [meta.offset for meta in metas]
    assert offsets == ([-1] * 1000 if acks == 0 else list(range(1000)))
    assert [record.value for record in read_all(remote)] == values


def test_a_compression_argument_overrides_the_client_setting(
    broker: ServerThread, remote: RemoteLog
) -> None:
    remote.create_topic("codecs", 2)
    with strandlog.connect(broker.address, {"compression.type": "gzip"}) as log:
        log.producer().send("codecs", b"x" * 1000, partition=0)
        log.producer(compression="zstd").send("codecs", b"x" * 1000, partition=1)
    codecs = [
        read_header(path.read_bytes()).codec for path in sorted(broker.data.glob("codecs-?/*.log"))
    ]
    assert codecs == [Codec.GZIP, Codec.ZSTD]


def test_a_record_that_is_too_large_fails_and_the_rest_is_written(remote: RemoteLog) -> None:
    remote.create_topic("t", config={"max.message.bytes": 2000})
    values = [b"%04d" % number + b"x" * 96 for number in range(300)]
    with remote.producer() as producer:
        producer.send_batch("t", values)
        assert sorted(record.value or b"" for record in read_all(remote)) == values
        with pytest.raises(strandlog.MessageTooLargeError, match="5000 bytes exceeds") as found:
            producer.send_batch("t", [b"small", b"y" * 5000])
        assert found.value.records_kept == 1
        with pytest.raises(strandlog.MessageTooLargeError) as found:
            producer.send("t", b"y" * 5_000_000)  # refused by librdkafka itself
        assert found.value.records_kept == 0
        assert producer.send("t", b"still works").offset == 301


@pytest.mark.parametrize("wrong", ["text", 5, ("k", b"v"), {"vaule": b"v"}, (b"k", b"v", b"w")])
def test_mistakes_of_the_program_are_type_errors(remote: RemoteLog, wrong: object) -> None:
    remote.create_topic("t")
    with pytest.raises(TypeError):
        remote.producer().send_batch("t", [b"fine", wrong])  # type: ignore[list-item]
    assert read_all(remote) == []


def test_the_error_for_a_record_without_a_key_does_not_say_what_is_wrong(remote: RemoteLog) -> None:
    remote.create_topic("t", config={"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecordError) as found:
        remote.producer().send("t", b"no key")
    assert "a compacted topic (cleanup.policy) requires a key" in str(found.value)
    assert "strandlog config topic t --changed" in str(found.value)


@pytest.mark.slow
def test_threads_share_a_producer(remote: RemoteLog) -> None:
    remote.create_topic("t", 2)
    producer = remote.producer()
    metas: list[RecordMetadata] = []

    def work(name: int) -> None:
        for number in range(30):
            metas.append(producer.send("t", b"%d-%d" % (name, number), key=b"%d" % name))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({meta[:3] for meta in metas}) == 120
    for name in range(4):
        mine = [r.value for r in read_all(remote) if r.key == b"%d" % name]
        assert mine == [b"%d-%d" % (name, number) for number in range(30)]


def test_ctrl_c_in_the_middle_of_an_answer_is_a_keyboard_interrupt(remote: RemoteLog) -> None:
    """It was a SystemError: the client had lost what was raised in its callback."""
    remote.create_topic("t")
    producer = remote.producer()
    gc.disable()  # Python drops an exception that is raised while it collects garbage
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(40):
            timer = threading.Timer(number / 5000, signal.raise_signal, [signal.SIGINT])
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                while True:
                    producer.send_batch("t", [b"x"] * 200)
    finally:
        signal.signal(signal.SIGINT, previous)
        gc.enable()
    producer.close()


@pytest.mark.slow
def test_a_send_succeeds_although_the_broker_is_killed_and_restarted(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    with strandlog.connect(broker.address) as log:
        log.create_topic("t")
        producer = log.producer()
        assert producer.send("t", b"before").offset == 0
        broker.stop(signal.SIGKILL)
        restart = threading.Timer(1, broker.start)
        restart.start()
        assert producer.send("t", b"after").offset == 1
        restart.join()
        assert [record.value for record in read_all(log)] == [b"before", b"after"]
    assert broker.stop() == 0


@pytest.mark.slow
def test_a_send_to_a_broker_that_stays_away_fails_in_time(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    with strandlog.connect(broker.address, message_timeout_ms=1500) as log:
        log.create_topic("t")
        producer = log.producer()
        producer.send("t", b"before")
        broker.stop(signal.SIGKILL)
        with pytest.raises(strandlog.UnreachableError, match=r"no response from 127\.0\.0\.1"):
            producer.send("t", b"lost")
