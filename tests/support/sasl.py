"""Logins over raw sockets, with kio's encoding of the requests and our client's SASL messages."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.support.kafka_requests import Wire, build, encode, request_header

from strandlog.client.wire.sasl import tokens
from strandlog.testing.server import ServerThread

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
SCRAM_256, SCRAM_512, PLAIN = "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"


class SaslWire(Wire):
    """A connection that can log in, step by step or at once."""

    def handshake(self, mechanism: str = SCRAM_256, version: int = 1) -> Any:
        """Send SaslHandshake and give the answer."""
        return self.ask(SASL_HANDSHAKE, version, mechanism=mechanism)

    def token(self, token: bytes, version: int = 2) -> Any:
        """Send SaslAuthenticate and give the answer."""
        return self.ask(SASL_AUTHENTICATE, version, auth_bytes=token)

    def log_in(self, user: str, password: str, mechanism: str = SCRAM_256, version: int = 2) -> Any:
        """Log in and give the last answer, which may be an error."""
        answer = self.handshake(mechanism)
        assert answer.error_code == 0, answer
        exchange = tokens(mechanism, user, password)
        message = next(exchange)
        while True:
            answer = self.token(message, version)
            if answer.error_code:
                return answer
            try:
                message = exchange.send(answer.auth_bytes)
            except StopIteration:
                return answer

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; fail if it sends anything before."""
        with contextlib.suppress(ConnectionError):
            assert self.socket.recv(1) == b""
        return True


def frame(api_key: int, version: int, correlation_id: int = 1, **values: Any) -> bytes:
    """The bytes of a request with its length."""
    body = encode(build(api_key, version, **values))
    request = request_header(api_key, version, correlation_id) + body
    return len(request).to_bytes(4) + request


def let_pass(server: ServerThread, milliseconds: int) -> None:
    """Wait until the server's clock has advanced, for behaviour that depends on it."""
    due_ms = server.server.broker.clock.monotonic_ms() + milliseconds
    server.wait_until(lambda each: each.broker.clock.monotonic_ms() >= due_ms, "time passes")
