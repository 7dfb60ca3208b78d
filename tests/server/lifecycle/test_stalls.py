"""A sync that does not return delays the requests that need it, and no other request."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import eventually_in_loop

from strandlog.broker.context import RequestContext
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.model import Buffer
from strandlog.record.builder import build_batch
from strandlog.server.app import Server, ServerOptions
from strandlog.server.kafka import connection, dispatch, pending_reply
from strandlog.server.kafka.api import KAFKA_APIS, warm_up
from strandlog.storage.files import DiskFiles

GIVE_UP_SECONDS = 30


class GatedDisk(DiskFiles):
    """With `is_gated`, every sync blocks until the test releases it."""

    __slots__ = ("_lock", "_loop_thread", "_permits", "is_gated", "synced_in_loop", "waiting")

    def __init__(self) -> None:
        super().__init__()
        self.is_gated = False
        self.waiting = 0
        self.synced_in_loop = 0
        self._lock = threading.Lock()
        self._permits = threading.Semaphore(0)
        self._loop_thread = threading.get_ident()

    def sync_file(self, path: str) -> None:
        self._wait()
        super().sync_file(path)

    def sync_dir(self, path: str) -> None:
        self._wait()
        super().sync_dir(path)

    def replace(self, path: str, data: Buffer) -> None:
        if self.is_gated and threading.get_ident() == self._loop_thread:
            self.synced_in_loop += 1
        super().replace(path, data)

    def release_one(self) -> None:
        with self._lock:
            self.waiting -= 1
            self._permits.release()

    def open(self) -> None:
        """Block no more syncs."""
        with self._lock:
            self.is_gated = False
            for _ in range(self.waiting):
                self._permits.release()
            self.waiting = 0

    def _wait(self) -> None:
        with self._lock:
            if not self.is_gated:
                return
            if threading.get_ident() == self._loop_thread:
                self.synced_in_loop += 1
                return
            self.waiting += 1
        self._permits.acquire(timeout=GIVE_UP_SECONDS)


class Client:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, api_key: int, version: int, body: bytes = b"") -> bytes:
        request = struct.pack(">hhih", api_key, version, 1, -1) + body
        self._writer.write(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


async def _create(client: Client, name: str, partitions: int, config: dict[str, str]) -> None:
    pairs = b"".join(_text(key) + _text(value) for key, value in config.items())
    topic = _text(name) + struct.pack(">ihi", partitions, 1, 0)
    topic += struct.pack(">i", len(config)) + pairs
    answer = await client.ask(19, 2, struct.pack(">i", 1) + topic + struct.pack(">ib", 60_000, 0))
    assert struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name))[0] == 0


async def _produce(client: Client, name: str, values: list[bytes]) -> None:
    keys: list[bytes | None] = [b"k"] * len(values)
    batch = bytes(build_batch(int(time.time() * 1000), list(values), keys))
    body = struct.pack(">hhi", -1, -1, 60_000) + struct.pack(">i", 1) + _text(name)
    answer = await client.ask(0, 3, body + struct.pack(">iii", 1, 0, len(batch)) + batch)
    assert struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)[0] == 0


class Scene:
    """A server on a gated disk, and two clients of it."""

    def __init__(self, server: Server, disk: GatedDisk, worker: Client, pinger: Client) -> None:
        self.server, self.disk, self.worker, self._pinger = server, disk, worker, pinger

    async def answered_during_each_sync(self, work: Awaitable[Any]) -> int:
        """Do some work; while each of its syncs blocks, another client must get an answer."""
        self.disk.is_gated = True
        task = asyncio.ensure_future(work)
        syncs = 0
        while not task.done():
            await eventually_in_loop(lambda: task.done() or self.disk.waiting > 0, "a sync")
            if not task.done():
                await self._pinger.ask(18, 0)
                syncs += 1
                self.disk.release_one()
        self.disk.open()
        await task
        assert self.disk.synced_in_loop == 0
        return syncs


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]], **settings: object) -> None:
    warm_up()

    async def run() -> None:
        disk = GatedDisk()
        given = {name.replace("_", "."): value for name, value in settings.items()}
        options = ServerOptions(
            str(tmp_path / "data"),
            settings=broker_settings(BROKER_SETTINGS.parse(given)),
        )
        server = Server(options, disk)
        line = await server.start()
        port = int(line.split()[1].rpartition(":")[2])
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
        try:
            for client in clients:
                await client.ask(18, 0)
            await act(Scene(server, disk, *clients))
        finally:
            disk.open()
            for client in clients:
                await client.close()
            await server.stop()
        assert not server.crashed.done()
        assert list(server.broker._maintenance.failures) == []

    asyncio.run(run())


def test_other_clients_are_served_while_a_topic_of_many_partitions_is_created_and_deleted(
    tmp_path: Path,
) -> None:
    async def act(scene: Scene) -> None:
        syncs = await scene.answered_during_each_sync(_create(scene.worker, "wide", 40, {}))
        assert syncs > 10
        names = struct.pack(">i", 1) + _text("wide") + struct.pack(">i", 60_000)
        await scene.answered_during_each_sync(scene.worker.ask(20, 1, names))
        assert "wide" not in scene.server.broker._catalog

    play(tmp_path, act)


def test_other_clients_are_served_while_settings_are_altered(tmp_path: Path) -> None:
    def alter(kind: int, name: str, setting: str, value: str) -> bytes:
        resource = struct.pack(">b", kind) + _text(name) + struct.pack(">i", 1)
        resource += _text(setting) + struct.pack(">b", 0) + _text(value)
        return struct.pack(">i", 1) + resource + b"\0"

    async def act(scene: Scene) -> None:
        await _create(scene.worker, "t", 1, {})
        topic = alter(2, "t", "retention.ms", "7")
        for body in (topic, alter(4, "0", "log.retention.bytes", "9")):
            assert await scene.answered_during_each_sync(scene.worker.ask(44, 0, body)) > 0
        log = scene.server.broker._catalog.log("t", 0)
        assert (log.settings.retention_ms, log.settings.retention_bytes) == (7, 9)

    play(tmp_path, act)


@pytest.mark.slow
def test_other_clients_are_served_while_a_group_without_find_coordinator_creates_its_topic(
    tmp_path: Path,
) -> None:
    async def act(scene: Scene) -> None:
        await _create(scene.worker, "t", 1, {})
        offset = _text("t") + struct.pack(">iiqh", 1, 0, 5, -1)
        commit = _text("g") + struct.pack(">ih", -1, 0) + struct.pack(">qi", -1, 1) + offset
        assert await scene.answered_during_each_sync(scene.worker.ask(8, 2, commit)) > 8
        join = _text("h") + struct.pack(">iih", 30_000, 30_000, 0) + _text("consumer")
        await scene.worker.ask(11, 2, join + struct.pack(">i", 1) + _text("range") + b"\0\0\0\0")
        assert len(scene.server.broker._catalog.logs("__consumer_offsets")) == 30

    play(tmp_path, act, offsets_topic_num_partitions=30)


def test_other_clients_are_served_while_the_first_transaction_creates_its_topic(
    tmp_path: Path,
) -> None:
    async def act(scene: Scene) -> None:
        await scene.worker.ask(22, 0, struct.pack(">hi", -1, 0))  # reserves a block of producer ids
        init = scene.worker.ask(22, 0, _text("tx") + struct.pack(">i", 60_000))
        assert await scene.answered_during_each_sync(init) > 8
        assert len(scene.server.broker._catalog.logs("__transaction_state")) == 30

    play(tmp_path, act, transaction_state_log_num_partitions=30)


def test_other_clients_are_served_while_the_first_group_creates_its_topic(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        syncs = await scene.answered_during_each_sync(scene.worker.ask(10, 0, _text("g")))
        assert syncs > 8
        assert len(scene.server.broker._catalog.logs("__consumer_offsets")) == 30

    play(tmp_path, act, offsets_topic_num_partitions=30)


@pytest.mark.parametrize(
    "cleaning",
    [
        {"retention.bytes": "2048"},
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    ],
    ids=["retention", "compaction"],
)
def test_other_clients_are_served_during_retention_and_compaction(
    tmp_path: Path, cleaning: dict[str, str]
) -> None:
    async def act(scene: Scene) -> None:
        broker, topics = scene.server.broker, ("a", "b", "c")
        config = {"segment.bytes": "1024", "file.delete.delay.ms": "0"}
        for topic in topics:
            await _create(scene.worker, topic, 1, config)
            for number in range(12):
                await _produce(scene.worker, topic, [b"%d" % number + bytes(400)])

        async def until_cleaned() -> None:
            for topic in topics:
                broker.alter_topic(RequestContext(), topic, cleaning)
            await eventually_in_loop(
                lambda: (
                    broker.metrics.retention_segments > 8
                    or broker.metrics.compactions == len(topics)
                ),
                "files are cleaned",
            )

        assert await scene.answered_during_each_sync(until_cleaned()) > 0

    play(
        tmp_path,
        act,
        log_retention_check_interval_ms=100,
        log_cleaner_backoff_ms=100,
        log_flush_offset_checkpoint_interval_ms=100,
    )


def test_the_figures_tell_what_happened(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await _create(scene.worker, "t", 1, {})
        await _produce(scene.worker, "t", [b"one", b"two", b"three"])
        fetch = struct.pack(">iiiib", -1, 0, 1, 10**6, 0) + struct.pack(">i", 1) + _text("t")
        await scene.worker.ask(1, 4, fetch + struct.pack(">iiqi", 1, 0, 0, 10**6))
        wait = struct.pack(">iiiib", -1, 30_000, 1, 10**6, 0) + struct.pack(">i", 1) + _text("t")
        parked = asyncio.ensure_future(
            scene.worker.ask(1, 4, wait + struct.pack(">iiqi", 1, 0, 3, 10**6))
        )
        await eventually_in_loop(
            lambda: scene.server.metrics()["waiting_fetches"], "the second fetch waits"
        )
        await eventually_in_loop(
            lambda: scene.server.metrics()["event_loop_delay_seconds"]["count"], "a measured delay"
        )
        taken = scene.server.metrics()
        assert taken["produced_records"] == 3
        assert taken["fetched_records"] == 3, "the second fetch goes on behind them"
        assert taken["produced_bytes"] == taken["fetched_bytes"] > 61
        assert taken["request_seconds"]["Produce"]["count"] == 1
        assert taken["request_seconds"]["Fetch"]["count"] == 1, "the other one is under way"
        assert (taken["connections_open"], taken["connections_accepted"]) == (2, 2)
        assert (taken["requests_in_flight"], taken["connections_paused"]) == (1, 0)
        assert taken["fsyncs"] == taken["fsync_seconds"]["count"] == 1
        assert taken["event_loop_delay_seconds"]["count"] > 0
        assert taken["handler_seconds"]["count"] >= 5
        scene.server.broker._delayed_fetches.complete_all()
        scene.server.kafka.drain()
        await parked
        assert scene.server.metrics()["requests_in_flight"] == 0

    play(tmp_path, act)


def test_a_slow_handler_is_logged_at_most_once_per_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    for module in (connection, dispatch, pending_reply):
        monkeypatch.setattr(module, "stopwatch", lambda: now)

    def take_long(_broker: object, request: Any) -> None:
        nonlocal now
        now += 0.1
        request.reply({"error_code": 0, "api_keys": []})

    async def act(scene: Scene) -> None:
        nonlocal now
        slow = dataclasses.replace(KAFKA_APIS[18], handler=take_long)
        monkeypatch.setitem(KAFKA_APIS, 18, slow)
        for _ in range(5):
            await scene.worker.ask(18, 0)
        line = "ApiVersions kept the event loop busy for 100 ms"
        assert caplog.messages.count(line) == 1
        now += 1
        await scene.worker.ask(18, 0)
        assert caplog.messages.count(line) == 2
        assert scene.server.metrics()["slow_handlers"] == 6

    play(tmp_path, act)
