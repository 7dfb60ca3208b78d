"""HTTP clients that send nothing, stop half-way, do not read, or send too much."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from tests.support.http_client import client_of, http_address, http_broker, ok, problem
from tests.support.server import RunningBroker
from tests.support.waiting import eventually

from strandlog.config.limits.http import HTTP_SMALL_BODY_BYTES
from strandlog.testing.server import ServerThread

MAX_CONNECTIONS = 8
BIG_BODY = 8_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {
        "http.max.connections": str(MAX_CONNECTIONS),
        "http.idle.timeout.ms": "2000",
        "http.upload.stall.ms": "500",
        "http.max.json.objects": "5000",
    }
    with http_broker(tmp_path_factory.mktemp("bounds") / "data", settings) as running:
        with client_of(running) as client:
            assert client.get("/healthz").status_code == 200  # it is loaded
        yield running


@pytest.fixture
def opened(broker: RunningBroker) -> Iterator[Opened]:
    with contextlib.ExitStack() as stack:
        yield Opened(broker, stack)


class Opened(list[socket.socket]):
    """Connections of a test."""

    def __init__(self, broker: RunningBroker, stack: contextlib.ExitStack) -> None:
        super().__init__()
        host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self._stack = stack

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(self._address, timeout=20)
        self._stack.enter_context(connection)
        connection.sendall(data)
        self.append(connection)
        return connection


def upload(length: int, data: bytes = b"", path: str = "/api/v1/topics/made/records") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + data


def health(opened: Opened) -> bytes:
    connection = opened.connect(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection.recv(1000)


def test_idle_connections_do_not_block_an_active_client(
    broker: RunningBroker, opened: Opened
) -> None:
    for _ in range(3 * MAX_CONNECTIONS):
        opened.connect()
    with client_of(broker) as client:
        ok(client.get("/api/v1/topics"))


def test_health_checks_succeed_while_every_connection_is_busy(opened: Opened) -> None:
    live = b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(MAX_CONNECTIONS):
        assert opened.connect(live).recv(15).startswith(b"HTTP/1.1 200")
    other = opened.connect(b"GET /api/v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = other.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503")
    # Otherwise every later request on this connection would get a 503 too.
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert health(opened).startswith(b"HTTP/1.1 200")


def test_headers_that_arrive_too_slowly_close_the_connection(opened: Opened) -> None:
    connection = opened.connect(b"GET /healthz HTTP/1.1\r\n")

    def is_closed() -> bool:
        try:
            connection.sendall(b"X: y\r\n")
        except ConnectionError:
            return True
        return False

    eventually(is_closed, "the server closes the connection")


def test_a_request_with_too_many_headers_is_rejected_and_other_clients_are_served(
    opened: Opened,
) -> None:
    headers = b"".join(b"X-%d: y\r\n" % number for number in range(10_000))
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
    assert _status_or_reset(opened.connect(), head) in (b"HTTP/1.1 400", b"")
    assert health(opened).startswith(b"HTTP/1.1 200")


def _status_or_reset(connection: socket.socket, data: bytes) -> bytes:
    """A server that closes without having read everything resets the connection."""
    try:
        connection.sendall(data)
        return connection.recv(12)
    except (ConnectionResetError, BrokenPipeError):
        return b""


def test_a_stalled_upload_is_aborted(opened: Opened) -> None:
    connection = opened.connect(upload(1000, b'{"name":'))
    assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1000):
            found += data
    return found


def test_a_stalled_upload_loses_its_connection_and_its_rest_is_no_request(opened: Opened) -> None:
    connection = opened.connect(upload(1000, b'{"name":'))
    answer = connection.recv(1000)
    assert b"\r\nconnection: close\r\n" in answer.lower()
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"HTTP/1.1" not in everything(connection)


@pytest.mark.parametrize("size", [HTTP_SMALL_BODY_BYTES + 1, 1 << 40])
def test_a_body_of_too_large_a_declared_length_keeps_its_connection(
    opened: Opened, size: int
) -> None:
    """The first length is over the limit of the route, the second over that of the listener."""
    connection = opened.connect(upload(size, b'{"name":', "/api/v1/topics"))
    answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"\r\nconnection: close\r\n" in answer.lower()
    with contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"HTTP/1.1" not in everything(connection)


def test_stalled_uploads_do_not_block_other_clients(broker: RunningBroker, opened: Opened) -> None:
    for _ in range(MAX_CONNECTIONS - 1):
        opened.connect(upload(BIG_BODY))
    with client_of(broker) as client:
        ok(client.post("/api/v1/topics", json={"name": "made", "partitions": 1}), 201)


def test_a_body_with_too_many_json_objects_is_rejected(broker: RunningBroker) -> None:
    body = b'{"records":[' + b"{}," * 5000 + b"{}]}"
    headers = {"content-type": "application/json"}
    with client_of(broker) as client:
        answer = client.post("/api/v1/topics/made/records", content=body, headers=headers)
        assert "http.max.json.objects" in problem(answer, 413)


def test_a_deeply_nested_body_is_rejected_without_a_server_error(broker: RunningBroker) -> None:
    body = b'{"records":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    headers = {"content-type": "application/json"}
    with client_of(broker) as client:
        answer = client.post("/api/v1/topics/made/records", content=body, headers=headers)
        assert answer.status_code in (400, 422), answer.text


def test_an_error_about_a_long_name_is_short(broker: RunningBroker) -> None:
    with client_of(broker) as client:
        words = problem(client.get("/api/v1/topics/" + "n" * 10_000), 400)
    assert len(words) < 1000


def test_a_large_response_arrives_complete(broker: RunningBroker) -> None:
    with client_of(broker) as client:
        found = client.get("/api/v1/openapi.json")
        assert len(found.content) == int(found.headers["content-length"])
        values = [{"value": "x" * 1000} for _ in range(150)]
        client.post("/api/v1/topics", json={"name": "long"})
        ok(client.post("/api/v1/topics/long/records", json={"records": values}))
        records = ok(client.get("/api/v1/topics/long/records", params={"limit": 150}))
        assert len(records["records"]) == 150


def test_connections_are_counted(broker: RunningBroker) -> None:
    with client_of(broker) as client:
        assert "strandlog_http_connections_open 1.0" in client.get("/metrics").text
