"""Limits that apply when a connection is accepted, on plain and TLS listeners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import uvloop
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.server.tls.scene import TIMEOUT_SECONDS, is_closed, running, serves
from tests.support.waiting import eventually_in_loop

from strandlog.broker.metrics import Metrics
from strandlog.config.tables.tls import ConnectionSettings
from strandlog.server.network.acceptor import Acceptor, Slot
from strandlog.server.network.connection_limits import ConnectionLimits

LISTENERS = ("kafka", "kafka.ssl")


@pytest.mark.parametrize("listener", LISTENERS)
def test_an_address_may_have_a_limited_number_of_connections(
    tmp_path: Path, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, {"max.connections.per.ip": "2"}) as scene:
        first, second = scene.connect(listener), scene.connect(listener)
        with scene.connect(listener) as third:  # refused before it sends a byte
            assert is_closed(third)
        assert scene.metric("connections_refused_per_ip") == 1
        assert "raise max.connections.per.ip" in caplog.text
        first.close()
        scene.server.wait_until(lambda server: server.kafka.room.used == 1, "one is closed")
        with scene.tls() as again:
            assert serves(again)
        second.close()


def test_the_limit_counts_all_listeners(tmp_path: Path) -> None:
    with running(tmp_path, {"max.connections.per.ip": "1"}) as scene, scene.tls() as tls:
        assert serves(tls)
        with scene.connect("kafka") as plain:
            assert is_closed(plain)


def test_an_override_gives_an_address_another_limit(tmp_path: Path) -> None:
    settings = {
        "max.connections.per.ip": "0",
        "max.connections.per.ip.overrides": "10.9.9.9:0,127.0.0.1:1",
    }
    with running(tmp_path, settings) as scene, scene.connect("kafka") as first:
        assert serves(first)
        with scene.connect("kafka") as second:
            assert is_closed(second)


def test_a_connection_above_the_limit_of_its_address_replaces_no_other(tmp_path: Path) -> None:
    other = ("127.0.0.2", 0)
    settings = {"max.connections": "2", "max.connections.per.ip.overrides": f"{other[0]}:1"}
    with running(tmp_path, settings) as scene:
        address = scene.address()
        with (
            scene.connect() as waiting,
            socket.create_connection(address, source_address=other),
            socket.create_connection(address, source_address=other) as above,
        ):
            above.settimeout(TIMEOUT_SECONDS)
            assert is_closed(above)
            assert scene.metric("tls_handshakes_dropped") == 0
            host = scene.address()[0]
            with scene.context().wrap_socket(waiting, server_hostname=host) as tls:
                assert serves(tls)


def test_an_administrator_changes_the_limit_while_the_broker_runs(tmp_path: Path) -> None:
    with running(tmp_path) as scene:
        admin = AdminClient({"bootstrap.servers": scene.server.address})
        entry = ConfigEntry(
            "max.connections.per.ip", "0", incremental_operation=AlterConfigOpType.SET
        )
        broker = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
        [done] = admin.incremental_alter_configs([broker]).values()
        done.result(timeout=60)
        with scene.connect("kafka") as refused:
            assert is_closed(refused)


@pytest.mark.parametrize("listener", LISTENERS)
def test_clients_above_the_rate_wait_and_are_then_served(tmp_path: Path, listener: str) -> None:
    with running(tmp_path, {"max.connection.creation.rate": "4"}) as scene:
        found = [scene.connect(listener) for _ in range(6)]
        scene.wait_for_metric("connections_delayed", lambda count: count >= 1)
        scene.server.wait_until(lambda server: server.kafka.room.used == 6, "all are accepted")
        for each in found:
            each.close()
        if listener == "kafka":
            with scene.connect(listener) as last:
                assert serves(last)


def test_connections_give_their_places_back(tmp_path: Path) -> None:
    with running(tmp_path, {"max.connections.per.ip": "3"}) as scene:
        for _ in range(10):
            with scene.connect("kafka") as plain:
                assert serves(plain)
            with scene.tls() as tls:
                assert serves(tls)
            scene.server.wait_until(lambda server: server.kafka.room.used == 0, "closed")


class _Echo(asyncio.Protocol):
    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._slot.release()


def test_without_a_free_descriptor_accepting_pauses_and_does_not_spin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()

    async def run() -> None:
        acceptor = Acceptor("SSL", _Echo, ConnectionLimits(ConnectionSettings()), metrics)
        host, port = await acceptor.bind("127.0.0.1", 0, 10)
        acceptor.start()
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setblocking(False)
            with _no_free_descriptor():
                await loop.sock_connect(client, (host, port))
                await eventually_in_loop(lambda: metrics.accept_failures == 1, "EMFILE")
                for _ in range(1000):
                    await asyncio.sleep(0)
                assert metrics.accept_failures == 1
            await loop.sock_sendall(client, b"x")
            assert await loop.sock_recv(client, 1) == b"x"
        acceptor.stop()

    uvloop.run(run())
    assert "listener SSL cannot accept connections: Too many open files" in caplog.text


@contextlib.contextmanager
def _no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
