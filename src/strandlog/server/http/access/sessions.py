"""Sessions, which a login over HTTP creates and a cookie identifies.

    begin     a random id of 256 bits, always a new one; the browser gets it as a cookie
    find      the session of a cookie; marks it as used
    end       logout

A session ends at a logout, after `http.session.idle.timeout.ms` without a request or an open
stream, after `http.session.max.lifetime.ms` in any case, and when the credentials of its user
change. All sessions end when the server stops.

The server keeps the SHA-256 of an id, not the id, so its table of sessions contains no usable
cookie. A user has at most `http.user.max.sessions` sessions; a further login ends the oldest one,
so that one user cannot use up `http.max.sessions`, the limit for all users.

With TLS, the name of the cookie starts with `__Host-`: browsers then accept the cookie only from
this host, over TLS, for all paths. Browsers send the cookies of a host to all of its ports, so the
name contains the port; two brokers on one machine do not overwrite each other's cookies.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from hashlib import sha256

from strandlog.broker.context import Principal
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings
from strandlog.server.http.problems import HttpError

ID_BYTES = 32
COOKIE = "strandlog-session"
SECURE_PREFIX = "__Host-"


class Session:
    """A login, and when it was last used."""

    __slots__ = ("began_ms", "is_ended", "principal", "stamp", "used_ms")

    def __init__(self, principal: Principal, stamp: bytes, now_ms: int) -> None:
        self.principal = principal
        self.stamp = stamp  # identifies the user's credentials at the login
        self.began_ms = self.used_ms = now_ms  # monotonic
        self.is_ended = False


class Sessions:
    """The sessions of one server. `stamp_of` identifies a user's current credentials."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        stamp_of: Callable[[str], bytes],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._stamp_of = stamp_of
        self._random = random
        self._by_hash: dict[bytes, Session] = {}  # ordered by the time of the login

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, principal: Principal, stamp: bytes) -> str:
        """Create a session and return its id; raise a 503 if there are too many sessions. `stamp`
        identifies the checked credentials."""
        self._remove_ended()
        own = [key for key, each in self._by_hash.items() if each.principal == principal]
        surplus = len(own) + 1 - self._settings.http_user_max_sessions
        for key in own[: max(0, surplus)]:
            self._remove(key)
        limit = self._settings.http_max_sessions
        if len(self._by_hash) >= limit:
            raise HttpError(
                503,
                "Too many sessions",
                f"{limit} sessions are open; sign out elsewhere or raise http.max.sessions",
            )
        identifier = base64.urlsafe_b64encode(self._random(ID_BYTES)).rstrip(b"=").decode()
        now_ms = self._clock.monotonic_ms()
        self._by_hash[_hashed(identifier)] = Session(principal, stamp, now_ms)
        return identifier

    def find(self, identifier: str) -> Session | None:
        """Return the session with an id, marked as used, or None if there is no such session."""
        session = self._by_hash.get(_hashed(identifier))
        return session if session is not None and self.use(session) else None

    def use(self, session: Session) -> bool:
        """Mark a session as used; return False if it has ended."""
        if not self._is_alive(session):
            return False
        session.used_ms = self._clock.monotonic_ms()
        return True

    def end(self, identifier: str) -> None:
        """End the session with an id, if it exists."""
        key = _hashed(identifier)
        if key in self._by_hash:
            self._remove(key)

    def expires_in_ms(self, session: Session) -> int:
        """Return the time until a session ends even if it is in use."""
        end_ms = session.began_ms + self._settings.http_session_max_lifetime_ms
        return max(0, end_ms - self._clock.monotonic_ms())

    def _is_alive(self, session: Session) -> bool:
        now_ms, settings = self._clock.monotonic_ms(), self._settings
        return (
            not session.is_ended
            and now_ms - session.used_ms < settings.http_session_idle_timeout_ms
            and now_ms - session.began_ms < settings.http_session_max_lifetime_ms
            and session.stamp == self._stamp_of(session.principal.name)
        )

    def _remove_ended(self) -> None:
        for key in [key for key, each in self._by_hash.items() if not self._is_alive(each)]:
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        self._by_hash.pop(key).is_ended = True


def _hashed(identifier: str) -> bytes:
    return sha256(identifier.encode("utf-8", "surrogatepass")).digest()


def cookie_name(port: int, *, uses_tls: bool) -> str:
    """Return the name of the session cookie for a server on this port."""
    return f"{SECURE_PREFIX if uses_tls else ''}{COOKIE}-{port}"


def cookie_values(header: str, name: str) -> list[str]:
    """Return the values of a cookie in a Cookie header."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    return [value for found, _, value in pairs if found == name]


def set_cookie(name: str, identifier: str) -> str:
    """Return the Set-Cookie header of a new session; browsers keep the cookie until they close."""
    return f"{name}={identifier}{_attributes(name)}"


def clear_cookie(name: str) -> str:
    """Return the Set-Cookie header that makes a browser forget a session."""
    return f"{name}={_attributes(name)}; Max-Age=0"


def _attributes(name: str) -> str:
    shared = "; Path=/; HttpOnly; SameSite=Strict"
    return f"{shared}; Secure" if name.startswith(SECURE_PREFIX) else shared
