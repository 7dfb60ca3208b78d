"""Behaviours that break clients although the version numbers are right, one test each.

Garbage, unknown versions of ApiVersions and acks=0 are in test_peers.py; special
timestamps, settings and commit metadata are in the files named after them.
"""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import (
    Wire,
    build,
    create_topic,
    encode,
    produce,
    request_header,
    topic_id_of,
)

from strandlog.record.batch import BatchView
from strandlog.record.batch_header import ATTRIBUTES_POSITION, TRANSACTIONAL_BIT
from strandlog.record.builder import build_batch
from strandlog.server.kafka.handlers import declared_apis
from strandlog.testing.server import ServerThread

CORRUPT_MESSAGE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE, OUT_OF_ORDER, DUPLICATE_SEQUENCE = (
    2,
    3,
    10,
    45,
    46,
)
INVALID_SESSION_TIMEOUT = 26
MEMBER_ID_REQUIRED, INVALID_RECORD, UNKNOWN_TOPIC_ID = 79, 87, 100


def _now_ms() -> int:
    return int(time.time() * 1000)


def _fetch(wire: Wire, topic: str, offset: int, **limits: int) -> Any:
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": limits.get("partition_max_bytes", 10**6),
    }
    answer = wire.ask(
        1,
        12,
        max_wait=limits.get("max_wait", 0),
        min_bytes=1,
        max_bytes=limits.get("max_bytes", 10**6),
        topics=[{"topic": topic, "partitions": [part]}],
    )
    return answer.responses[0].partitions[0]


def _batches(data: bytes) -> list[BatchView]:
    found, position = [], 0
    while position < len(data):
        found.append(BatchView(data, position))
        position += found[-1].size_bytes
    return found


# -- one broker for all --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 77, 32767, -1])
def test_an_unknown_version_of_api_versions_gets_the_body_of_version_0(
    wire: Wire, version: int
) -> None:
    # Whatever follows the header is not looked at: its layout may be anything.
    header = struct.pack(">hhih", 18, version, 5, 4) + b"test"
    wire.send(header + b"\xff\xff\xff")
    correlation, error, count, key, first, last = struct.unpack(">ihihhh", wire.receive())
    assert (correlation, error, count, key, first, last) == (5, 35, 1, 18, 0, 4)


def test_produce_is_advertised_from_0_and_telemetry_is_not(wire: Wire) -> None:
    found = wire.ask(18, 3, client_software_name="x", client_software_version="1")
    rows = {row.api_key: (row.min_version, row.max_version) for row in found.api_keys}
    assert rows[0] == (0, 13)
    assert rows.keys() == {api.key for api in declared_apis()}
    assert not rows.keys() & {71, 72}, "clients push metrics to brokers that accept them"
    assert found.throttle_time.total_seconds() == 0


def test_a_fetch_inside_a_batch_gets_the_whole_batch(wire: Wire) -> None:
    create_topic(wire, "inside")
    produce(wire, "inside", bytes(build_batch(_now_ms(), [b"a", b"b", b"c"])))
    produce(wire, "inside", bytes(build_batch(_now_ms(), [b"d", b"e"])))
    for offset, bases in ((0, [0, 3]), (1, [0, 3]), (2, [0, 3]), (3, [3]), (4, [3]), (5, [])):
        found = _fetch(wire, "inside", offset)
        assert (found.error_code, found.high_watermark) == (0, 5)
        assert [b.header.base_offset for b in _batches(bytes(found.records or b""))] == bases


def test_a_fetch_returns_the_first_batch_whole_despite_small_limits(wire: Wire) -> None:
    create_topic(wire, "whole")
    large = bytes(build_batch(_now_ms(), [b"x" * 100_000]))
    for _ in range(2):
        produce(wire, "whole", large)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
        found = _fetch(wire, "whole", 0, **limits)
        assert [b.header.base_offset for b in _batches(bytes(found.records))] == [0]
        assert len(found.records) == len(large)


def test_a_time_lookup_finds_the_record_and_not_just_its_batch(wire: Wire) -> None:
    create_topic(wire, "exact")
    base = _now_ms() - 10_000
    stamps = [base, base + 10, base + 10, base + 30]
    values = [b"v"] * 4
    produce(wire, "exact", bytes(build_batch(base, values, timestamps=stamps)))

    def ask(timestamp: int) -> tuple[int, int]:
        part = {"partition_index": 0, "timestamp": timestamp}
        [topic] = wire.ask(2, 7, topics=[{"name": "exact", "partitions": [part]}]).topics
        return topic.partitions[0].timestamp, topic.partitions[0].offset

    assert ask(base - 5) == (base, 0)
    assert ask(base + 1) == ask(base + 10) == (base + 10, 1)
    assert ask(base + 11) == ask(-3) == (base + 30, 3)
    assert ask(base + 31) == (-1, -1)


def test_a_batch_over_the_limit_of_its_topic_is_error_10(wire: Wire) -> None:
    create_topic(wire, "small", max_message_bytes="1000")
    refused = produce(wire, "small", bytes(build_batch(_now_ms(), [b"x" * 2000])))
    assert (refused.error_code, refused.base_offset) == (MESSAGE_TOO_LARGE, -1)
    assert "max.message.bytes" in refused.error_message
    assert produce(wire, "small", bytes(build_batch(_now_ms(), [b"x" * 500]))).base_offset == 0


def test_a_damaged_batch_is_a_retriable_error_whatever_its_header_says(wire: Wire) -> None:
    """A flipped bit must not tell a producer that it is in no transaction: that is the end."""
    create_topic(wire, "damaged")
    batch = bytearray(build_batch(_now_ms(), [b"v"]))
    batch[ATTRIBUTES_POSITION + 1] |= TRANSACTIONAL_BIT
    assert produce(wire, "damaged", bytes(batch)).error_code == CORRUPT_MESSAGE


def test_the_error_for_a_compacted_topic_names_the_record_without_a_key(wire: Wire) -> None:
    create_topic(wire, "keyed", cleanup_policy="compact")
    batch = build_batch(_now_ms(), [b"a", b"b", b"c", b"d"], [b"k", None, b"k", None])
    refused = produce(wire, "keyed", bytes(batch))
    assert (refused.error_code, refused.base_offset) == (INVALID_RECORD, -1)
    assert [error.batch_index for error in refused.record_errors] == [1, 3]
    assert "key" in refused.error_message
    kept = produce(wire, "keyed", bytes(build_batch(_now_ms(), [b"a"], [b"k"])))
    assert (kept.error_code, kept.base_offset, kept.record_errors) == (0, 0, ())


def test_clients_cannot_produce_to_the_offsets_topic(wire: Wire) -> None:
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    create_topic(wire, "any")
    wire.ask(
        8,
        8,
        group_id="maker",
        generation_id_or_member_epoch=-1,
        topics=[{"name": "any", "partitions": [part]}],
    )
    batch = bytes(build_batch(_now_ms(), [b"a"], [b"k"]))
    assert produce(wire, "__consumer_offsets", batch).error_code == 17
    row = {"partition_index": 0, "offset": -1}
    [topic] = wire.ask(21, 2, topics=[{"name": "__consumer_offsets", "partitions": [row]}]).topics
    assert topic.partitions[0].error_code == 17


@pytest.mark.parametrize("version", range(10))
def test_a_new_member_is_given_an_id_first_from_version_4_on(wire: Wire, version: int) -> None:
    values: dict[str, Any] = {
        "group_id": f"members-{version}",
        "session_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
    }
    if version >= 1:
        values["rebalance_timeout"] = 10_000
    found = wire.ask(11, version, member_id="", **values)
    if version >= 4:
        assert (found.error_code, found.generation_id) == (MEMBER_ID_REQUIRED, -1)
        assert found.member_id
        found = wire.ask(11, version, member_id=found.member_id, **values)
    assert (found.error_code, found.generation_id) == (0, 1)
    assert found.leader == found.member_id != ""


@pytest.mark.parametrize("session_ms", [0, 5_999, 1_800_001, 2**31 - 1])
def test_a_session_timeout_outside_the_limits_is_an_error(wire: Wire, session_ms: int) -> None:
    found = wire.ask(
        11,
        5,
        group_id="impatient",
        session_timeout=session_ms,
        rebalance_timeout=1000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert (found.error_code, found.member_id) == (INVALID_SESSION_TIMEOUT, "")


def test_a_deleted_topic_and_a_new_one_of_its_name_differ_by_id(wire: Wire) -> None:
    old = create_topic(wire, "phoenix")
    wire.ask(20, 6, topics=[{"name": "phoenix", "topic_id": None}])
    new = create_topic(wire, "phoenix")
    assert new != old

    def fetch(topic_id: UUID | None) -> int:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
        answer = wire.ask(1, 13, topics=[{"topic_id": topic_id, "partitions": [part]}])
        assert answer.responses[0].topic_id == topic_id
        return int(answer.responses[0].partitions[0].error_code)

    assert [fetch(old), fetch(uuid4()), fetch(None), fetch(new)] == [UNKNOWN_TOPIC_ID] * 3 + [0]
    batch = bytes(build_batch(_now_ms(), [b"x"]))
    for topic_id, code in ((old, UNKNOWN_TOPIC_ID), (new, 0)):
        data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch}]}]
        answer = wire.ask(0, 13, transactional_id=None, acks=-1, topic_data=data)
        assert answer.responses[0].partition_responses[0].error_code == code


@pytest.mark.parametrize(("version", "code"), [(12, UNKNOWN_TOPIC), (13, UNKNOWN_TOPIC_ID)])
def test_a_waiting_fetch_ends_when_its_topic_is_deleted(
    wire: Wire, shared_broker: ServerThread, version: int, code: int
) -> None:
    name = f"waited-for-{version}"
    topic_id = create_topic(wire, name)
    ref = {"topic": name} if version < 13 else {"topic_id": topic_id}
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    with Wire(shared_broker.port) as other:
        other.ask(18, 0)
        other.send(_fetch_frame(version, {**ref, "partitions": [part]}))
        shared_broker.wait_until(
            lambda server: server.metrics()["waiting_fetches"] > 0, "the fetch waits"
        )
        wire.ask(20, 6, topics=[{"name": name, "topic_id": None}])
        answer = other.answer(1, version)
    assert answer.responses[0].partitions[0].error_code == code


def _fetch_frame(version: int, topic: dict[str, Any]) -> bytes:
    body = build(1, version, max_wait=60_000, min_bytes=1, max_bytes=1000, topics=[topic])
    return request_header(1, version, 1) + encode(body)


# -- over a restart ------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.mark.slow
def test_cluster_topic_and_producer_ids_survive_a_kill(broker: BrokerProcess) -> None:
    with Wire(broker.port) as wire:
        topic_id = create_topic(wire, "t")
        cluster_id = wire.ask(3, 12, topics=[]).cluster_id
        given = [wire.ask(22, 4, transactional_id=None).producer_id for _ in range(3)]
    broker.stop(signal.SIGKILL)
    broker.start()
    with Wire(broker.port) as wire:
        assert wire.ask(3, 12, topics=[]).cluster_id == cluster_id
        assert topic_id_of(wire, "t") == topic_id
        given += [wire.ask(22, 4, transactional_id=None).producer_id for _ in range(3)]
    assert len(set(given)) == 6, "a producer id is given once"


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, signal.SIGTERM, signal.SIGKILL])
def test_a_repeated_batch_is_recognized_and_not_written_again(
    broker: BrokerProcess, stop: signal.Signals | None
) -> None:
    with Wire(broker.port) as wire:
        create_topic(wire, "t")
        producer_id = wire.ask(22, 4, transactional_id=None).producer_id

    def batch(number: int) -> bytes:
        return bytes(
            build_batch(
                1_000_000,
                [b"%d" % number] * 2,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number * 2,
            )
        )

    with Wire(broker.port) as wire:
        assert [produce(wire, "t", batch(n)).base_offset for n in range(6)] == [0, 2, 4, 6, 8, 10]
    if stop is not None:
        broker.stop(stop)
        broker.start()
    with Wire(broker.port) as wire:
        for number in (5, 1, 3):
            again = produce(wire, "t", batch(number))
            if stop is signal.SIGTERM and number < 5:
                # A snapshot, in Kafka's format, has the last batch alone; clients take it as done.
                assert again.error_code == DUPLICATE_SEQUENCE
            else:  # the last five are remembered
                assert (again.error_code, again.base_offset) == (0, number * 2)
        assert produce(wire, "t", batch(8)).error_code == OUT_OF_ORDER
        assert produce(wire, "t", batch(6)).base_offset == 12
        part = {"partition_index": 0, "timestamp": -1}
        [topic] = wire.ask(2, 7, topics=[{"name": "t", "partitions": [part]}]).topics
        assert topic.partitions[0].offset == 14, "nothing was written twice"


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (3, 12, b"\xff\xff\xff\xff\x0f"),
        (3, 4, struct.pack(">i", 2**31 - 1)),
        (1, 12, struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1) + b"\xff\xff\xff\xff\x0f"),
        (0, 9, b"\x00" + struct.pack(">hi", 1, 0) + b"\xff\xff\xff\xff\x0f"),
        (0, 9, b"\x00" + struct.pack(">hi", 1, 0) + b"\x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\x0f"),
        (20, 6, b"\xff\xff\xff\xff\x07"),
        (11, 6, b"\xff\xff\xff\xff\x0f"),
        (12, 4, b"\x02g\0\0\0\1\x02m\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_length_that_is_only_announced_does_not_kill_the_broker(
    wire: Wire, shared_broker: ServerThread, api_key: int, version: int, body: bytes
) -> None:
    wire.send(request_header(api_key, version, 1) + body)
    with pytest.raises(ConnectionError):
        wire.receive()
    with Wire(shared_broker.port) as other:
        assert other.ask(18, 0).error_code == 0


def test_tagged_fields_newer_than_the_broker_are_ignored(wire: Wire) -> None:
    unknown = b"\x01\xe8\x07\x03abc"
    body = b"\x02x\x021" + unknown
    found = wire.ask_raw(18, 3, body, tags=unknown)
    assert found.error_code == 0
    found = wire.ask_raw(12, 4, b"\x02g\0\0\0\1\x02m\x00" + unknown, tags=unknown)
    assert found.error_code == 25
