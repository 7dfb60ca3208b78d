"""The registry client against servers that fail, and against a secured broker."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.secured_broker import READ, WRITE, SecuredBroker

from strandlog.broker.access.permission import CLUSTER, CLUSTER_NAME, TOPIC, Operation
from strandlog.client.http import connection as http_connection
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.client.registry.remote import PAGE_SCHEMAS, UNKNOWN_MS, RemoteRegistry
from strandlog.errors import (
    AuthenticationError,
    AuthorizationError,
    RemoteError,
    SchemaNotFoundError,
    UnreachableError,
)
from strandlog.testing.clock import FakeClock
from strandlog.testing.server import ServerThread

INT = b'{"schema": "\\"int\\""}'


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@contextmanager
def answering(*answers: bytes | None, closes: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes, one after the other, and then nothing; the URL, and the
    requests that it received. With `closes`, it closes the connection after each."""
    requests: list[bytes] = []
    left = list(answers)
    is_over = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not is_over.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                while received := peer.recv(65536):
                    requests.append(received.partition(b"\r\n")[0])
                    if not left:
                        is_over.wait()
                        return
                    peer.sendall(left.pop(0) or b"")
                    if closes:
                        break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            is_over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def at(url: str, **settings: str) -> RemoteRegistry:
    return connect_registry(url=url, client={k.replace("_", "."): v for k, v in settings.items()})


def test_a_registry_that_does_not_run_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        at(f"http://127.0.0.1:{port}") as registry,
        pytest.raises(UnreachableError, match=str(port)),
    ):
        registry.by_id(1)
    with (
        connect_registry(f"127.0.0.1:{port}", {"default.api.timeout.ms": "100"}) as registry,
        pytest.raises(UnreachableError),
    ):
        registry.by_id(1)


def test_a_registry_that_does_not_answer_is_a_time_out() -> None:
    with (
        answering() as (url, _),
        at(url, request_timeout_ms="50") as registry,
        pytest.raises(UnreachableError, match=r"within 0\.05 s"),
    ):
        registry.by_id(1)


def test_a_response_that_arrives_byte_by_byte_is_a_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "stopwatch", iter(range(0, 1000, 20)).__next__)
    monkeypatch.setattr(http_connection, "READ_BYTES", 1)
    with (
        answering(answer(INT)) as (url, _),
        at(url) as registry,
        pytest.raises(UnreachableError, match="within 30 s"),
    ):
        registry.by_id(1)


def test_a_huge_response_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_RESPONSE_BYTES", 10)
    with (
        answering(answer(INT)) as (url, _),
        at(url) as registry,
        pytest.raises(RemoteError, match="exceeds 10 bytes"),
    ):
        registry.by_id(1)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"[]", b"{}", b'{"schema": 7}', b"[" * 100_000),
        b'{"schema": "x", "references": [7]}',
    ],
    ids=["empty", "html", "list", "object", "number", "deep", "reference"],
)
def test_a_server_that_is_no_registry_is_named(body: bytes) -> None:
    with (
        answering(answer(body)) as (url, _),
        at(url) as registry,
        pytest.raises(RemoteError, match=f"{url} is not a schema registry"),
    ):
        registry.by_id(1)


def test_a_broker_without_registry_says_how_to_enable_it(tmp_path: Path) -> None:
    settings = {"schema.registry.enable": "false"}
    with (
        ServerThread(tmp_path, settings, http=True) as server,
        connect_registry(server.address) as registry,
        pytest.raises(RemoteError, match=r"schema\.registry\.enable=true"),
    ):
        registry.by_id(1)


def test_a_broker_without_http_listener_announces_no_registry(tmp_path: Path) -> None:
    with (
        ServerThread(tmp_path) as server,
        connect_registry(server.address) as registry,
        pytest.raises(RemoteError, match=r"set schema\.registry\.url"),
    ):
        registry.by_id(1)


def test_an_idle_connection_that_the_server_closed_is_opened_again() -> None:
    with answering(answer(INT), answer(INT), closes=True) as (url, requests), at(url) as registry:
        registry.by_id(1)
        registry.by_id(2)
        assert len(requests) == 2


def test_a_schema_is_asked_for_once() -> None:
    with answering(answer(INT)) as (url, requests), at(url) as registry:
        assert registry.by_id(1) is registry.by_id(1)
        assert len(requests) == 1


def test_an_unknown_id_is_not_asked_for_with_every_record() -> None:
    missing = answer(b'{"error_code": 40403, "message": "Schema 1 not found"}', "404 Not Found")
    clock = FakeClock()
    with (
        answering(missing, answer(INT)) as (url, requests),
        connect_registry(url=url, clock=clock) as registry,
    ):
        for _ in range(3):
            with pytest.raises(SchemaNotFoundError, match="Schema 1 not found"):
                registry.by_id(1)
        assert len(requests) == 1
        clock.advance(UNKNOWN_MS)
        assert registry.by_id(1).text == '"int"'


def test_a_registry_that_ignores_the_offset_is_not_asked_forever() -> None:
    rows = [{"subject": f"s{n:03}", "version": 1, "id": n} for n in range(PAGE_SCHEMAS)]
    page = answer(json.dumps(rows).encode())
    with answering(page, page) as (url, requests), at(url, request_timeout_ms="2s") as registry:
        assert [row.id for row in registry.newest()] == list(range(PAGE_SCHEMAS))
        assert len(requests) == 2


def test_references_in_a_cycle_are_an_error() -> None:
    body = (
        b'{"schema": "x", "id": 1, "version": 1, "references":'
        b' [{"name": "N%d", "subject": "s", "version": 1}]}'
    )
    answers = [answer(body % number) for number in range(100)]
    with (
        answering(*answers) as (url, _),
        at(url) as registry,
        pytest.raises(RemoteError, match="too many references"),
    ):
        registry.by_id(1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"http.listener": "https://127.0.0.1:0", "http.authentication": "required"}
    with SecuredBroker(tmp_path_factory.mktemp("secured"), settings, http=True) as running:
        for user in ("writer", "stranger"):
            running.add_user(user, f"{user}'s password")
            running.allow(user, (Operation.DESCRIBE_CONFIGS.on(CLUSTER), CLUSTER_NAME))
        running.allow("writer", (WRITE.on(TOPIC), "orders"), (READ.on(TOPIC), "orders"))
        yield running


def registry_of(broker: SecuredBroker, user: str, **changes: str) -> RemoteRegistry:
    return connect_registry(broker.address, broker.client(user, **changes))


def test_a_user_registers_over_tls(secured: SecuredBroker) -> None:
    with registry_of(secured, "writer") as registry:
        added = registry.register("orders-value", NewSchema('"int"'))
        assert registry.subjects() == ["orders-value"]
        with registry_of(secured, "stranger") as other:
            with pytest.raises(AuthorizationError, match="orders"):
                other.register("orders-value", NewSchema('"int"'))
            with pytest.raises(SchemaNotFoundError):
                other.by_id(added.schema.id)


def test_a_rejected_login_does_not_show_the_password(secured: SecuredBroker) -> None:
    url = f"https://localhost:{secured.server.listener('http').rpartition(':')[2]}"
    wrong = {**secured.client("writer"), "sasl.password": "wrong"}
    with (
        connect_registry(url=url, client=wrong) as registry,
        pytest.raises(AuthenticationError, match="check user and password") as error,
    ):
        registry.subjects()
    assert "wrong" not in str(error.value)
    nothing = {"ssl.ca.location": str(secured.authority.path)}
    with (
        connect_registry(url=url, client=nothing) as registry,
        pytest.raises(AuthenticationError, match=r"set sasl\.username"),
    ):
        registry.subjects()
