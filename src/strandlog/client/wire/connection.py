"""A pipelined connection to one broker: `send` returns before the reply, which is read on demand.

    reply = connection.send(FETCH, body)      does not wait for the reply
    ...                                       the broker processes the request
    frame, position = reply.wait()            reads the socket up to this reply

A broker responds in the order of the requests, so waiting for one reply also reads all replies
before it. A reply that is no longer needed is dropped when it arrives (`forget`).

A connection is set up in this order: TCP, TLS if configured, ApiVersions, SASL if configured. For
each API, the client uses the highest version that both sides support. After a network error, a
failed login or a malformed frame, the connection is closed: each pending reply fails with
`UnreachableError`, and a new connection is needed.

A broker may limit how long a login is valid (KIP-368). After 85 to 95 % of that time, the next
`send` receives the pending replies and logs in again on the same connection, with the current
credentials. The random factor spreads the logins of clients that started at the same time.

Each frame is received into its own buffer, which is never overwritten, so record bytes are returned
as views of it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from strandlog.client.addresses import wrong_protocol
from strandlog.client.wire.apis import CLIENT_VERSIONS
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.sasl import tokens
from strandlog.clock import Clock
from strandlog.config.tables.client import OAUTHBEARER
from strandlog.config.tables.server import Address
from strandlog.errors import AuthenticationError, DataError, RemoteError, UnreachableError
from strandlog.model import Buffer
from strandlog.protocol.kafka.api import API_BY_KEY, API_VERSIONS, FETCH, Api
from strandlog.protocol.kafka.decoder import decode_response
from strandlog.protocol.kafka.encoder import request_encoder
from strandlog.protocol.kafka.headers import read_response_header, request_header

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
UNSUPPORTED_VERSION, UNSUPPORTED_SASL_MECHANISM = 35, 33
REAUTHENTICATION_SHARE = (0.85, 0.95)  # share of a login's lifetime, as in the Java client
MAX_FRAME_BYTES = 256 * 1024 * 1024
HTTP_ANSWER = b"HTTP"
TLS_ALERT = b"\x15\x03"  # as the length of a frame, it would be more than MAX_FRAME_BYTES
SMALL_REQUEST_BYTES = 64 * 1024
MAX_VECTORS = 512
_LOGIN_SETTINGS = "sasl.username, sasl.password and sasl.mechanism"
_SET_UP_HINT = (
    " before the first response; check that security.protocol matches its listener, and set "
    "ssl.certificate.location if it requires client certificates"
)


class WrongListenerError(UnreachableError):
    """The server at this address is not a Kafka listener, so another attempt would fail as well."""


class RefusedHandshakeError(UnreachableError):
    """The server closed the connection during the TLS handshake. It may not use TLS, but it may
    also be restarting behind a proxy."""


class Reply:
    """The reply to one request, which may not have arrived yet."""

    __slots__ = (
        "_connection",
        "_failure",
        "_frame",
        "_is_wanted",
        "api",
        "correlation_id",
        "version",
    )

    def __init__(self, connection: WireConnection, api: Api, version: int, number: int) -> None:
        self._connection = connection
        self._frame: memoryview | None = None
        self._failure: UnreachableError | None = None
        self._is_wanted = True
        self.api = api
        self.version = version
        self.correlation_id = number

    @property
    def is_done(self) -> bool:
        return self._frame is not None or self._failure is not None

    def wait(self, extra_ms: int = 0) -> tuple[memoryview, int]:
        """Wait for the reply and return (frame, position of the body).

        The timeout of each read is request.timeout.ms plus `extra_ms`.
        """
        while not self.is_done:
            self._connection.receive(extra_ms)
        if self._failure is not None:
            raise UnreachableError(str(self._failure), self._failure.code)
        assert self._frame is not None
        correlation_id, position = read_response_header(self.api, self.version, self._frame)
        if correlation_id != self.correlation_id:
            raise self._connection.broken(
                f"received correlation id {correlation_id} instead of {self.correlation_id}"
            )
        return self._frame, position

    def parsed(self) -> Any:
        """Wait for the reply and return its body, decoded according to its schema."""
        frame, position = self.wait()
        return decode_response(self.api.key, self.version, frame, position)

    def forget(self) -> None:
        """Drop the reply when it arrives."""
        self._is_wanted = False
        self._frame = None

    def fill(self, frame: memoryview) -> None:
        if self._is_wanted:
            self._frame = frame

    def fail(self, failure: UnreachableError) -> None:
        if not self.is_done:
            self._failure = failure


class WireConnection:
    """A connection to one broker. It is not reopened after a failure."""

    def __init__(
        self,
        address: Address,
        options: WireOptions,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.is_open = False
        self._options = options
        self._clock = clock
        self._is_set_up = False
        self._login_again_ms: int | None = None  # monotonic; None if the login does not expire
        self._replies: deque[Reply] = deque()
        self._next_number = 0
        self._versions: dict[int, int] = {}
        self._timeout_s = options.seconds("request.timeout.ms")
        self._length = memoryview(bytearray(4))
        self._frame_limit_bytes = max(
            MAX_FRAME_BYTES, 2 * options.number("max.partition.fetch.bytes")
        )
        self._socket = self._connected(tls)
        self.is_open = True
        try:
            self._negotiate()
            if options.wants_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise
        self._is_set_up = True

    # -- opening ---------------------------------------------------------------------------------

    def _connected(self, tls: ssl.SSLContext | None) -> socket.socket:
        host, port = self.address
        timeout_s = self._options.seconds("socket.connection.setup.timeout.ms")
        try:
            plain = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise UnreachableError(
                f"cannot connect to {self.name}: {error}; check that the broker is running, "
                "and check advertised.listeners and bootstrap.servers"
            ) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for name, option in (
                ("receive.buffer.bytes", socket.SO_RCVBUF),
                ("send.buffer.bytes", socket.SO_SNDBUF),
            ):
                if self._options.number(name) > 0:
                    plain.setsockopt(socket.SOL_SOCKET, option, self._options.number(name))
            connected = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            rejection = self._tls_rejection(error)
            if rejection is not None:
                raise rejection from error
            is_closed = isinstance(error, ssl.SSLEOFError | ConnectionError)
            kind = RefusedHandshakeError if is_closed else UnreachableError
            raise kind(
                f"TLS handshake with {self.name} failed: {_reason(error)}; check that its listener "
                "uses TLS, or change security.protocol"
            ) from error
        connected.settimeout(self._timeout_s)
        return connected

    def _negotiate(self) -> None:
        """Send ApiVersions, falling back to version 0 for an older broker."""
        for version in (CLIENT_VERSIONS[API_VERSIONS.key].last, 0):
            self._versions[API_VERSIONS.key] = version
            body = {"client_software_name": "strandlog", "client_software_version": "0"}
            reply = self.send(API_VERSIONS.key, body)
            frame, position = reply.wait()
            if int.from_bytes(frame[position : position + 2]) != UNSUPPORTED_VERSION:
                break
        answer = decode_response(API_VERSIONS.key, version, frame, position)
        if answer.error_code:
            raise self.broken(f"ApiVersions failed with code {answer.error_code}")
        for row in answer.api_keys:
            ours = CLIENT_VERSIONS.get(row.api_key)
            if ours is not None and row.api_key != API_VERSIONS.key:
                version = min(ours.last, row.max_version)
                if version >= max(ours.first, row.min_version):
                    self._versions[row.api_key] = version

    def _tls_rejection(self, error: OSError) -> AuthenticationError | None:
        """Return an error if one side rejects the other or the broker does not use TLS, because a
        retry would fail; otherwise return None."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return AuthenticationError(
                f"the certificate of {self.name} is not trusted: {error.verify_message}; "
                "check ssl.ca.location"
            )
        if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
            return None
        reason = error.reason or ""
        if "ALERT" in reason:
            return AuthenticationError(
                f"{self.name} ended the TLS connection: {_words(reason)}; check "
                "ssl.certificate.location, ssl.key.location and the broker's ssl.client.auth"
            )
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return AuthenticationError(
                f"{self.name} does not use TLS; check security.protocol and the port"
            )
        return None

    def _authenticate(self) -> None:
        mechanism = self._options.text("sasl.mechanism")
        # Not every broker lists the SASL APIs, but all support these versions.
        self._versions.setdefault(SASL_HANDSHAKE, 1)
        self._versions.setdefault(SASL_AUTHENTICATE, 0)
        shake = self.send(SASL_HANDSHAKE, {"mechanism": mechanism}).parsed()
        if shake.error_code == UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationError(
                f"{self.name} does not support {mechanism}; it supports "
                f"{', '.join(shake.mechanisms) or 'none'}: set sasl.mechanism"
            )
        if shake.error_code:
            raise self.broken(f"the SASL handshake failed with code {shake.error_code}")
        exchange = tokens(mechanism, *self._options.credentials())
        token = next(exchange)
        while True:
            answer = self.send(SASL_AUTHENTICATE, {"auth_bytes": token}).parsed()
            if answer.error_code:
                what = "the token" if mechanism == OAUTHBEARER else "the user"
                names = "sasl.oauthbearer.token" if mechanism == OAUTHBEARER else _LOGIN_SETTINGS
                raise AuthenticationError(
                    f"{self.name} rejected {what}: {answer.error_message}; check {names}"
                )
            try:
                token = exchange.send(answer.auth_bytes)
            except StopIteration:
                break
        lifetime = getattr(answer, "session_lifetime", None)  # since version 1; 0: no limit
        if lifetime:
            wait_ms = 1000 * lifetime.total_seconds() * random.uniform(*REAUTHENTICATION_SHARE)
            self._login_again_ms = self._clock.monotonic_ms() + int(wait_ms)

    def _log_in_again(self) -> None:
        self._login_again_ms = None
        while self._replies:  # the broker accepts a login only when no request is in flight
            self.receive()
        try:
            self._authenticate()
        except BaseException:
            self.close()
            raise

    # -- requests and replies --------------------------------------------------------------------

    @property
    def name(self) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"{host}:{self.address.port}"

    @property
    def peer_host(self) -> str:
        """The IP address of the broker."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError as error:
            raise self.broken(_reason(error)) from error

    def version(self, api_key: int) -> int:
        """Return the version of an API to use with this broker."""
        version = self._versions.get(api_key)
        if version is None:
            usable = CLIENT_VERSIONS[api_key]
            raise RemoteError(
                f"{self.name} does not support {API_BY_KEY[api_key].name} versions "
                f"{usable.first} to {usable.last}; use a newer broker",
                UNSUPPORTED_VERSION,
            )
        return version

    def send(self, api_key: int, body: Mapping[str, Any] | Sequence[Buffer]) -> Reply:
        """Send a request, given as encoded parts or as a dictionary of the fields in its schema."""
        if self._login_again_ms is not None and self._clock.monotonic_ms() >= self._login_again_ms:
            self._log_in_again()
        version, api = self.version(api_key), API_BY_KEY[api_key]
        self._next_number = self._next_number + 1 & 0x7FFF_FFFF
        reply = Reply(self, api, version, self._next_number)
        parts: list[Buffer]
        if isinstance(body, Mapping):
            parts = [request_encoder(api_key, version)(body)]
        else:
            parts = list(body)
        head = request_header(api, version, reply.correlation_id, self._options.text("client.id"))
        size = len(head) + sum(map(len, parts))
        if size > SMALL_REQUEST_BYTES:
            self._receive_fetches()
        self._replies.append(reply)
        self._write([size.to_bytes(4) + head, *parts])
        return reply

    def _receive_fetches(self) -> None:
        # A broker may stop reading requests until the client has read its large responses. Sending
        # a large request before that could deadlock.
        while any(reply.api == FETCH for reply in self._replies):
            self.receive()

    def _write(self, parts: list[Buffer]) -> None:
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                for part in parts:
                    self._socket.sendall(part)
                return
            for first in range(0, len(parts), MAX_VECTORS):
                self._send_all(parts[first : first + MAX_VECTORS])
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()  # interrupted inside a frame: the rest of the stream is unusable
            raise

    def _send_all(self, parts: list[Buffer]) -> None:
        rest = [memoryview(part) for part in parts]
        while rest:
            sent = self._socket.sendmsg(rest)
            done = 0
            while done < len(rest) and sent >= len(rest[done]):
                sent -= len(rest[done])
                done += 1
            rest = rest[done:]
            if rest:
                rest[0] = rest[0][sent:]

    def receive(self, extra_ms: int = 0) -> None:
        """Read the next reply from the socket."""
        if not self.is_open:
            raise self.broken("the connection is closed")
        try:
            self._socket.settimeout(self._timeout_s + extra_ms / 1000)
            self._fill(self._length)
            size = int.from_bytes(self._length)
            if self._length[:2] == TLS_ALERT:
                self.close()
                raise AuthenticationError(
                    f"{self.name} expects TLS; set security.protocol to SSL or SASL_SSL"
                )
            if size > self._frame_limit_bytes:
                if not self._is_set_up:
                    raise self._wrong_listener()
                raise DataError("the response is not in Kafka's protocol: check security.protocol")
            frame = memoryview(bytearray(size))
            self._fill(frame)
        except DataError as error:
            raise self.broken(str(error)) from error
        except OSError as error:
            raise self._lost(error) from error
        except BaseException:
            self.close()  # interrupted inside a frame: the rest of the stream is unusable
            raise
        if not self._replies:
            raise self.broken("received a response without a request")
        self._replies.popleft().fill(frame.toreadonly())

    def _fill(self, target: memoryview) -> None:
        position, size = 0, len(target)
        receive = self._socket.recv_into
        while position < size:
            count = receive(target[position:])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            position += count

    def _lost(self, error: OSError) -> UnreachableError | AuthenticationError:
        """Close the connection after a socket error, and return the error to raise."""
        rejection = self._tls_rejection(error)
        if rejection is not None:
            self.close()
            return rejection
        hint = "" if self._is_set_up or isinstance(error, TimeoutError) else _SET_UP_HINT
        return self.broken(_reason(error) + hint)

    def _wrong_listener(self) -> WrongListenerError:
        """Close a new connection after an answer that is not Kafka's, and return the error."""
        begin = bytes(self._length)
        self.close()
        is_http = begin == HTTP_ANSWER
        found = "an HTTP server" if is_http else f"a server whose answer starts with {begin!r}"
        return WrongListenerError(wrong_protocol(self.name, found))

    def broken(self, reason: str) -> UnreachableError:
        """Close the connection, fail pending replies, and return the error to raise."""
        failure = UnreachableError(f"lost the connection to {self.name}: {reason}")
        self.close(failure)
        return failure

    def close(self, failure: UnreachableError | None = None) -> None:
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.close()
        reason = failure or UnreachableError(f"the connection to {self.name} was closed")
        while self._replies:
            self._replies.popleft().fail(reason)


def _words(reason: str) -> str:
    """Return a TLS alert in words: TLSV13_ALERT_CERTIFICATE_REQUIRED → certificate required."""
    return reason.partition("ALERT_")[2].replace("_", " ").lower() or reason


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response in time (request.timeout.ms)"
    if isinstance(error, ssl.SSLEOFError):
        return "the broker closed the connection"
    return str(error) or type(error).__name__
