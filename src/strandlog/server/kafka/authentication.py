"""The states of SASL authentication on one Kafka connection, without I/O.

    START ──ApiVersions──▶ VERSIONS_SENT          (START if the version is unsupported)
    START, VERSIONS_SENT ──SaslHandshake v1──▶ TOKENS ──SaslAuthenticate, repeated──▶ DONE
    START, VERSIONS_SENT ──SaslHandshake v0──▶ RAW_TOKENS ──tokens without header──▶ DONE
    DONE ──SaslHandshake──▶ TOKENS or RAW_TOKENS, as above  (re-authentication, KIP-368)
    any ──failure──▶ FAILED

`judge` is the allow-list: it decides by the API key alone, before the rest of a request is read.
Unless the state is DONE and the session valid, it passes only these requests, and none after
MAX_REQUESTS_BEFORE_AUTHENTICATION frames:

    START            ApiVersions, SaslHandshake      others: the connection closes, no response
    VERSIONS_SENT    SaslHandshake                   others: the connection closes, no response
    TOKENS           SaslAuthenticate                ApiVersions, SaslHandshake: error 34, then the
                                                     connection closes; others: no response
    RAW_TOKENS       everything is a token           failure: the connection closes, no response
    DONE, expired    SaslHandshake                   others: the connection closes, no response
    FAILED           nothing

In TOKENS, Kafka sends error 34 in the layout of any API. Here, no decoder or encoder of another API
can be reached before authentication.

A session lasts for connections.max.reauth.ms, or until the client's token expires if that is
sooner. If neither applies, it does not expire, and the client cannot re-authenticate. A
re-authentication must use the same mechanism, must result in the same principal, and may begin at
most once per second. Until it succeeds, the requests in progress belong to the earlier session.
"""

from __future__ import annotations

from enum import Enum, auto

from strandlog.broker.access.sasl import Identity, SaslExchange
from strandlog.broker.context import Principal
from strandlog.config.limits.kafka import MAX_REQUESTS_BEFORE_AUTHENTICATION
from strandlog.errors import AuthenticationError
from strandlog.protocol.kafka.api import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

MIN_REAUTHENTICATION_INTERVAL_MS = 1000
HANDSHAKE_WITHOUT_HEADERS = 0  # tokens after a handshake of this version have no header
MIN_LIFETIME_MS = 1  # 0 would mean that the session does not expire


class State(Enum):
    """The progress of a client's authentication."""

    START = auto()
    VERSIONS_SENT = auto()
    TOKENS = auto()
    RAW_TOKENS = auto()
    DONE = auto()
    FAILED = auto()


class Verdict(Enum):
    """How the connection treats a frame."""

    HANDLE = auto()  # the API's handler gets it
    TOKEN = auto()  # the whole frame is a token
    REJECT = auto()  # the response is error 34; then the connection closes
    CLOSE = auto()  # the connection closes without a response


_PASSED = {
    State.START: {API_VERSIONS.key, SASL_HANDSHAKE.key},
    State.VERSIONS_SENT: {SASL_HANDSHAKE.key},
    State.TOKENS: {SASL_AUTHENTICATE.key},
    State.DONE: {SASL_HANDSHAKE.key},
    State.FAILED: set(),
}


class Authentication:
    """The state of one connection. Times are on the monotonic clock, except `wall_ms`."""

    __slots__ = (
        "_began_ms",
        "_frames",
        "_max_reauth_ms",
        "exchange",
        "expires_ms",
        "mechanism",
        "principal",
        "state",
    )

    def __init__(self, max_reauth_ms: int) -> None:
        """`max_reauth_ms` is the maximum lifetime of a session; 0 means no limit."""
        self._max_reauth_ms = max_reauth_ms
        self._began_ms: int | None = None  # when the last re-authentication began
        self._frames = 0  # frames judged during the current authentication
        self.state = State.START
        self.exchange: SaslExchange | None = None  # set in the states TOKENS and RAW_TOKENS
        self.mechanism = ""  # set by the last successful authentication
        self.principal: Principal | None = None  # set by the last successful authentication
        self.expires_ms: int | None = None  # None: the session does not expire

    @property
    def is_reauthentication(self) -> bool:
        """Whether the client has authenticated before."""
        return self.principal is not None

    def judge(self, api_key: int) -> Verdict:
        """Decide about a frame that arrives before or during an authentication, or after the
        session has expired. `api_key` is the number in its first two bytes."""
        self._frames += 1
        if self._frames > MAX_REQUESTS_BEFORE_AUTHENTICATION:
            return Verdict.CLOSE
        if self.state is State.RAW_TOKENS:
            return Verdict.TOKEN
        if api_key in _PASSED[self.state]:
            return Verdict.HANDLE
        is_answered = self.state is State.TOKENS and api_key in _PASSED[State.START]
        return Verdict.REJECT if is_answered else Verdict.CLOSE

    def versions_sent(self) -> None:
        """Record that the client has received the supported versions; it may not ask again."""
        if self.state is State.START:
            self.state = State.VERSIONS_SENT

    def may_begin(self, now_ms: int) -> bool:
        """Return whether a handshake may start an exchange. If not, the response is error 34 or,
        once the session has expired, the connection closes."""
        if self.state is not State.DONE:
            return self.state in (State.START, State.VERSIONS_SENT)
        if self.expires_ms is None:
            return False
        began_ms = self._began_ms
        return began_ms is None or now_ms - began_ms >= MIN_REAUTHENTICATION_INTERVAL_MS

    def begin(self, exchange: SaslExchange, handshake_version: int, now_ms: int) -> bool:
        """Start an exchange. Return False if a re-authentication uses another mechanism: as in
        Kafka, the response to its handshake reports no error, but the connection then closes."""
        if self.is_reauthentication:
            self._began_ms = now_ms
            self._frames = 0
            if exchange.mechanism != self.mechanism:
                self.fail()
                return False
        has_headers = handshake_version > HANDSHAKE_WITHOUT_HEADERS
        self.state = State.TOKENS if has_headers else State.RAW_TOKENS
        self.exchange = exchange
        return True

    def complete(self, identity: Identity, now_ms: int, wall_ms: int) -> int:
        """Start the session of a client that has proved its identity. Return the session's lifetime
        in milliseconds, or 0 if it does not expire. Raise `AuthenticationError` if the principal
        has changed."""
        assert self.exchange is not None
        if self.principal not in (None, identity.principal):
            self.fail()
            raise AuthenticationError(
                "the principal cannot change when a client re-authenticates; open a new connection"
            )
        limits_ms = [self._max_reauth_ms] if self._max_reauth_ms > 0 else []
        if identity.expires_ms is not None:
            limits_ms.append(identity.expires_ms - wall_ms)
        lifetime_ms = max(MIN_LIFETIME_MS, min(limits_ms)) if limits_ms else 0
        self.expires_ms = now_ms + lifetime_ms if lifetime_ms else None
        self.principal = identity.principal
        self.mechanism = self.exchange.mechanism
        self.exchange = None
        self._frames = 0
        self.state = State.DONE
        return lifetime_ms

    def fail(self) -> None:
        """Accept nothing more from this connection."""
        self.exchange = None
        self.state = State.FAILED
