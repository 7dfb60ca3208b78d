"""Raw connections: garbage, unknown versions, order of responses, long polls, acks=0."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.server import RunningBroker

from strandlog.record.builder import build_batch
from strandlog.server.kafka.handlers import declared_apis
from strandlog.testing.server import ServerThread

PATIENCE_S = 30  # shorter than the longest wait of a fetch


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data") as running:
        yield running


def _connect(broker: RunningBroker) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _header(api_key: int, version: int, correlation: int = 7) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation, -1)


def _receive(connection: socket.socket) -> bytes:
    def exactly(length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = connection.recv(length - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def _disconnects(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _is_alive(broker: RunningBroker) -> bool:
    with _connect(broker) as connection:
        connection.sendall(_frame(_header(18, 0)))
        return _receive(connection)[:4] == struct.pack(">i", 7)


def _produce(topic: bytes, batch: bytes, acks: int, correlation: int = 7) -> bytes:
    return _frame(
        _header(0, 3, correlation)
        + struct.pack(">hhi", -1, acks, 1000)
        + struct.pack(">ih", 1, len(topic))
        + topic
        + struct.pack(">iii", 1, 0, len(batch))
        + batch
    )


def _create_by_metadata(connection: socket.socket, topic: bytes) -> None:
    connection.sendall(_frame(_header(3, 4) + struct.pack(">ih", 1, len(topic)) + topic + b"\1"))
    _receive(connection)


@pytest.mark.parametrize(
    "hello",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 100 * 1024 * 1024 + 1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        _frame(b""),
        _frame(b"\0\0\0"),
        _frame(_header(999, 0)),
        _frame(_header(0, 2) + bytes(20)),
        _frame(_header(1, 99) + bytes(20)),
        _frame(_header(3, 4) + struct.pack(">i", 2**30)),
        _frame(_header(11, 0) + b"\x7f\xff" + bytes(5)),
        _frame(struct.pack(">hhih", 3, 4, 1, 30_000)),
    ],
)
def test_garbage_closes_the_connection_and_the_broker_continues(
    broker: RunningBroker, hello: bytes
) -> None:
    with _connect(broker) as connection:
        connection.sendall(hello)
        assert _disconnects(connection)
    assert _is_alive(broker)


def test_api_versions_in_an_unknown_version_is_answered_in_version_0(
    broker: RunningBroker,
) -> None:
    with _connect(broker) as connection:
        connection.sendall(_frame(_header(18, 77)))
        answer = _receive(connection)
    correlation, error, count, key, first, last = struct.unpack(">ihihhh", answer)
    assert (correlation, error, count, key, first) == (7, 35, 1, 18, 0)
    assert last >= 3


def test_api_versions_lists_the_table_and_produce_from_0(broker: RunningBroker) -> None:
    with _connect(broker) as connection:
        connection.sendall(_frame(_header(18, 0)))
        answer = _receive(connection)
    error, count = struct.unpack_from(">hi", answer, 4)
    rows = list(struct.iter_unpack(">hhh", answer[10 : 10 + 6 * count]))
    assert error == 0
    assert {row[0]: row[2] for row in rows} == {
        api.key: api.last_version for api in declared_apis()
    }
    assert (0, 0, 13) in rows


LONG_POLL = _frame(
    _header(1, 4, 1)
    + struct.pack(">iiiib", -1, 60_000, 1, 10**6, 0)
    + struct.pack(">ih", 1, 1)
    + b"t"
    + struct.pack(">iiqi", 1, 0, 0, 10**6)
)


def test_replies_come_in_the_order_of_the_requests_even_behind_a_long_poll(
    broker: ServerThread,
) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    with _connect(broker) as connection, _connect(broker) as writer:
        _create_by_metadata(connection, b"t")
        connection.sendall(LONG_POLL + _frame(_header(18, 0, 2)) + _frame(_header(18, 0, 3)))
        broker.wait_until(
            lambda server: server.metrics()["waiting_fetches"] == 1, "the fetch waits"
        )
        assert select.select([connection], [], [], 0)[0] == [], "all responses wait for the first"
        writer.sendall(_produce(b"t", batch, -1))
        order = [struct.unpack(">i", _receive(connection)[:4])[0] for _ in range(3)]
    assert order == [1, 2, 3]


def test_a_long_poll_returns_as_soon_as_a_record_arrives(broker: ServerThread) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    with _connect(broker) as reader, _connect(broker) as writer:
        _create_by_metadata(reader, b"t")
        reader.sendall(LONG_POLL)
        broker.wait_until(
            lambda server: server.metrics()["waiting_fetches"] == 1, "the fetch waits"
        )
        writer.sendall(_produce(b"t", batch, -1))
        _receive(writer)
        assert batch[61:] in _receive(reader)


def test_acks_0_gets_no_reply_and_an_error_closes_the_connection(broker: RunningBroker) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    with _connect(broker) as connection:
        _create_by_metadata(connection, b"t")
        connection.sendall(_produce(b"t", batch, 0) + _frame(_header(18, 0, 9)))
        assert struct.unpack(">i", _receive(connection)[:4])[0] == 9
        connection.sendall(_produce(b"no-such-topic", batch, 0))
        assert _disconnects(connection)


def test_a_damaged_batch_is_rejected_as_a_whole(broker: RunningBroker) -> None:
    batch = bytearray(build_batch(int(time.time() * 1000), [b"x" * 50]))
    batch[-3] ^= 1
    with _connect(broker) as connection:
        _create_by_metadata(connection, b"t")
        connection.sendall(_produce(b"t", bytes(batch), -1))
        answer = _receive(connection)
        assert struct.unpack_from(">h", answer, 4 + 4 + 2 + 1 + 4 + 4)[0] == 2
        batch[-3] ^= 1
        connection.sendall(_produce(b"t", bytes(batch), -1))
        error, offset = struct.unpack_from(">hq", _receive(connection), 4 + 4 + 2 + 1 + 4 + 4)
        assert (error, offset) == (0, 0)
