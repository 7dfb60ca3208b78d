"""SASL: the mechanisms alone, and against a server that requires them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.sasl import HASHES, tokens
from strandlog.errors import AuthenticationError
from strandlog.protocol.kafka.api import API_BY_KEY
from strandlog.protocol.kafka.decoder import request_reader
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import NO_TAGGED_FIELDS
from strandlog.testing.clock import FakeClock

USER, PASSWORD = "us=er,", "secret"
SALT, ITERATIONS = b"salt", 4096


def test_scram_matches_the_examples_of_the_rfc() -> None:
    """The example of RFC 7677."""
    exchange = tokens("SCRAM-SHA-256", "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = exchange.send(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("first", "final"),
    [
        (b"r=other,s=c2FsdA==,i=4096", b""),
        (b"r=abc,s=c2FsdA==,i=4096", b""),
        (b"r=abcd,s=c2FsdA==,i=1", b""),
        (b"r=abcd,s=c2FsdA==,i=999999999", b""),
        (b"r=abcd,i=4096", b""),
        (b"r=abcd,s=c2FsdA==,i=4096", b"v=wrong"),
        (b"r=abcd,s=c2FsdA==,i=4096", b"e=other-error"),
    ],
)
def test_an_invalid_server_response_raises_authentication_error(first: bytes, final: bytes) -> None:
    exchange = tokens("SCRAM-SHA-512", "user", "pencil", nonce="abc")
    next(exchange)
    with pytest.raises(AuthenticationError):
        exchange.send(first)
        exchange.send(final)


def test_plain_is_one_token() -> None:
    exchange = tokens("PLAIN", "u", "p")
    assert next(exchange) == b"\0u\0p"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_a_bearer_token_is_one_token() -> None:
    exchange = tokens("OAUTHBEARER", "", "abc.def")
    assert next(exchange) == b"n,,\1auth=Bearer abc.def\1\1"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_a_rejected_bearer_token_is_acknowledged_and_then_an_error() -> None:
    exchange = tokens("OAUTHBEARER", "", "abc.def")
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\1"
    with pytest.raises(AuthenticationError, match="invalid_token"):
        exchange.send(b"")


def test_a_bearer_token_cannot_add_fields() -> None:
    with pytest.raises(AuthenticationError, match="0x01"):
        next(tokens("OAUTHBEARER", "", "abc\1user=admin"))


class Server:
    """The first messages of a broker that wants users to log in, one connection after the other."""

    def __init__(self, mechanism: str, lifetime_ms: int = 0) -> None:
        self.mechanism = mechanism
        self.lifetime_ms = lifetime_ms
        self.password = PASSWORD
        self.requests: list[int] = []  # the API keys of all connections
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.socket.accept()
                with peer, contextlib.suppress(ConnectionError):
                    self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        while True:
            api_key, version, number, body = self._request(peer)
            self.requests.append(api_key)
            if api_key == 18:
                spoken = [(18, 0, 3), (17, 1, 1), (36, 0, 2), (3, 5, 12)]
                rows = [{"api_key": k, "min_version": a, "max_version": b} for k, a, b in spoken]
                self._reply(peer, api_key, version, number, {"api_keys": rows})
            elif api_key == 17:
                code = 0 if body.mechanism == self.mechanism else 33
                step = self._exchange()
                next(step)
                answer = {"error_code": code, "mechanisms": [self.mechanism]}
                self._reply(peer, api_key, version, number, answer)
            elif api_key == 36:
                answer = {"session_lifetime": self.lifetime_ms, **step.send(body.auth_bytes)}
                self._reply(peer, api_key, version, number, answer)
            else:
                answer = {"brokers": [], "controller_id": 0, "topics": []}
                self._reply(peer, api_key, version, number, answer)

    def _request(self, peer: socket.socket) -> tuple[int, int, int, Any]:
        size = peer.recv(4, socket.MSG_WAITALL)
        if not size:
            raise ConnectionError
        frame = memoryview(peer.recv(int.from_bytes(size), socket.MSG_WAITALL))
        api_key, version, number, length = struct.unpack_from(">hhih", frame)
        position = 10 + length + API_BY_KEY[api_key].is_flexible(version)
        return api_key, version, number, request_reader(api_key, version)(frame, position)

    def _reply(
        self, peer: socket.socket, api_key: int, version: int, number: int, body: dict[str, Any]
    ) -> None:
        frame = number.to_bytes(4)
        if api_key != 18 and API_BY_KEY[api_key].is_flexible(version):
            frame += NO_TAGGED_FIELDS
        frame += response_encoder(api_key, version)(body)
        peer.sendall(len(frame).to_bytes(4) + frame)

    def _exchange(self) -> Any:
        if self.mechanism == "OAUTHBEARER":
            return self._bearer()
        return self._scram() if self.mechanism in HASHES else self._plain()

    def _bearer(self) -> Any:
        token = yield
        if token == f"n,,\1auth=Bearer {self.password}\1\1".encode():
            yield {"auth_bytes": b""}
        acknowledged = yield {"auth_bytes": b'{"status":"invalid_token"}'}
        assert acknowledged == b"\1"
        yield {"error_code": 58, "error_message": '{"status":"invalid_token"}'}

    def _plain(self) -> Any:
        token = yield
        wanted = f"\0{USER}\0{self.password}".encode()
        yield {"auth_bytes": b""} if token == wanted else {"error_code": 58, "error_message": "no"}

    def _scram(self) -> Any:
        name = HASHES[self.mechanism]
        first = (yield).decode().removeprefix("n,,")
        assert first.startswith("n=us=3Der=2C,r=")
        nonce = first.rpartition("r=")[2] + "-ours"
        answer = f"r={nonce},s={base64.b64encode(SALT).decode()},i={ITERATIONS}"
        final = (yield {"auth_bytes": answer.encode()}).decode()
        without_proof, _, proof = final.rpartition(",p=")
        message = f"{first},{answer},{without_proof}".encode()
        salted = hashlib.pbkdf2_hmac(name, self.password.encode(), SALT, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", name)
        stored = hashlib.new(name, client_key).digest()
        signature = hmac.digest(stored, message, name)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if base64.b64decode(proof) != expected:
            yield {"error_code": 58, "error_message": "wrong password"}
        server_key = hmac.digest(salted, b"Server Key", name)
        verifier = base64.b64encode(hmac.digest(server_key, message, name))
        yield {"auth_bytes": b"v=" + verifier}


@contextlib.contextmanager
def serving(mechanism: str, lifetime_ms: int = 0) -> Iterator[Server]:
    made = Server(mechanism, lifetime_ms)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield made
    made.socket.shutdown(socket.SHUT_RDWR)
    made.socket.close()
    thread.join(5)


@pytest.fixture(params=["PLAIN", *HASHES])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as made:
        yield made


def _client(server: Server, clock: FakeClock | None = None, **changes: str) -> WireClient:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": server.mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    changed = {name.replace("_", "."): value for name, value in changes.items()}
    return WireClient(server.address, {**options, **changed}, clock)


def test_a_user_logs_in(server: Server) -> None:
    with _client(server) as client:
        assert client.topics() == {}


def test_a_wrong_password_is_an_error_that_is_not_tried_again(server: Server) -> None:
    with (
        _client(server, sasl_password="guess") as client,
        pytest.raises(AuthenticationError, match=f"{server.address} rejected the user.*password"),
    ):
        client.topics()


def test_an_unsupported_mechanism_is_reported_with_the_supported_ones(
    server: Server,
) -> None:
    other = "PLAIN" if server.mechanism != "PLAIN" else "SCRAM-SHA-256"
    with (
        _client(server, sasl_mechanism=other) as client,
        pytest.raises(AuthenticationError, match=f"does not support {other}.*{server.mechanism}"),
    ):
        client.topics()


# -- bearer tokens and repeated logins -------------------------------------------------------------


def _bearer_client(server: Server, token: object, clock: FakeClock | None = None) -> WireClient:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": token,
    }
    return WireClient(server.address, options, clock)


@pytest.mark.parametrize("token", [PASSWORD, lambda: PASSWORD], ids=["text", "function"])
def test_a_bearer_token_logs_in(token: object) -> None:
    with serving("OAUTHBEARER") as server, _bearer_client(server, token) as client:
        assert client.topics() == {}


def test_an_invalid_bearer_token_is_one_error_that_does_not_show_it() -> None:
    with (
        serving("OAUTHBEARER") as server,
        _bearer_client(server, "guess") as client,
        pytest.raises(AuthenticationError, match=r"rejected the token.*invalid_token") as raised,
    ):
        client.topics()
    assert "guess" not in str(raised.value)
    assert server.requests == [18, 17, 36, 36]


@pytest.mark.parametrize("mechanism", ["PLAIN", *HASHES])
def test_a_login_is_renewed_on_the_same_connection_before_it_expires(mechanism: str) -> None:
    clock = FakeClock()
    with serving(mechanism, lifetime_ms=60_000) as server, _client(server, clock=clock) as client:
        client.topics()
        first = list(server.requests)
        clock.advance(50_000)
        client.topics()
        assert server.requests == [*first, 3]
        clock.advance(7_000)  # 95 % of the lifetime
        client.topics()
        assert server.requests == [*first, 3, *first[1:]]  # without ApiVersions


def test_pending_replies_are_received_before_the_login_is_renewed() -> None:
    clock = FakeClock()
    with serving("PLAIN", lifetime_ms=60_000) as server, _client(server, clock=clock) as client:
        connection = client._cluster.any_connection()
        body = {"topics": [], "allow_auto_topic_creation": False}
        pending = [connection.send(3, body) for _ in range(3)]
        clock.advance(57_000)
        pending.append(connection.send(3, body))
        assert [reply.parsed().controller_id for reply in pending] == [0] * 4
        assert server.requests[-6:] == [3, 3, 3, 17, 36, 3]


def test_a_renewed_login_uses_the_current_password(tmp_path: Path) -> None:
    clock = FakeClock()
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    with (
        serving("SCRAM-SHA-256", lifetime_ms=60_000) as server,
        _client(server, clock=clock, sasl_password=f"${{file:{secret}}}") as client,
    ):
        client.topics()
        server.password = "rotated"
        secret.write_text("rotated")
        clock.advance(57_000)
        client.topics()
        assert server.requests.count(18) == 1  # still the first connection


def test_a_rejected_renewal_is_an_error_and_closes_the_connection() -> None:
    clock = FakeClock()
    with serving("PLAIN", lifetime_ms=60_000) as server, _client(server, clock=clock) as client:
        client.topics()
        server.password = "rotated"
        clock.advance(57_000)
        with pytest.raises(AuthenticationError, match="rejected the user"):
            client.topics()
        with pytest.raises(AuthenticationError, match="rejected the user"):
            client.topics()
        assert server.requests.count(18) == 2
