"""Clients over their quota: the answer comes at once, then the connection is paused (KIP-219).

Pauses of hours show that a request waits; none of these tests measures seconds.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, build, create_topic, encode, produce, request_header
from tests.support.quotas import metric, set_quota
from tests.support.sasl import SaslWire

from strandlog.broker.access.scram import ScramMechanism
from strandlog.broker.context import OWNER, RequestContext
from strandlog.protocol.kafka.schemas import response_schema
from strandlog.record.builder import build_batch
from strandlog.server.kafka.handlers import declared_apis
from strandlog.server.kafka.throttle import UNMETERED_APIS
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

QUOTA_EXCEEDED = 89
PRODUCE_RATE, FETCH_RATE = "producer_byte_rate", "consumer_byte_rate"
MUTATION_RATE, TIME_SHARE = "controller_mutation_rate", "request_percentage"


def batch(size: int) -> bytes:
    return bytes(build_batch(1_700_000_000_000, [b"x" * size]))


BATCH = batch(1000)
LONG_MS = 1_000_000
# Requests that a client with all defaults could not send.
SMALLEST: dict[int, dict[str, Any]] = {0: {"acks": 1}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data") as running:
        yield running


@pytest.fixture
def wire(server: ServerThread) -> Iterator[Wire]:
    with Wire(server.port) as opened:
        create_topic(opened, "t")
        yield opened


def produced(wire: Wire, size: int = 1000, version: int = 9) -> Any:
    return wire.ask(0, version, **_produce(batch(size)))


def _produce(records: bytes, acks: int = 1) -> dict[str, Any]:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    return {"transactional_id": None, "acks": acks, "timeout": 5000, "topic_data": data}


def fetched(wire: Wire, max_bytes: int = 10**6, version: int = 11, offset: int = 0) -> Any:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    return wire.ask(
        1,
        version,
        replica_id=-1,
        max_wait=0,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[{"topic": "t", "partitions": [part]}],
    )


def ms(response: Any) -> int:
    found: int = round(response.throttle_time.total_seconds() * 1000)
    return found


def is_silent(wire: Wire) -> bool:
    return not select.select([wire.socket], [], [], 0.05)[0]


def send(wire: Wire, key: int, version: int, client_id: str = "c", **values: Any) -> None:
    wire._correlation_id += 1
    header = request_header(key, version, wire._correlation_id, client_id=client_id)
    wire.send(header + encode(build(key, version, **values)))


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_producer_over_its_quota_gets_its_answer_and_is_paused(
    server: ServerThread, wire: Wire, version: int
) -> None:
    assert ms(produced(wire, version=version)) == 0
    set_quota(server, PRODUCE_RATE, 1)
    answer = produced(wire, 5000, version)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert ms(answer) > LONG_MS
    assert metric(server, "connections_muted") == 1
    send(wire, 18, 0)
    assert is_silent(wire)
    with Wire(server.port) as other:
        assert ms(produced(other)) > LONG_MS  # the same user on another connection
    assert metric(server, "throttled_requests") == 2


def metrics_of(server: ServerThread) -> dict[str, Any]:
    """The metrics; for use inside the event loop."""
    return server.server.metrics()


def test_a_pause_ends_and_the_waiting_request_is_answered(server: ServerThread, wire: Wire) -> None:
    set_quota(server, PRODUCE_RATE, 100_000)
    answer = produced(wire, 1_020_000)  # the rate of ten seconds and a little more
    assert 0 < ms(answer) < 1000
    send(wire, 18, 0)
    assert wire.answer(18, 0).error_code == 0
    assert metric(server, "connections_muted") == 0
    assert metric(server, "throttle_ms") == ms(answer)


def test_a_pause_that_a_quota_caused_is_not_extended_by_requests_without_one(
    server: ServerThread, wire: Wire
) -> None:
    set_quota(server, PRODUCE_RATE, 1, [("client-id", "greedy")])
    send(wire, 0, 9, "modest", **_produce(BATCH))
    assert ms(wire.answer(0, 9)) == 0
    send(wire, 0, 9, "greedy", **_produce(BATCH))
    assert ms(wire.answer(0, 9)) > 0
    assert metric(server, "connections_muted") == 1


def test_requests_behind_the_first_one_over_the_quota_do_not_start(
    server: ServerThread, wire: Wire
) -> None:
    """The producer has many requests in flight; with acks=all their answers wait for the disk."""
    set_quota(server, PRODUCE_RATE, 1)
    for _ in range(30):
        send(wire, 0, 9, **_produce(BATCH, -1))
    wire.receive()
    assert is_silent(wire)
    assert metric(server, "produced_records") == 1


def test_acks_0_pauses_the_connection_too(server: ServerThread, wire: Wire) -> None:
    set_quota(server, PRODUCE_RATE, 1)
    send(wire, 0, 9, **_produce(BATCH, 0))
    server.wait_until(lambda _: metrics_of(server)["connections_muted"] == 1, "it is paused")
    send(wire, 18, 0)
    assert is_silent(wire)


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_a_consumer_over_its_quota_gets_an_empty_response_that_does_not_count(
    server: ServerThread, wire: Wire, version: int
) -> None:
    produce(wire, "t", BATCH)
    set_quota(server, FETCH_RATE, 150)  # 1500 bytes in ten seconds
    first = fetched(wire, version=version)
    assert (ms(first), len(first.responses)) == (0, 1)
    with Wire(server.port) as other:
        second = fetched(other, version=version)
        assert 0 < ms(second) < 20_000
        assert second.responses == ()
    assert metric(server, "throttled_requests") == 1


def test_a_consumer_can_fetch_a_batch_that_exceeds_the_window_of_its_quota(
    server: ServerThread, wire: Wire
) -> None:
    produce(wire, "t", BATCH)
    set_quota(server, FETCH_RATE, 1)
    answer = fetched(wire)
    assert len(answer.responses[0].partitions[0].records) == len(BATCH)
    assert ms(answer) > 1_000_000


def test_a_fetch_asks_for_no_more_than_the_quota_of_a_window(
    server: ServerThread, wire: Wire
) -> None:
    for _ in range(10):
        produce(wire, "t", BATCH)
    set_quota(server, FETCH_RATE, 500)  # 5000 bytes in ten seconds
    answer = fetched(wire)
    assert 4 * len(BATCH) <= len(answer.responses[0].partitions[0].records) <= 5000


def test_the_time_of_requests_is_limited_to_a_share_and_pauses_for_a_second_at_most(
    server: ServerThread, wire: Wire
) -> None:
    set_quota(server, TIME_SHARE, 0.000001)
    for version in (1, 3):
        with Wire(server.port) as client:
            assert ms(client.ask(18, version)) == 1000
    with Wire(server.port) as client:
        assert ms(client.ask(3, 9, topics=None)) == 1000
    with Wire(server.port) as client:
        assert ms(fetched(client)) == 1000
    with Wire(server.port) as client:
        assert ms(produced(client)) == 1000
    with Wire(server.port) as client:
        assert ms(client.ask(10, 4, key_type=0, coordinator_keys=["g"])) == 1000


def _topic(name: str, partitions: int = 1) -> dict[str, Any]:
    counts = {"num_partitions": partitions, "replication_factor": 1}
    return {"name": name, **counts, "assignments": [], "configs": []}


def test_topics_over_the_quota_are_refused_one_by_one(server: ServerThread, wire: Wire) -> None:
    set_quota(server, MUTATION_RATE, 0.001)  # 0.011 partitions at once
    wanted = [_topic("bad name"), _topic("first"), _topic("second"), _topic("third")]
    answer = wire.ask(19, 7, topics=wanted, timeout=5000, validate_only=False)
    codes = {topic.name: int(topic.error_code) for topic in answer.topics}
    assert codes == {"bad name": 17, "first": 0, "second": 89, "third": 89}
    assert ms(answer) == pytest.approx(989_000, abs=60_000)
    assert metric(server, "connections_muted") == 1


@pytest.mark.parametrize("version", [2, 5])
def test_old_versions_create_the_topics_and_pause(
    server: ServerThread, wire: Wire, version: int
) -> None:
    set_quota(server, MUTATION_RATE, 0.001)
    wanted = [_topic("first"), _topic("second", 4)]
    answer = wire.ask(19, version, topics=wanted, timeout=5000, validate_only=False)
    assert [topic.error_code for topic in answer.topics] == [0, 0]
    assert ms(answer) == pytest.approx(4_989_000, abs=60_000)


def test_adding_and_deleting_partitions_counts_too(server: ServerThread, wire: Wire) -> None:
    create_topic(wire, "gone", 3)
    set_quota(server, MUTATION_RATE, 0.001)
    grown = {"name": "t", "count": 3, "assignments": None}
    with Wire(server.port) as other:
        answer = other.ask(37, 3, topics=[grown], timeout=5000, validate_only=False)
        assert [row.error_code for row in answer.results] == [0]
    with Wire(server.port) as other:
        answer = other.ask(20, 6, topics=[{"name": "gone", "topic_id": None}], timeout=5000)
        assert [row.error_code for row in answer.responses] == [QUOTA_EXCEEDED]
        assert ms(answer) > 1_000_000
    answer = wire.ask(20, 4, topic_names=["gone"], timeout=5000)
    assert [row.error_code for row in answer.responses] == [0]
    assert ms(answer) > 4_000_000


def test_topics_that_are_created_on_demand_count_too(server: ServerThread, wire: Wire) -> None:
    set_quota(server, MUTATION_RATE, 0.001)
    answer = wire.ask(3, 9, topics=[{"name": "new"}], allow_auto_topic_creation=True)
    assert [topic.error_code for topic in answer.topics] == [0]
    assert ms(answer) > 900_000


def test_a_server_stops_although_connections_are_paused(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, Wire(server.port) as wire:
        create_topic(wire, "t")
        set_quota(server, PRODUCE_RATE, 1)
        assert ms(produced(wire)) > 100_000
        send(wire, 18, 0)
        server.stop()
        with pytest.raises(ConnectionError):
            wire.receive()


def test_a_client_that_disconnects_during_a_pause_is_forgotten(
    server: ServerThread, wire: Wire
) -> None:
    set_quota(server, PRODUCE_RATE, 1)
    with Wire(server.port) as other:
        assert ms(produced(other)) > 100_000
        assert metric(server, "connections_muted") == 1
    # The broker reads nothing, so it notices that when it closes idle connections.
    server.call(lambda: server.server.kafka.close_idle(-1))
    server.wait_until(lambda _: metrics_of(server)["connections_muted"] == 0, "it is closed")


def test_the_owner_and_other_users_are_not_paused(server: ServerThread, wire: Wire) -> None:
    set_quota(server, PRODUCE_RATE, 1, [("user", "alice")])
    assert ms(produced(wire, 100_000)) == 0


def test_a_quota_that_is_removed_does_not_pause_any_more(server: ServerThread, wire: Wire) -> None:
    set_quota(server, PRODUCE_RATE, 1)
    assert server.call(lambda: server.server.broker.enforces_quotas) is True
    set_quota(server, PRODUCE_RATE, None)
    assert server.call(lambda: server.server.broker.enforces_quotas) is False
    assert ms(produced(wire, 100_000)) == 0


def _has_throttle_time(key: int, version: int) -> bool:
    return "throttle_time" in {field.name for field in fields(response_schema(key, version))}


def _with_throttle_time() -> Iterator[tuple[int, int]]:
    """The first and the last version of each API whose response has a throttle time."""
    for api in declared_apis():
        found = [version for version in api.versions if _has_throttle_time(api.key, version)]
        if api.key not in UNMETERED_APIS:
            yield from sorted({(api.key, version) for version in (*found[:1], *found[-1:])})


def test_every_response_that_has_a_throttle_time_reports_it(server: ServerThread) -> None:
    set_quota(server, TIME_SHARE, 0.000001)
    found = {}
    for key, version in _with_throttle_time():
        with Wire(server.port) as client:
            found[key, version] = ms(client.ask(key, version, **SMALLEST.get(key, {})))
    assert len(found) > 70
    assert {api: pause for api, pause in found.items() if pause != 1000} == {}


def test_a_paused_connection_does_not_hold_the_memory_of_others(tmp_path: Path) -> None:
    settings = {"queued.max.request.bytes": "150000", "queued.stall.timeout.ms": "10"}
    with (
        ServerThread(tmp_path / "data", settings) as server,
        Wire(server.port) as paused,
        Wire(server.port) as other,
    ):
        create_topic(other, "t")
        frame = request_header(0, 9, 1) + encode(build(0, 9, **_produce(batch(200_000))))
        paused.socket.sendall(len(frame).to_bytes(4) + frame[:100_000])
        server.wait_until(
            lambda running: running.runtime.request_bytes.total >= 100_000, "it has arrived"
        )

        def mute() -> None:
            [holder] = [each for each in server.server.kafka.connections() if each.missing_bytes()]
            holder.mute(LONG_MS)
            assert not holder.missing_bytes()  # it is not the one that may finish its frame

        server.call(mute)
        assert ms(produced(other, 200_000)) == 0
        other.socket.sendall(len(frame).to_bytes(4) + frame[:100_000])
        with pytest.raises(ConnectionError):
            paused.receive()
        assert metric(server, "connections_muted") == 0
        other.socket.sendall(frame[100_000:])
        assert other.receive()


def test_the_quota_of_a_user_applies_to_its_logins_whatever_their_client_ids(
    tmp_path: Path,
) -> None:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with ServerThread(tmp_path / "data", settings) as server:
        owner = RequestContext(OWNER)
        broker = server.server.broker
        server.call(lambda: broker.create_topic(owner, "t", 1))
        kinds = [ScramMechanism.SHA_256]
        for user in ("alice", "bob"):
            adding = broker.set_password(owner, user, "secret", kinds)
            server.call(partial(run_inline, adding))
        set_quota(server, PRODUCE_RATE, 1, [("user", "alice")])
        pauses = []
        for user, client_id in (("alice", "a"), ("alice", "b"), ("bob", "a")):
            with SaslWire(server.port) as client:
                assert client.log_in(user, "secret").error_code == 0
                send(client, 0, 9, client_id, **_produce(BATCH))
                pauses.append(ms(client.answer(0, 9)))
        assert 0 < pauses[0] < pauses[1]
        assert pauses[2] == 0
        set_quota(server, TIME_SHARE, 0.000001)
        with SaslWire(server.port) as client:
            assert ms(client.ask(18, 3)) == 0  # before the login, requests belong to no user
            assert client.log_in("bob", "secret").error_code == 0
            assert ms(client.ask(18, 3)) == 1000
