"""Two thousand idle clients and a thousand partitions do not slow one active client down."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess

CONNECTIONS = 2000
PARTITIONS = 1000

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the broker from /proc"
)


def _frame(api_key: int, version: int, body: bytes = b"", correlation: int = 7) -> bytes:
    request = struct.pack(">hhih", api_key, version, correlation, -1) + body
    return struct.pack(">i", len(request)) + request


def _receive(connection: socket.socket) -> bytes:
    with connection.makefile("rb", buffering=0) as stream:
        data = b""
        while len(data) < 4:
            data += stream.read(4 - len(data)) or _disconnected()
        length, body = struct.unpack(">i", data)[0], b""
        while len(body) < length:
            body += stream.read(length - len(body)) or _disconnected()
        return body


def _disconnected() -> bytes:
    raise ConnectionError("the broker closed the connection")


def _ask_versions(connection: socket.socket) -> float:
    """How long the simplest request takes, in seconds."""
    began = time.monotonic()
    connection.sendall(_frame(18, 0))
    assert _receive(connection)[:4] == struct.pack(">i", 7)
    return time.monotonic() - began


def _create_topic(connection: socket.socket, name: bytes, partitions: int) -> None:
    topic = struct.pack(">h", len(name)) + name + struct.pack(">ihii", partitions, 1, 0, 0)
    connection.sendall(_frame(19, 2, struct.pack(">i", 1) + topic + struct.pack(">ib", 60_000, 0)))
    answer = _receive(connection)
    assert struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(name))[0] == 0


def _anonymous_mb(broker: BrokerProcess) -> float:
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process needs as many as the broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"only {hard} file descriptors are allowed, {wanted} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    broker.start()
    try:
        yield broker
    finally:
        assert broker.stop() == 0, "a broker stops cleanly"


def _connect(broker: BrokerProcess) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def test_two_thousand_idle_connections_and_a_thousand_partitions_cost_little(
    tmp_path: Path, many_descriptors: None
) -> None:
    with (
        _running(BrokerProcess(tmp_path / "data")) as broker,
        contextlib.ExitStack() as open_sockets,
    ):
        first = open_sockets.enter_context(_connect(broker))
        _ask_versions(first)
        idle_mb = _anonymous_mb(broker)
        assert idle_mb < 80, "idle memory"
        _create_topic(first, b"wide", PARTITIONS)
        with_partitions_mb = _anonymous_mb(broker)
        assert with_partitions_mb - idle_mb < 20, f"{PARTITIONS} partitions"
        for number in range(CONNECTIONS):
            connection = open_sockets.enter_context(_connect(broker))
            if number % 2:
                connection.sendall(_frame(18, 0)[:5])  # half a request
        late = open_sockets.enter_context(_connect(broker))
        took = min(_ask_versions(late) for _ in range(5))
        full_mb = _anonymous_mb(broker)
        assert full_mb - with_partitions_mb < 20, f"{CONNECTIONS} connections"
        assert took < 0.1, "other clients are served without delay"


def test_a_client_beyond_max_connections_is_turned_away_and_the_others_are_not(
    tmp_path: Path,
) -> None:
    with _running(BrokerProcess(tmp_path / "data", {"max.connections": "3"})) as broker:
        with contextlib.ExitStack() as open_sockets:
            known = [open_sockets.enter_context(_connect(broker)) for _ in range(3)]
            for connection in known:
                _ask_versions(connection)
            with _connect(broker) as refused:
                assert refused.recv(1) == b"", "an end, not a reset"
            for connection in known:
                _ask_versions(connection)
        deadline = time.monotonic() + 10
        while True:  # those who went make room
            try:
                with _connect(broker) as again:
                    _ask_versions(again)
                break
            except ConnectionError:
                assert time.monotonic() < deadline
