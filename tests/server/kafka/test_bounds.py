"""One client must not block others: limits on counts, repetitions and memory; shutdown."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, create_topic, produce
from tests.support.server import RunningBroker
from tests.support.waiting import eventually_in_loop

from strandlog.clock import SystemClock
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.record.builder import build_batch
from strandlog.server import turns as turns_module
from strandlog.server.app import Server, ServerOptions
from strandlog.server.background import ServerRuntime
from strandlog.server.memory import ByteBudget
from strandlog.server.turns import Turns
from strandlog.storage.work import Work, yield_control
from strandlog.testing import FakeClock
from strandlog.testing.server import ServerThread

INVALID_REQUEST, LEADER_NOT_AVAILABLE, POLICY_VIOLATION, INVALID_PARTITIONS = 42, 5, 44, 37


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {
        "request.max.elements": "2000",
        "auto.create.topics.max.per.request": "3",
        "max.topic.changes.per.request": "4",
        "max.partitions.per.broker": "40",
        "control.request.max.bytes": "100000",
    }
    running = ServerThread(tmp_path_factory.mktemp("bounds") / "data", settings)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Wire]:
    with Wire(broker.port) as connection:
        yield connection


def _batch(value: bytes = b"x") -> bytes:
    return bytes(build_batch(1_700_000_000_000, [value]))


# -- counts and repetitions ----------------------------------------------------------------------


def test_list_offsets_answers_a_repeated_partition_once_as_invalid(wire: Wire) -> None:
    create_topic(wire, "listed")
    row = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    [topic] = wire.ask(2, 7, topics=[{"name": "listed", "partitions": [row] * 1500}]).topics
    assert [int(part.error_code) for part in topic.partitions] == [INVALID_REQUEST]


def test_fetch_reads_a_repeated_partition_once(wire: Wire) -> None:
    create_topic(wire, "fetched")
    produce(wire, "fetched", _batch(b"v" * 1000))
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}
    topics = [{"topic": "fetched", "partitions": [part] * 1000}]
    [answer] = wire.ask(1, 11, replica_id=-1, min_bytes=1, max_bytes=10**7, topics=topics).responses
    assert len(answer.partitions) == 1
    assert len(answer.partitions[0].records) < 2000


def test_describe_producers_answers_a_repeated_partition_once(wire: Wire) -> None:
    create_topic(wire, "described")
    topics = [{"name": "described", "partition_indexes": [0] * 1000}]
    [answer] = wire.ask(61, 0, topics=topics).topics
    assert len(answer.partitions) == 1


def test_a_request_with_too_many_elements_closes_the_connection(broker: RunningBroker) -> None:
    for api_key, version, body in (
        (2, 1, struct.pack(">iih", -1, 1, 1) + b"t" + struct.pack(">i", 2000) + bytes(24_000)),
        (3, 4, struct.pack(">i", 2001) + bytes(2 * 2001) + b"\0"),
        (0, 3, struct.pack(">hhiih", -1, 1, 1, 1, 1) + b"t" + struct.pack(">i", 2000)
         + bytes(16_000)),
    ):  # fmt: skip
        with Wire(broker.port) as wire, pytest.raises(ConnectionError):
            wire.ask_raw(api_key, version, body)


def test_a_large_request_other_than_produce_is_rejected_by_its_first_bytes(
    broker: RunningBroker,
) -> None:
    with Wire(broker.port) as wire:
        wire.socket.sendall(struct.pack(">ih", 200_000, 3))
        assert wire.socket.recv(1) == b""


def test_auto_creation_is_limited_per_request(wire: Wire) -> None:
    names = [{"topic_id": None, "name": f"auto-{number}"} for number in range(6)]
    ask = {"topics": names, "allow_auto_topic_creation": True}
    codes = [int(topic.error_code) for topic in wire.ask(3, 12, **ask).topics]
    assert codes == [0] * 3 + [LEADER_NOT_AVAILABLE] * 3
    codes = [int(topic.error_code) for topic in wire.ask(3, 12, **ask).topics]
    assert codes == [0] * 6, "asking again creates the others"


def test_changes_of_topics_are_limited_per_request(wire: Wire) -> None:
    names = [f"gone-{number}" for number in range(6)]
    topics = [{"name": name, "topic_id": None} for name in names]
    codes = [int(row.error_code) for row in wire.ask(20, 6, topics=topics).responses]
    assert codes[4:] == [POLICY_VIOLATION] * 2
    assert POLICY_VIOLATION not in codes[:4]


def test_partitions_are_limited_per_broker(wire: Wire) -> None:
    wanted = {"name": "wide", "num_partitions": 41, "replication_factor": 1}
    [row] = wire.ask(19, 7, topics=[{**wanted, "assignments": [], "configs": []}]).topics
    assert int(row.error_code) == INVALID_PARTITIONS
    assert "max.partitions.per.broker" in row.error_message


def test_requests_behind_one_in_slices_are_answered_in_order(wire: Wire) -> None:
    create_topic(wire, "ordered")
    batch = _batch()
    part = struct.pack(">ii", 0, len(batch)) + batch
    many = struct.pack(">hhiih", -1, -1, 1000, 1, 7) + b"ordered" + struct.pack(">i", 500)
    one = struct.pack(">hhiih", -1, -1, 1000, 1, 7) + b"ordered" + struct.pack(">i", 1)
    head = struct.pack(">hhih", 0, 3, 1, -1)
    for body in (many + part * 500, one + part):
        wire.send(head + body)
    first, second = wire.receive(), wire.receive()
    offsets = [
        struct.unpack_from(">q", first, 4 + 4 + 2 + 7 + 4 + number * 22 + 6)[0]
        for number in range(500)
    ]
    assert offsets == list(range(500))
    assert struct.unpack_from(">q", second, 4 + 4 + 2 + 7 + 4 + 6)[0] == 500


# -- the parts -----------------------------------------------------------------------------------


class Peer:
    """A connection, as a budget sees it."""

    peer_host = "peer"

    def __init__(self, budget: ByteBudget, missing: int = 0) -> None:
        self._budget = budget
        self.missing, self.stalled, self.is_closed, self.looks = missing, 0, False, 0

    def stalled_ms(self, now_ms: int) -> int:
        return self.stalled

    def missing_bytes(self) -> int:
        return self.missing

    def regulate(self) -> None:
        self.looks += 1

    def abort(self) -> None:
        self.is_closed = True
        self._budget.hold(self, 0)


def _in_loop(act: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await act()

    asyncio.run(run())


def test_over_the_limit_only_the_frame_nearest_to_its_end_is_read() -> None:
    async def act() -> None:
        budget = ByteBudget("requests", 100, 1000, 50, SystemClock())
        far, near = Peer(budget, missing=500), Peer(budget, missing=5)
        budget.hold(far, 60)
        assert not budget.must_wait(far)
        budget.hold(near, 60)
        assert budget.must_wait(far)
        assert not budget.must_wait(near), "one can always finish"
        budget.hold(near, 0)
        assert not budget.must_wait(far)
        assert far.looks, "it hears that it may read on"

    _in_loop(act)


def test_over_the_memory_limit_stalled_clients_are_closed_and_active_ones_are_not() -> None:
    async def act() -> None:
        budget = ByteBudget("replies", 100, 1000, 50, SystemClock())
        stuck, slow = Peer(budget), Peer(budget)
        stuck.stalled = 60
        budget.hold(stuck, 40)
        budget.hold(slow, 80)
        await eventually_in_loop(lambda: stuck.is_closed, "the stuck connection is closed")
        assert not slow.is_closed
        assert budget.total == 80
        assert budget.closed == 1

    _in_loop(act)


def test_the_hard_memory_limit_always_holds() -> None:
    async def act() -> None:
        budget = ByteBudget("requests", 100, 200, 50, SystemClock())
        peers = [Peer(budget, missing=1) for _ in range(50)]
        for peer in peers:
            budget.hold(peer, 30)
            assert budget.total <= 200
        assert sum(peer.is_closed for peer in peers) >= 44

    _in_loop(act)


def test_other_work_runs_between_slices() -> None:
    async def act() -> None:
        turns = Turns()
        done: list[str] = []

        def long() -> Iterator[None]:
            for _ in range(200):
                sum(range(20_000))  # together far longer than a slice
                yield
            done.append("long")

        assert not turns.slices(long())  # type: ignore[arg-type] # an iterator is enough
        asyncio.get_running_loop().call_soon(done.append, "quick")
        while "long" not in done:
            await asyncio.sleep(0)
        assert done == ["quick", "long"]

    _in_loop(act)


def test_one_pass_of_the_event_loop_starts_requests_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(turns_module, "stopwatch", lambda: now[0])

    async def act() -> None:
        turns = Turns()
        began = 0
        for _ in range(200):  # as many sockets have data in one pass
            if turns.may_begin():
                began += 1
                now[0] += 0.002
        assert began == 4, "then the others are served, and what is left waits for its turn"
        await asyncio.sleep(0)
        assert turns.may_begin(), "the next pass has time again"

    _in_loop(act)


def test_stopping_cancels_the_work_of_requests_and_lets_it_clean_up() -> None:
    async def act() -> None:
        crashes: list[Any] = []
        work = ServerRuntime(
            broker_settings(),
            FakeClock(),
            lambda: None,
            lambda name, error: crashes.append((name, error)),
        )
        steps_done, cleaned = [], []

        def endless() -> Work[None]:
            try:
                while True:
                    yield yield_control
                    yield lambda: steps_done.append(1)
            finally:
                cleaned.append(True)

        def never_begun() -> Work[None]:
            steps_done.append(-1)
            yield yield_control

        work.run_in_order("endless", endless())
        work.run_in_order("behind it", never_begun())
        while len(steps_done) < 3:
            await asyncio.sleep(0)
        work.abandon()
        await work.finish()
        assert cleaned == [True]
        assert -1 not in steps_done
        assert not crashes

    _in_loop(act)


def test_a_fetch_returns_what_the_memory_budget_allows_and_at_least_one_batch(
    tmp_path: Path,
) -> None:
    async def act() -> None:
        given = {"queued.max.response.bytes": 5000}
        options = ServerOptions(
            str(tmp_path / "data"),
            settings=broker_settings(BROKER_SETTINGS.parse(given)),
        )
        server = Server(options)
        port = int((await server.start()).split()[1].rpartition(":")[2])

        def client() -> tuple[int, int]:
            with Wire(port) as wire:
                create_topic(wire, "t")
                for _ in range(10):
                    produce(wire, "t", _batch(b"v" * 1000))
                part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}
                topics = [{"topic": "t", "partitions": [part]}]
                ask = {"replica_id": -1, "min_bytes": 1, "max_bytes": 10**6, "topics": topics}
                some = wire.ask(1, 11, **ask).responses[0].partitions[0].records
                server.runtime.response_bytes.total = 5000  # as if others did not read
                one = wire.ask(1, 11, **ask).responses[0].partitions[0].records
                server.runtime.response_bytes.total = 0
                return len(some), len(one)

        some, one = await asyncio.to_thread(client)
        assert 4000 < some <= 5000
        assert 1000 < one < 1200, "one batch comes whole, so every consumer gets on"
        await server.stop()

    _in_loop(act)
