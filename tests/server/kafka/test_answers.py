"""Requests at the edge of the protocol, with the responses of Apache Kafka.

The same tests ask Apache Kafka itself in tests/clients/test_answers_of_kafka.py. So they use a
`wire` only, wait for what a cluster does a moment later, and take names that no other test has.
"""

from __future__ import annotations

import itertools
import os
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, create_topic
from tests.support.waiting import eventually

from strandlog.record.batch_header import CRC_POSITION
from strandlog.record.builder import build_batch

OK, CORRUPT_MESSAGE, INVALID_TOPIC, INVALID_REQUEST, OUT_OF_ORDER = 0, 2, 17, 42, 45
FETCH_SESSION_NOT_FOUND, INVALID_RECORD, PRODUCER_FENCED = 70, 87, 90
NOT_YET = {3, 5, 6, 14, 15, 16, 51}  # a cluster is still making a topic, electing, loading
PATIENCE_SECONDS = 30
NOW_MS = time.time_ns() // 1_000_000
TOPIC, SET, DELETE = 2, 0, 1
LATEST_TIME = -3
INVALID_TIMESTAMP = 32

_numbers = itertools.count()


def name(stem: str) -> str:
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


def settled(ask: Callable[[], int]) -> int:
    """The first code that is not due to something that is still being made."""
    codes: list[int] = []

    def is_settled() -> bool:
        codes.append(int(ask()))
        return codes[-1] not in NOT_YET

    eventually(is_settled, "an answer other than 'not yet'")
    return codes[-1]


def sent(wire: Wire, topic: str, records: bytes, transactional_id: str | None = None) -> int:
    """The code that a Produce request gets."""

    def ask() -> int:
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
        body = {"transactional_id": transactional_id, "acks": -1, "timeout": 10_000}
        answer = wire.ask(0, 9, topic_data=data, **body)
        return int(answer.responses[0].partition_responses[0].error_code)

    return settled(ask)


def initialised(
    wire: Wire, transactional_id: str | None, producer_id: int = -1, epoch: int = -1
) -> tuple[int, int, int]:
    """Code, producer id and epoch that InitProducerId gives."""
    answers: list[Any] = []

    def ask() -> int:
        body = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
        answers.append(wire.ask(22, 4, producer_id=producer_id, producer_epoch=epoch, **body))
        return int(answers[-1].error_code)

    code = settled(ask)
    return code, answers[-1].producer_id, answers[-1].producer_epoch


def coordinator_is_there(wire: Wire, key: str) -> None:
    assert settled(lambda: wire.ask(10, 3, key=key, key_type=1).error_code) == OK


# -- producers -----------------------------------------------------------------------------------


def test_a_fenced_producer_does_not_get_the_epoch_of_its_successor(wire: Wire) -> None:
    transactional_id = name("zombie")
    coordinator_is_there(wire, transactional_id)
    code, producer_id, epoch = initialised(wire, transactional_id)
    assert code == OK
    assert initialised(wire, transactional_id) == (OK, producer_id, epoch + 1)
    assert initialised(wire, transactional_id, producer_id, epoch)[0] == PRODUCER_FENCED
    # The successor itself may ask, and ask again when it does not hear the answer.
    for _ in range(2):
        asked = initialised(wire, transactional_id, producer_id, epoch + 1)
        assert asked == (OK, producer_id, epoch + 2)


@pytest.mark.parametrize(
    ("transactional_id", "producer_id", "epoch"),
    [("", -1, -1), ("half", 5, -1), ("half", -1, 5), (None, 5, -1)],
)
def test_a_producer_id_without_an_epoch_is_an_invalid_request(
    wire: Wire, transactional_id: str | None, producer_id: int, epoch: int
) -> None:
    asked = initialised(wire, transactional_id, producer_id, epoch)
    assert asked == (INVALID_REQUEST, -1, -1)


def test_a_rejected_batch_is_not_a_duplicate_later(wire: Wire) -> None:
    """Producers take "duplicate" for success: its records would be lost without a word."""
    topic = name("sequences")
    create_topic(wire, topic)
    producer_id = initialised(wire, None)[1]

    def batch(sequence: int, count: int = 1) -> bytes:
        identity = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        return bytes(build_batch(NOW_MS, [b"v"] * count, **identity))  # type: ignore[arg-type]

    damaged = bytearray(batch(0))
    damaged[CRC_POSITION] ^= 1
    assert sent(wire, topic, bytes(damaged)) == CORRUPT_MESSAGE
    assert sent(wire, topic, batch(1)) == OK  # it was in flight with the first
    assert sent(wire, topic, batch(0)) == OUT_OF_ORDER
    assert sent(wire, topic, batch(1, 2)) == OUT_OF_ORDER  # one known, one new
    assert sent(wire, topic, batch(2)) == OK


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_in_an_old_format_is_not_retried(wire: Wire, magic: int) -> None:
    topic = name("old")
    create_topic(wire, topic)
    timestamp = struct.pack(">q", NOW_MS) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii", -1, 1) + b"v"
    message = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    assert sent(wire, topic, message) == INVALID_RECORD


@pytest.mark.parametrize("place", [0, 1])
def test_a_record_that_is_too_old_is_rejected_inside_a_batch(wire: Wire, place: int) -> None:
    topic = name("ages")
    create_topic(wire, topic, message_timestamp_before_max_ms="3600000")
    times = [NOW_MS, NOW_MS]
    assert sent(wire, topic, bytes(build_batch(NOW_MS, [b"v"] * 2, timestamps=times))) == OK
    times[place] -= 2 * 3_600_000
    old = bytes(build_batch(NOW_MS, [b"v"] * 2, timestamps=times))
    assert sent(wire, topic, old) == INVALID_TIMESTAMP


# -- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("illegal", ["a b", "..", "x" * 250])
def test_an_invalid_topic_name_gets_an_invalid_topic_error(wire: Wire, illegal: str) -> None:
    for version in (4, 8, 12):
        wanted = [{"name": illegal}]
        answer = wire.ask(3, version, topics=wanted, allow_auto_topic_creation=False)
        assert answer.topics[0].error_code == INVALID_TOPIC
    page = wire.ask(75, 0, topics=[{"name": illegal}], response_partition_limit=10)
    assert page.topics[0].error_code == INVALID_TOPIC
    resource = {"resource_type": TOPIC, "resource_name": illegal}
    asked = wire.ask(32, 4, resources=[{**resource, "configuration_keys": None}])
    assert asked.results[0].error_code == INVALID_TOPIC
    change = {"name": "retention.ms", "config_operation": SET, "value": "1000"}
    altered = wire.ask(44, 1, resources=[{**resource, "configs": [change]}], validate_only=False)
    assert altered.responses[0].error_code == INVALID_TOPIC


def test_an_unknown_setting_can_be_removed(wire: Wire) -> None:
    """Tools that copy topics take back whatever has its default at the source."""
    topic = name("settings")
    create_topic(wire, topic)

    def altered(*changes: tuple[str, int, str | None]) -> int:
        rows = [{"name": a, "config_operation": b, "value": c} for a, b, c in changes]
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": rows}
        [answer] = wire.ask(44, 1, resources=[resource], validate_only=False).responses
        return int(answer.error_code)

    assert altered(("no.such.setting", DELETE, None), ("segment.ms", SET, "123456")) == OK
    assert altered(("no.such.setting", SET, "1")) != OK

    def own() -> dict[str, str]:
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": []}
        [answer] = wire.ask(32, 4, resources=[resource]).results  # no keys: all of them
        assert {"segment.ms", "cleanup.policy", "retention.ms"} <= {
            row.name for row in answer.configs
        }
        return {row.name: row.value for row in answer.configs if row.config_source == 1}

    eventually(own, "the topic has settings of its own")
    assert own() == {"segment.ms": "123456"}


def test_a_topic_named_twice_is_described_with_all_requested_keys(wire: Wire) -> None:
    topic = name("folders")
    create_topic(wire, topic, 3)

    def described() -> list[int]:
        wanted = [{"topic": topic, "partitions": [number]} for number in (0, 2)]
        [folder] = wire.ask(35, 4, topics=wanted).results
        return sorted(row.partition_index for each in folder.topics for row in each.partitions)

    eventually(lambda: described() == [0, 2], "both partitions are described")


# -- times ---------------------------------------------------------------------------------------


def test_a_lookup_by_time_finds_only_visible_records(wire: Wire) -> None:
    """Nowhere behind the start of an open transaction; and to its end, when that is the latest."""
    topic, transactional_id = name("times"), name("tx")
    create_topic(wire, topic)
    coordinator_is_there(wire, transactional_id)
    _, producer_id, epoch = initialised(wire, transactional_id)
    who = {"producer_id": producer_id, "producer_epoch": epoch}
    begun: dict[str, Any] = {"v3_and_below_transactional_id": transactional_id}
    begun |= {f"v3_and_below_{key}": value for key, value in who.items()}
    topics = [{"name": topic, "partitions": [0]}]

    def added() -> int:
        answer = wire.ask(24, 3, **begun, v3_and_below_topics=topics)
        [row] = answer.results_by_topic_v3_and_below
        return int(row.results_by_partition[0].partition_error_code)

    assert settled(added) == OK
    batch = build_batch(NOW_MS, [b"v"], base_sequence=0, is_transactional=True, **who)  # type: ignore[arg-type]
    assert sent(wire, topic, bytes(batch), transactional_id) == OK

    def at(timestamp: int, isolation_level: int) -> tuple[int, int]:
        part = {"partition_index": 0, "timestamp": timestamp}
        wanted = [{"name": topic, "partitions": [part]}]
        reader = {"replica_id": -1, "isolation_level": isolation_level}
        [found] = wire.ask(2, 7, topics=wanted, **reader).topics
        return found.partitions[0].timestamp, found.partitions[0].offset

    assert [at(-1, level) for level in (0, 1)] == [(-1, 1), (-1, 0)]
    assert [at(NOW_MS, level) for level in (0, 1)] == [(NOW_MS, 0), (-1, -1)]
    assert [at(LATEST_TIME, level) for level in (0, 1)] == [(NOW_MS, 0), (-1, -1)]
    ended = {"transactional_id": transactional_id, "committed": True, **who}
    assert settled(lambda: int(wire.ask(26, 3, **ended).error_code)) == OK
    eventually(lambda: at(-1, 1) == (-1, 2), "the transaction ends")
    for level in (0, 1):
        assert at(NOW_MS, level) == (NOW_MS, 0)
        assert at(LATEST_TIME, level)[1] == 1  # the marker


# -- fetch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 11, 12, 17])
@pytest.mark.parametrize(("session_id", "epoch"), [(99, 1), (0, 1), (99, 2**31 - 1)])
def test_a_fetch_session_of_another_broker_is_not_found(
    wire: Wire, version: int, session_id: int, epoch: int
) -> None:
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0}
    who = {} if version >= 15 else {"replica_id": -1}
    session = {"session_id": session_id, "session_epoch": epoch, "forgotten_topics_data": []}
    rack = {"rack_id": ""} if version >= 11 else {}
    answer = wire.ask(1, version, topics=[], **limits, **who, **session, **rack)
    assert (answer.error_code, answer.session_id) == (FETCH_SESSION_NOT_FOUND, 0)
    assert not answer.responses
