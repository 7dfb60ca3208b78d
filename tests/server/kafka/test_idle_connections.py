"""`connections.max.idle.ms`: which connections the broker closes, with a fake clock."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from pathlib import Path

from tests.support.waiting import eventually_in_loop

from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.record.builder import build_batch
from strandlog.server.app import Server, ServerOptions
from strandlog.server.kafka.api import warm_up
from strandlog.testing import FakeClock

IDLE_MS = 1000
LONG_WAIT_MS = 300_000
PATIENCE_SECONDS = 60
TOPIC = struct.pack(">ih", 1, 1) + b"t"  # one topic, called t


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, api_key: int, version: int, body: bytes = b"") -> None:
        request = struct.pack(">hhih", api_key, version, 1, -1) + body
        self._writer.write(struct.pack(">i", len(request)) + request)

    async def receive(self) -> bytes:
        """The next reply; `IncompleteReadError` when the broker closes the connection."""
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    async def ask(self, api_key: int, version: int, body: bytes = b"") -> bytes:
        self.send(api_key, version, body)
        return await asyncio.wait_for(self.receive(), PATIENCE_SECONDS)

    async def end(self) -> bytes:
        """What arrives until the broker closes the connection."""
        return await asyncio.wait_for(self._reader.read(), PATIENCE_SECONDS)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def _check(server: Server, clients: list[Client], clock: FakeClock) -> None:
    silent, busy, waiting = clients
    for client in clients:
        await client.ask(18, 0)
    await busy.ask(3, 4, TOPIC + b"\1")  # creates the topic
    fetch = struct.pack(">iiiib", -1, LONG_WAIT_MS, 1, 10**6, 0) + TOPIC
    waiting.send(1, 4, fetch + struct.pack(">iiqi", 1, 0, 0, 10**6))
    await eventually_in_loop(lambda: server.metrics()["waiting_fetches"], "a fetch waits")
    clock.advance(IDLE_MS - 100)
    await busy.ask(18, 0)
    clock.advance(200)
    assert await silent.end() == b"", "nothing came from it for longer than allowed"
    assert server.metrics()["connections_idle_closed"] == 1
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    produce = struct.pack(">hhi", -1, -1, 60_000) + TOPIC
    await busy.ask(0, 3, produce + struct.pack(">iii", 1, 0, len(batch)) + batch)
    found = await asyncio.wait_for(waiting.receive(), PATIENCE_SECONDS)
    assert batch[-10:] in found, "a connection with a request under way is not idle"


def test_idle_connections_are_closed_but_long_polls_are_not(tmp_path: Path) -> None:
    warm_up()
    settings = BROKER_SETTINGS.parse({"connections.max.idle.ms": IDLE_MS})

    async def run() -> None:
        options = ServerOptions(str(tmp_path / "data"), settings=broker_settings(settings))
        server = Server(options)
        server.kafka.clock = clock = FakeClock()
        port = int((await server.start()).split()[1].rpartition(":")[2])
        clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        try:
            await _check(server, clients, clock)
        finally:
            for client in clients:
                await client.close()
            await server.stop()

    asyncio.run(run())
