"""How a broker stops: in order after one signal, immediately after two, never only in part."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

import strandlog
from strandlog.broker.broker import Broker
from strandlog.broker.flushing.durability import Durability
from strandlog.errors import ServerCrashError, StorageError
from strandlog.record.builder import build_batch
from strandlog.server.app import Server, ServerOptions, run_until_stopped
from strandlog.storage.file_remover import FileRemover
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.work import Work

pytestmark = pytest.mark.slow

PATIENCE_S = 30  # shorter than the longest wait of a fetch


def _frame(api_key: int, version: int, body: bytes = b"", correlation: int = 7) -> bytes:
    request = struct.pack(">hhih", api_key, version, correlation, -1) + body
    return struct.pack(">i", len(request)) + request


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


def _receive(connection: socket.socket) -> bytes:
    return _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])


def _metadata(topic: bytes) -> bytes:
    return _frame(3, 4, struct.pack(">ih", 1, len(topic)) + topic + b"\1")


def _produce(topic: bytes, batch: bytes) -> bytes:
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">ih", 1, len(topic)) + topic
    return _frame(0, 3, body + struct.pack(">iii", 1, 0, len(batch)) + batch)


def _long_poll(topic: bytes, wait_ms: int, correlation: int) -> bytes:
    body = struct.pack(">iiiib", -1, wait_ms, 1, 10**6, 0) + struct.pack(">ih", 1, len(topic))
    return _frame(1, 4, body + topic + struct.pack(">iiqi", 1, 0, 0, 10**6), correlation)


def _fetch_all(topic: bytes) -> bytes:
    body = struct.pack(">iiiib", -1, 0, 1, 50 * 10**6, 0) + struct.pack(">ih", 1, len(topic))
    return _frame(1, 4, body + topic + struct.pack(">iiqi", 1, 0, 0, 50 * 10**6))


def _log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(tmp_path / "data")
    running.start()
    yield running
    assert running.process is not None
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


def test_sigterm_answers_what_is_under_way_and_leaves_a_clean_folder(broker: BrokerProcess) -> None:
    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 50))
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as writer,
        socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S) as reader,
    ):
        writer.sendall(_metadata(b"t"))
        _receive(writer)
        writer.sendall(_metadata(b"empty"))
        _receive(writer)
        reader.sendall(_metadata(b"empty"))
        _receive(reader)
        reader.sendall(_long_poll(b"empty", 60_000, 9))
        for _ in range(20):
            writer.sendall(_produce(b"t", batch))
        # The long poll was sent before the batches, so it is parked once they are in the log.
        eventually(
            lambda: _log_bytes(broker.data / "t-0") >= 20 * len(batch),
            "the broker reads what was sent",
        )
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGTERM)
        assert _receive(reader)[:4] == struct.pack(">i", 9), "a long poll ends with what there is"
        acknowledged = 0
        data = b""
        while part := writer.recv(65536):
            data += part
        while data:
            length = struct.unpack_from(">i", data)[0]
            error = struct.unpack_from(">h", data, 4 + 4 + 4 + 2 + 1 + 4 + 4)[0]
            acknowledged += error == 0
            data = data[4 + length :]
        assert broker.process.wait(PATIENCE_S) == 0
    folder = broker.data
    assert (folder / ".kafka_cleanshutdown").exists()
    with strandlog.open(folder) as log:
        assert log.problems == []
        end = log.broker._catalog.log("t", 0).log_end_offset
    assert end >= acknowledged * 50
    assert acknowledged == 20, "all of them were there before the signal"


SERVE = """
import asyncio, sys
from strandlog.server.app import ServerOptions, run_until_stopped
options = ServerOptions(sys.argv[1], drain_ms=int(sys.argv[2]))
asyncio.run(run_until_stopped(options, lambda line: print(line, flush=True)))
"""


@contextlib.contextmanager
def _stopping_with_an_unread_response(
    data: Path, drain_ms: int
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], bytes]]]:
    """A broker after SIGTERM, and a function that reads the rest of a response from it."""
    command = [sys.executable, "-c", SERVE, str(data), str(drain_ms)]
    batch = bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * 500))
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        socket.socket() as client,
    ):
        try:
            assert process.stdout is not None
            address = ("127.0.0.1", int(process.stdout.readline().split()[1].rpartition(":")[2]))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE_S)
            client.connect(address)
            client.sendall(_metadata(b"t"))
            _receive(client)
            for _ in range(20):
                client.sendall(_produce(b"t", batch))
                _receive(client)
            client.sendall(b"".join(_fetch_all(b"t") for _ in range(20)))
            length = struct.unpack(">i", _exactly(client, 4))[0]
            assert length > 10_000_000, "20 responses of this size do not fit into buffers"
            os.kill(process.pid, signal.SIGTERM)
            eventually(lambda: _is_refused(address), "the broker accepts no connections")
            yield process, lambda: _exactly(client, length)
        finally:
            process.kill()


def _is_refused(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except ConnectionError:
        return True
    return False


def test_a_second_signal_ends_a_broker_that_waits_for_a_client(tmp_path: Path) -> None:
    with _stopping_with_an_unread_response(tmp_path / "data", drain_ms=600_000) as (process, _):
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    with strandlog.open(tmp_path / "data") as log:
        assert log.broker._catalog.log("t", 0).log_end_offset == 20 * 500


def test_a_client_that_does_not_read_delays_the_end_only_for_the_drain_time(
    tmp_path: Path,
) -> None:
    with _stopping_with_an_unread_response(tmp_path / "data", drain_ms=200) as (process, _):
        assert process.wait(PATIENCE_S) == 0


def test_a_stopping_broker_waits_until_a_client_has_read_its_response(tmp_path: Path) -> None:
    with _stopping_with_an_unread_response(tmp_path / "data", drain_ms=600_000) as (_, read_rest):
        assert len(read_rest()) > 10_000_000


async def _disconnect(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


class _BrokenError(Exception):
    """What no code of ours raises on purpose."""


def _broken_execute(_plan: FlushPlan) -> None:
    raise _BrokenError("the sync thread is broken")


def _broken_take(_durability: Durability, _max: int | None) -> list[object]:
    raise _BrokenError("the syncing task is broken")


def _broken_task(_remover: FileRemover, _now_ms: int) -> Work[int]:
    yield from ()
    raise _BrokenError("a task is broken")


def _broken_tick(_broker: Broker) -> None:
    raise _BrokenError("the timer is broken")


def test_a_task_whose_exception_is_lost_stops_the_server(tmp_path: Path) -> None:
    """asyncio reports it under "future"; the server looked for "task" and went on without it."""

    async def die() -> None:
        raise _BrokenError("no code awaits this")

    async def run() -> str:
        server = Server(ServerOptions(str(tmp_path / "data")))
        await server.start()
        try:
            task = asyncio.ensure_future(die())
            await asyncio.sleep(0)
            del task
            gc.collect()
            with pytest.raises(ServerCrashError) as crash:
                await asyncio.wait_for(asyncio.shield(server.crashed), 10)
            return str(crash.value)
        finally:
            await server.stop()

    assert "no code awaits this" in asyncio.run(run())


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (FlushPlan, "execute", _broken_execute),
        (Durability, "take_flushes", _broken_take),
        (FileRemover, "remove", _broken_task),
        (Broker, "tick", _broken_tick),
    ],
)
def test_a_part_that_dies_takes_the_server_with_it_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: type,
    name: str,
    broken: object,
) -> None:
    """Else the broker would take requests that are never answered."""

    async def scene() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def ready(line: str) -> None:
            port.set_result(int(line.split()[1].rpartition(":")[2]))

        serving = asyncio.create_task(run_until_stopped(ServerOptions(str(tmp_path / "d")), ready))
        reader, writer = await asyncio.open_connection("127.0.0.1", await port)
        writer.write(_metadata(b"t"))
        await reader.readexactly(4)
        monkeypatch.setattr(owner, name, broken)
        batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
        writer.write(_produce(b"t", batch))
        with pytest.raises(ServerCrashError, match="broken"):
            await asyncio.wait_for(serving, 20)
        await _disconnect(writer)

    asyncio.run(scene())
    assert "broken" in caplog.text


def test_the_server_stops_if_it_can_no_longer_sync_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_broker: Broker) -> None:
        raise _BrokenError("the tables are broken")

    async def run() -> None:
        server = Server(ServerOptions(str(tmp_path / "data")))
        monkeypatch.setattr(Broker, "wanted_tables", broken)
        await server.start()
        try:
            with pytest.raises(ServerCrashError, match="tables are broken"):
                await asyncio.wait_for(asyncio.shield(server.crashed), 10)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_sync_that_the_disk_refuses_is_no_crash_and_the_stop_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        server = Server(ServerOptions(str(tmp_path / "d")))
        line = await server.start()
        port = int(line.split()[1].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_metadata(b"t"))
        await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])

        def refuse(_plan: FlushPlan) -> None:
            raise StorageError("the disk says no")

        with monkeypatch.context() as patch:
            patch.setattr(FlushPlan, "execute", refuse)
            batch = bytes(build_batch(int(time.time() * 1000), [b"x"]))
            writer.write(_produce(b"t", batch))
            answer = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            assert struct.unpack_from(">h", answer, 4 + 4 + 2 + 1 + 4 + 4)[0] != 0
            assert server.metrics()["fsync_failures"] == 1
        await _disconnect(writer)
        assert not server.crashed.done()
        await server.stop()

    with caplog.at_level("ERROR"):
        asyncio.run(scene())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("records may be missing on the disk: ")
    assert "t-0 rejects records: the disk says no" in said


def test_the_last_line_of_the_log_sums_up(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "d"), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(_frame(18, 0))
            _receive(connection)
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "stopped: 1 requests from 1 connections" in errors.splitlines()[-1]
    assert "event loop late by at most" in errors.splitlines()[-1]
