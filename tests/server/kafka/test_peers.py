"""Misbehaving clients: hostile lengths, other protocols, slow and silent ones."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.server import RunningBroker

from strandlog.record.builder import build_batch
from strandlog.server.kafka.handlers import declared_apis
from strandlog.testing.server import ServerThread


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data") as running:
        yield running


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A process of its own, whose memory can be measured."""
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


def _connect(broker: RunningBroker) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", broker.port), timeout=10)
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
                raise ConnectionError("the broker hung up")
            data += part
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def _hangs_up(connection: socket.socket) -> bool:
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
        assert _hangs_up(connection)
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


def test_replies_come_in_the_order_of_the_requests_even_behind_a_long_poll(
    broker: RunningBroker,
) -> None:
    with _connect(broker) as connection:
        _create_by_metadata(connection, b"t")
        fetch = (
            _header(1, 4, 1)
            + struct.pack(">iiiib", -1, 700, 1, 10**6, 0)
            + struct.pack(">ih", 1, 1)
            + b"t"
            + struct.pack(">iiqi", 1, 0, 0, 10**6)
        )
        started = time.monotonic()
        connection.sendall(_frame(fetch) + _frame(_header(18, 0, 2)) + _frame(_header(18, 0, 3)))
        order = [struct.unpack(">i", _receive(connection)[:4])[0] for _ in range(3)]
    assert order == [1, 2, 3]
    assert 0.6 < time.monotonic() - started < 5


def test_a_long_poll_returns_as_soon_as_a_record_arrives(broker: RunningBroker) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    with _connect(broker) as reader, _connect(broker) as writer:
        _create_by_metadata(reader, b"t")
        fetch = (
            _header(1, 4, 1)
            + struct.pack(">iiiib", -1, 20_000, 1, 10**6, 0)
            + struct.pack(">ih", 1, 1)
            + b"t"
            + struct.pack(">iiqi", 1, 0, 0, 10**6)
        )
        reader.sendall(_frame(fetch))
        started = time.monotonic()
        writer.sendall(_produce(b"t", batch, -1))
        _receive(writer)
        assert batch[61:] in _receive(reader)
    assert time.monotonic() - started < 5


def test_acks_0_gets_no_reply_and_an_error_closes_the_connection(broker: RunningBroker) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
    with _connect(broker) as connection:
        _create_by_metadata(connection, b"t")
        connection.sendall(_produce(b"t", batch, 0) + _frame(_header(18, 0, 9)))
        assert struct.unpack(">i", _receive(connection)[:4])[0] == 9
        connection.sendall(_produce(b"no-such-topic", batch, 0))
        assert _hangs_up(connection)


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the broker from /proc")
def test_a_consumer_that_stops_reading_holds_bounded_memory(
    broker_process: BrokerProcess,
) -> None:
    broker = broker_process
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status")

    def resident_mb() -> float:
        return int(status.read_text().partition("RssAnon:")[2].split()[0]) / 1024

    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 500))
    with _connect(broker) as writer, _connect(broker) as reader:
        _create_by_metadata(writer, b"t")
        for _ in range(40):
            writer.sendall(_produce(b"t", batch, -1))
            _receive(writer)
        before = resident_mb()
        fetch = _frame(
            _header(1, 4, 1)
            + struct.pack(">iiiib", -1, 0, 1, 50_000_000, 0)
            + struct.pack(">ih", 1, 1)
            + b"t"
            + struct.pack(">iiqi", 1, 0, 0, 50_000_000)
        )
        reader.settimeout(1)
        try:
            for _ in range(2000):  # 2000 x 20 MB are asked for, and not one byte is read
                reader.sendall(fetch)
        except TimeoutError:
            pass  # the broker stopped reading as well
        started = time.monotonic()
        for _ in range(40):
            writer.sendall(_produce(b"t", batch, -1))
            _receive(writer)
        assert time.monotonic() - started < 10, "others are not slowed"
        assert resident_mb() - before < 120
    assert _is_alive(broker)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the broker from /proc")
def test_a_consumer_that_stops_reading_delays_no_other_client_and_loses_no_record(
    broker_process: BrokerProcess,
) -> None:
    broker = broker_process
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status")

    def resident_mb() -> float:
        return int(status.read_text().partition("RssAnon:")[2].split()[0]) / 1024

    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 100))
    fetch = _frame(
        _header(1, 4, 1)
        + struct.pack(">iiiib", -1, 0, 1, 2_000_000, 0)
        + struct.pack(">ih", 1, 1)
        + b"t"
        + struct.pack(">iiqi", 1, 0, 0, 2_000_000)
    )

    def produce(writer: socket.socket, count: int) -> float:
        """The median time of an acknowledgement, in ms."""
        took = []
        for _ in range(count):
            began = time.monotonic()
            writer.sendall(_produce(b"t", batch, -1))
            assert struct.unpack_from(">h", _receive(writer), 4 + 4 + 2 + 1 + 4 + 4)[0] == 0
            took.append(time.monotonic() - began)
        return sorted(took)[len(took) // 2] * 1000

    with _connect(broker) as writer, _connect(broker) as stuck, _connect(broker) as reader:
        _create_by_metadata(writer, b"t")
        alone_ms = produce(writer, 100)
        before_mb = resident_mb()
        asked = 0
        stuck.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while asked < 20_000:  # 2 MB each, and not one byte is read
                stuck.sendall(fetch)
                asked += 1
        beside_ms = produce(writer, 100)
        half_mb = resident_mb()
        beside_ms = min(beside_ms, produce(writer, 100))
        full_mb = resident_mb()
        began = time.monotonic()
        reader.sendall(fetch)
        answer = _receive(reader)
        read_ms = (time.monotonic() - began) * 1000
        stuck.settimeout(30)
        late_answers = [_receive(stuck) for _ in range(50)]
    assert half_mb - before_mb < 40, f"{asked} fetches cost {half_mb - before_mb:.0f} MB"
    assert full_mb - half_mb < 8, "and no more the longer it takes"
    assert beside_ms < 3 * alone_ms + 5, f"{alone_ms:.1f} ms alone, {beside_ms:.1f} ms beside it"
    assert read_ms < 1000
    counts = {each.count(batch[61:]) for each in (answer, *late_answers)}
    assert counts == {2_000_000 // len(batch)}, "what it asked for is still there"
    assert _is_alive(broker)
