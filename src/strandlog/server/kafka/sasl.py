"""SASL on the connections of the Kafka listeners: carries out what `authentication.py` decides.

    SaslLogins     one per server: mechanisms, deadlines, the throttle and metrics
    SaslSession    one per connection of a SASL listener

Until a client has authenticated, its session gets every frame (`Connection.guard`), and passes only
requests on the allow-list to the dispatcher. Afterwards the connection calls the dispatcher
directly, so SASL adds no cost to later requests. A re-authentication, or a timer when the session
expires, puts the session back in front of the dispatcher.

A login holds the line (`Connection.hold_line`): requests that a client sends after a token wait
for the result, and are dropped if the login fails. Password hashes are computed in a thread.

A failed login closes the connection after connection.failed.authentication.delay.ms, with an error
response unless its tokens have no header. A frame that is not allowed closes the connection, in
most states without a response (`authentication.py`); earlier requests are still answered. A client
has connections.authentication.timeout.ms from the moment of its connection until it has
authenticated, including the TLS handshake, and the same time for each re-authentication.

An unauthenticated client can make the server hold at most twice sasl.server.max.receive.size: one
frame, and as many bytes after it. `LoginBudget` also limits the total of all such clients.

Log messages contain the address, the mechanism and the claimed user name, but nothing else from a
client's tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from strandlog.broker.access.sasl import Identity, SaslExchange, SaslStep
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work
from strandlog.clock import Clock
from strandlog.config.limits.kafka import UNAUTHENTICATED_MAX_BYTES
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.client import OAUTHBEARER, PLAIN
from strandlog.errors import (
    AuthenticationError,
    DataError,
    IllegalSaslStateError,
    UnsupportedSaslMechanismError,
)
from strandlog.model import Buffer
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import read_request_header, response_header
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.api import SUPPORTED_VERSIONS
from strandlog.server.kafka.authentication import Authentication, State, Verdict
from strandlog.server.kafka.connection import Connection, HandleFrame
from strandlog.server.kafka.login_throttle import Attempt, LoginThrottle
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.server.memory import ByteBudget, Holder

if TYPE_CHECKING:
    from strandlog.server.kafka.request import Request

logger = logging.getLogger(__name__)

SASL_AUTHENTICATED = "SaslAuthenticate request received after successful authentication"
NO_KEY = -1
SHOWN_CHARACTERS = 64  # maximum length of a claimed user name in the log
KEY_BYTES = 2
SECOND_MS = 1000
REVOKE_SECONDS = 2.0  # time for requests in progress when the user's credentials change
READ_SECONDS = 0.1  # time to read the last response, which some clients drop after a close
TokenOutcome = SaslStep | AuthenticationError


class LoginBudget(ByteBudget):
    """The bytes that connections hold before they have authenticated."""

    def __init__(self, max_frame_bytes: int, stall_ms: int, clock: Clock) -> None:
        limit = max(UNAUTHENTICATED_MAX_BYTES, max_frame_bytes)
        super().__init__("logins", limit, 2 * limit, stall_ms, clock)
        self._max_frame_bytes = max_frame_bytes

    def hold(self, holder: Holder, count: int) -> None:
        super().hold(holder, count)
        if count > 2 * self._max_frame_bytes:  # one frame, and as many bytes after it
            logger.warning(
                "closing the connection from %s: it sent %d bytes before it authenticated",
                holder.peer_host,
                count,
            )
            holder.abort()


def _random_below(limit: int) -> int:
    """Return a number that clients cannot predict, from 0 up to but not including the limit."""
    import secrets  # noqa: PLC0415 - only after a failed login

    return secrets.randbelow(limit)


class SaslLogins:
    """The state that the SASL sessions of one server share."""

    def __init__(self, broker: Broker, runtime: ServerRuntime, handle: HandleFrame) -> None:
        self.broker = broker
        self.runtime = runtime
        self.handle = handle
        self.metrics = broker.metrics
        self.clock = broker.clock
        self.settings: BrokerSettings = broker.settings
        self.loop = asyncio.get_running_loop()
        settings = self.settings
        self.throttle = LoginThrottle(
            settings.failed_logins_per_user_rate,
            settings.failed_logins_per_ip_rate,
            broker.clock,
            self.loop.call_later,
            _random_below,
        )
        self.budget = LoginBudget(
            settings.sasl_server_max_receive_size, settings.queued_stall_timeout_ms, broker.clock
        )
        # Sessions of users with a password, and the version of the stored credentials when these
        # sessions were last checked.
        self._sessions: set[SaslSession] = set()
        self._credentials_version = broker.credentials_version
        # Connections that have to authenticate, the oldest first, with the timers that close them.
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    def open(self, connection: Connection) -> SaslSession:
        """Require a new connection to authenticate."""
        session = SaslSession(self, connection)
        connection.limit_requests(self.settings.sasl_server_max_receive_size, self.budget)
        session.guard()
        return session

    def closed(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        if connection.sasl is not None:
            connection.sasl.end()
            self._sessions.discard(connection.sasl)
            self.settled(connection)

    # -- deadlines -------------------------------------------------------------------------------

    def expect(self, connection: Connection) -> None:
        """Close a connection unless it authenticates in time."""
        limit = self.settings.connections_authentication_timeout_ms / SECOND_MS
        if connection.sasl is None:  # a new connection: its TLS handshake counts
            limit = max(0.0, limit - connection.age_seconds())
        self._waiting[connection] = self.loop.call_later(limit, self._time_out, connection)
        self.metrics.connections_authenticating = len(self._waiting)

    def settled(self, connection: Connection) -> None:
        """Stop waiting for a connection to authenticate."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self.metrics.connections_authenticating = len(self._waiting)

    def _time_out(self, connection: Connection) -> None:
        self.metrics.logins_timed_out += 1
        logger.info(
            "closing the connection from %s: it did not authenticate within %d ms",
            connection.peer_host,
            self.settings.connections_authentication_timeout_ms,
        )
        self._drop(connection)

    def drop_oldest(self) -> bool:
        """Close the connection that has been authenticating for the longest time, because there are
        too many connections; return whether there was one. Connections that re-authenticate stay
        open, because their clients are known."""
        for connection in self._waiting:
            if connection.sasl is None or not connection.sasl.authentication.is_reauthentication:
                self.metrics.logins_dropped += 1
                self._drop(connection)
                return True
        return False

    def _drop(self, connection: Connection) -> None:
        self.settled(connection)
        connection.abort()

    # -- changed and deleted users ---------------------------------------------------------------

    def watch(self, session: SaslSession) -> None:
        """Watch for changes to the credentials of a session's user, to close its connection, if
        credential.change.closes.connections is set. A login with a token has no stored
        credentials."""
        if session.stamp and self.settings.credential_change_closes_connections:
            self._sessions.add(session)

    def end_revoked(self) -> None:
        """Close the connections of users whose credentials have changed. Must be called after a
        change and before its response, so that no request of a deleted user follows it."""
        version = self.broker.credentials_version
        if version == self._credentials_version:
            return
        self._credentials_version = version
        stamps: dict[tuple[str, str], bytes] = {}
        for session in list(self._sessions):
            login = (session.user, session.mechanism)
            if login not in stamps:
                stamps[login] = self.broker.credentials_stamp(*login)
            if session.stamp != stamps[login]:
                self._sessions.discard(session)
                self.metrics.connections_ended += 1
                session.revoke()

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()


class SaslSession:
    """The login, and later the session, of one connection."""

    __slots__ = (
        "_connection",
        "_expiry",
        "_is_guarding",
        "_logins",
        "authentication",
        "mechanism",
        "stamp",
    )

    def __init__(self, logins: SaslLogins, connection: Connection) -> None:
        self._logins = logins
        self._connection = connection
        self._expiry: asyncio.TimerHandle | None = None
        self._is_guarding = False  # whether this session receives the connection's frames
        self.mechanism = ""  # the mechanism that the client used; empty for a token
        self.stamp = b""  # identifies the credentials that the client used; empty for a token
        self.authentication = Authentication(logins.settings.connections_max_reauth_ms)

    def guard(self) -> None:
        """Receive every frame of the connection until the client has authenticated."""
        self._is_guarding = True
        self._connection.guard(self.receive)
        self._logins.expect(self._connection)

    def end(self) -> None:
        """Cancel the timer of the session."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def receive(self, frame: memoryview, reply: PendingReply, connection: Connection) -> None:
        """Handle a frame of a client that has to authenticate, for the first time or again. This
        method never raises, because an exception in a turn of the event loop stops the server."""
        try:
            self._receive(frame, reply, connection)
        except Exception:
            logger.exception(
                "internal error before a login from %s; closing the connection",
                connection.peer_host,
            )
            reply.fail()

    def _receive(self, frame: memoryview, reply: PendingReply, connection: Connection) -> None:
        api_key = int.from_bytes(frame[:KEY_BYTES], signed=True) if frame else NO_KEY
        match self.authentication.judge(api_key):
            case Verdict.HANDLE:
                self._logins.handle(frame, reply, connection)
            case Verdict.TOKEN:
                self._check(bytes(frame), reply, self._answer_raw)
            case Verdict.REJECT:
                self._close(reply, _illegal_state(frame), self._delay_seconds)
            case Verdict.CLOSE:
                if self.authentication.state is State.DONE:
                    self._logins.metrics.sessions_expired += 1
                self._close(reply)

    # -- requests, called by their handlers ------------------------------------------------------

    def handshake(self, request: Request, mechanism: str) -> None:
        """Answer a SaslHandshake request, and start an exchange if that is allowed."""
        authentication = self.authentication
        now_ms = self._logins.clock.monotonic_ms()
        if not authentication.may_begin(now_ms):
            if self._is_guarding:  # the session has expired, and the last attempt was too recent
                self._close(request.pending)
            else:
                request.reply({"error_code": IllegalSaslStateError.kafka_code, "mechanisms": []})
            return
        body = {"error_code": 0, "mechanisms": self._logins.broker.sasl_mechanisms}
        try:
            exchange = self._logins.broker.begin_sasl(request.context, mechanism)
        except UnsupportedSaslMechanismError as error:
            self._log_failure("an unsupported mechanism")
            body["error_code"] = error.kafka_code
            authentication.fail()
            self._close(request.pending, request.encoded(body), self._delay_seconds)
            return
        is_reauthentication = authentication.is_reauthentication
        if not authentication.begin(exchange, request.version, now_ms):
            self._log_failure("a re-authentication with another mechanism")
            self._close(request.pending, request.encoded(body))
            return
        if is_reauthentication:
            self.guard()
        request.reply(body)

    def authenticate(self, request: Request, token: bytes) -> None:
        """Answer a SaslAuthenticate request."""
        if self.authentication.state is not State.TOKENS:
            body = {
                "error_code": IllegalSaslStateError.kafka_code,
                "error_message": SASL_AUTHENTICATED,
            }
            request.reply(body)
            return

        def answer(outcome: TokenOutcome, lifetime_ms: int) -> list[Buffer]:
            if isinstance(outcome, AuthenticationError):
                body = {"error_code": outcome.kafka_code, "error_message": str(outcome)}
            else:
                body = {"error_message": "", "auth_bytes": outcome.answer}
                body["session_lifetime"] = lifetime_ms
            return request.encoded(body)

        self._check(token, request.pending, answer)

    # -- tokens ----------------------------------------------------------------------------------

    def _check(
        self,
        token: bytes,
        reply: PendingReply,
        answer: Callable[[TokenOutcome, int], list[Buffer] | None],
    ) -> None:
        """Process a token, and send the reply that `answer` builds from its outcome."""
        connection = self._connection
        exchange = self.authentication.exchange
        assert exchange is not None
        connection.hold_line()

        def run(attempt: Attempt | None) -> None:
            reply.on_abandoned = None
            self._logins.runtime.run_login(self._work(exchange, token, reply, answer, attempt))

        def on_wait(cancel: Callable[[], None]) -> None:
            self._logins.metrics.logins_delayed += 1
            reply.on_abandoned = cancel

        claimed = exchange.user
        if exchange.mechanism == PLAIN:
            claimed = _plain_user(token)
        elif exchange.mechanism.startswith("SCRAM") and not claimed:
            run(None)  # SCRAM's first token proves nothing, so it does not count as an attempt
            return
        self._logins.throttle.attempt(connection.peer_host, claimed, run, on_wait)

    def _work(
        self,
        exchange: SaslExchange,
        token: bytes,
        reply: PendingReply,
        answer: Callable[[TokenOutcome, int], list[Buffer] | None],
        attempt: Attempt | None,
    ) -> Work[None]:
        outcome: TokenOutcome | None = None
        try:
            try:
                outcome = yield from exchange.respond(token)
            except AuthenticationError as error:
                outcome = error
            finally:
                if attempt is not None:  # counts even if the client has disconnected
                    is_step = isinstance(outcome, SaslStep)
                    is_success = isinstance(outcome, SaslStep) and outcome.identity is not None
                    attempt.ended(has_failed=not is_step, has_succeeded=is_success)
            if self.authentication.exchange is exchange:
                self._finish(exchange, outcome, reply, answer)
            else:  # the user was changed or deleted during a re-authentication (`revoke`)
                reply.fail()
        except Exception:
            logger.exception(
                "internal error in a login from %s; closing the connection",
                self._connection.peer_host,
            )
            reply.fail()

    def _finish(
        self,
        exchange: SaslExchange,
        outcome: TokenOutcome,
        reply: PendingReply,
        answer: Callable[[TokenOutcome, int], list[Buffer] | None],
    ) -> None:
        """Reply to a token, and start the session if it completed the exchange."""
        lifetime_ms = 0
        is_open = self._connection.is_open
        if is_open and isinstance(outcome, SaslStep) and outcome.identity is not None:
            try:
                lifetime_ms = self._begin_session(outcome.identity, exchange)
            except AuthenticationError as error:
                outcome = error
        if isinstance(outcome, AuthenticationError):
            self._logins.metrics.logins_failed += 1
            self._audit(exchange, str(outcome))
            self._log_failure(exchange.mechanism, exchange.user)
            if is_open:
                self._close(reply, answer(outcome, 0), self._delay_seconds)
        elif is_open:
            reply.fill(answer(outcome, lifetime_ms))
            self._connection.release_line()

    def _answer_raw(self, outcome: TokenOutcome, lifetime_ms: int) -> list[Buffer] | None:
        """Return the response to a token without a header: the server's token, or None on
        failure."""
        del lifetime_ms
        return None if isinstance(outcome, AuthenticationError) else [outcome.answer]

    # -- the session -----------------------------------------------------------------------------

    def _begin_session(self, identity: Identity, exchange: SaslExchange) -> int:
        """Let the client's requests pass until the session expires; return its lifetime. Raise
        `AuthenticationError` if a re-authentication results in another principal."""
        connection, logins = self._connection, self._logins
        now_ms, wall_ms = logins.clock.monotonic_ms(), logins.clock.now_ms()
        lifetime_ms = self.authentication.complete(identity, now_ms, wall_ms)
        connection.context.set_principal(identity.principal)
        self._is_guarding = False
        connection.unguard()
        if exchange.mechanism != OAUTHBEARER:
            self.mechanism = exchange.mechanism
            self.stamp = logins.broker.credentials_stamp(exchange.user, exchange.mechanism)
        logins.metrics.logins_succeeded += 1
        self._audit(exchange, None)
        logins.settled(connection)
        logins.watch(self)
        self.end()
        if lifetime_ms:
            self._expiry = logins.loop.call_later(lifetime_ms / SECOND_MS, self._expire)
        return lifetime_ms

    @property
    def user(self) -> str:
        """The name of the user that has logged in."""
        principal = self.authentication.principal
        assert principal is not None
        return principal.name

    def revoke(self) -> None:
        """Close the connection, because the user was changed or deleted. No further request is
        handled. Requests in progress are answered if that is possible soon, because one of them may
        have changed the user; a Fetch that waits for records is usually not answered."""
        self.authentication.fail()
        self._connection.drain(READ_SECONDS)
        self._logins.loop.call_later(REVOKE_SECONDS, self._connection.abort)

    def _expire(self) -> None:
        """Accept only a re-authentication from now on."""
        self._expiry = None
        if self.authentication.state is State.DONE:
            self._is_guarding = True
            self._connection.guard(self.receive)

    # -- failures --------------------------------------------------------------------------------

    @property
    def _delay_seconds(self) -> float:
        return self._logins.settings.connection_failed_authentication_delay_ms / SECOND_MS

    def _audit(self, exchange: SaslExchange, error: str | None) -> None:
        context = self._connection.context
        self._logins.broker.audit.login(context, exchange.mechanism, exchange.user, error)

    def _log_failure(self, what: str, user: str = "") -> None:
        claimed = f" as {user[:SHOWN_CHARACTERS]!r}" if user else ""
        logger.info("failed login from %s%s: %s", self._connection.peer_host, claimed, what)

    def _close(
        self, reply: PendingReply, buffers: list[Buffer] | None = None, delay_seconds: float = 0
    ) -> None:
        """After a delay, send `buffers`, if any, and close the connection once earlier requests are
        answered. Handle no later request."""
        connection = self._connection
        self.authentication.fail()
        connection.hold_line()

        def answer() -> None:
            reply.fill(buffers)
            connection.drain(0 if buffers is None else READ_SECONDS)

        timer = self._logins.loop.call_later(delay_seconds, answer)
        reply.on_abandoned = timer.cancel


def _plain_user(token: bytes) -> str:
    """Return the user name that a PLAIN token claims, or "" if it has none."""
    parts = token.split(b"\0", 2)
    return str(parts[1], "utf-8", "replace") if len(parts) > 1 else ""


def _illegal_state(frame: memoryview) -> list[Buffer] | None:
    """Return a response of the request's own API with error 34, or None if the request's header is
    invalid or its version is not supported."""
    try:
        header = read_request_header(frame, SUPPORTED_VERSIONS)
    except DataError:
        return None
    if header.version not in SUPPORTED_VERSIONS[header.api_key]:
        return None
    head = response_header(header.api_key, header.version, header.correlation_id)
    encode = response_encoder(header.api_key, header.version)
    return [head, encode({"error_code": IllegalSaslStateError.kafka_code})]
