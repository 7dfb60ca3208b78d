"""The bytes of requests that all connections hold together, with a server in this process."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, create_topic
from tests.support.waiting import eventually

from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.protocol.kafka.framing import FrameSplitter
from strandlog.record.builder import build_batch
from strandlog.server.app import Server, ServerOptions
from strandlog.server.kafka import connection as connections

KILOBYTE, MEGABYTE = 1024, 1024 * 1024
DEADLINE_S = 20.0


def serve(tmp_path: Path, settings: dict[str, Any], client: Callable[[Server, int], None]) -> None:
    """Run a server, and a client in a thread beside it."""

    async def run() -> None:
        options = ServerOptions(
            str(tmp_path / "data"),
            settings=broker_settings(BROKER_SETTINGS.parse(settings)),
        )
        server = Server(options)
        port = int((await server.start()).split()[1].rpartition(":")[2])
        try:
            await asyncio.to_thread(client, server, port)
        finally:
            await server.stop()

    asyncio.run(run())


def framed(api_key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, version, 7, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce_frame(topic: bytes, size: int) -> bytes:
    """A Produce request with acks=all and one batch of about so many bytes."""
    batch = bytes(build_batch(int(time.time() * 1000), [b"v" * 1000] * (size // 1000)))
    body = struct.pack(">hhiih", -1, -1, 60_000, 1, len(topic)) + topic
    return framed(0, 3, body + struct.pack(">iii", 1, 0, len(batch)) + batch)


def unfinished_frame(size: int, missing: int) -> bytes:
    """The start of a Produce request of that size, without its last bytes."""
    return framed(0, 3, bytes(size))[:-missing]


def long_poll(topic: bytes) -> bytes:
    body = struct.pack(">iiiib", -1, 600_000, 1, MEGABYTE, 0)
    body += struct.pack(">ih", 1, len(topic)) + topic
    return framed(1, 4, body + struct.pack(">iiqi", 1, 0, 0, MEGABYTE))


def test_an_unfinished_frame_behind_a_slow_request_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LONG_SECONDS", 0.0)  # every request is a slow one

    def client(server: Server, port: int) -> None:
        with Wire(port) as wire:
            wire.ask(18, 0)
            wire.socket.sendall(unfinished_frame(3 * MEGABYTE, 1000))
            budget = server.runtime.request_bytes
            eventually(lambda: budget.total > 2 * MEGABYTE, "the bytes are not counted")
        eventually(lambda: budget.total == 0, "they are counted although the client has gone")

    serve(tmp_path, {}, client)


def test_tiny_frames_behind_a_long_poll_are_counted_and_not_split_in_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_frames = 0
    cut = FrameSplitter.cut

    def counted_cut(splitter: FrameSplitter) -> memoryview | None:
        nonlocal cut_frames
        frame = cut(splitter)
        cut_frames += frame is not None
        return frame

    def client(server: Server, port: int) -> None:
        nonlocal cut_frames
        with Wire(port) as wire:
            create_topic(wire, "t")
            cut_frames = 0
            tiny = framed(18, 0, b"")
            wire.socket.sendall(long_poll(b"t") + tiny * 8000)
            budget = server.runtime.request_bytes
            eventually(lambda: budget.total >= 32 * KILOBYTE, "queued frames are not counted")
            assert cut_frames <= 65, "64 in flight and the next one"

    monkeypatch.setattr(FrameSplitter, "cut", counted_cut)
    serve(tmp_path, {}, client)


def test_many_requests_sent_at_once_all_get_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LONG_SECONDS", 60.0)  # no request is a slow one

    def client(_: Server, port: int) -> None:
        with Wire(port) as wire:
            wire.socket.settimeout(DEADLINE_S)
            wire.socket.sendall(framed(18, 0, b"") * 1000)
            assert {wire.receive()[:4] for _ in range(1000)} == {struct.pack(">i", 7)}

    serve(tmp_path, {}, client)


def test_replies_to_a_client_with_many_requests_in_flight_are_not_written_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests take longer than `LONG_SECONDS` together, but no other connection waits."""
    now, writes = 0.0, 0
    send = connections.Connection._send

    def slow_stopwatch() -> float:
        nonlocal now
        now += connections.LONG_SECONDS / 16  # the connection looks after each request
        return now

    def counted_send(connection: connections.Connection) -> None:
        nonlocal writes
        writes += 1
        send(connection)

    def client(_: Server, port: int) -> None:
        with Wire(port) as wire:
            wire.socket.settimeout(DEADLINE_S)
            wire.socket.sendall(framed(18, 0, b"") * 1000)
            for _each in range(1000):
                wire.receive()

    monkeypatch.setattr(connections, "stopwatch", slow_stopwatch)
    monkeypatch.setattr(connections.Connection, "_send", counted_send)
    serve(tmp_path, {}, client)
    assert writes < 200
