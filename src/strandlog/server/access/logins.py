"""Checks the passwords and tokens of HTTP and gRPC clients, for all listeners of a server.

    logins = Logins(broker, runtime.check_login)
    login = await logins.by_header(context, "Basic …")      or "Bearer …"
    context.set_principal(login.principal)
    logins.is_valid(login)                                  later, for a stream

    Authorization: Basic base64(user:password)      UTF-8; the name ends at the first colon
    Authorization: Bearer TOKEN                     a JSON web token

Passwords are checked against the same users as SASL, tokens like SASL's OAUTHBEARER. Checking a
password takes milliseconds of CPU time, so passwords are checked in a thread, one at a time.
Verified passwords and tokens are cached for at most `REMEMBERED_SECONDS`, and only until any user's
credentials change or the token expires. The cache key is an HMAC of the listener, the client's
address and the header, with a secret of this process. Concurrent requests with the same key share
one check.

Wrong credentials raise an `AuthenticationError` after connection.failed.authentication.delay.ms;
its message does not say which part was wrong. A malformed header raises one immediately.
`attempts.py` limits how many wrong credentials an address may send. A login above this limit, or
while `LOGINS_MAX_WAITING` others are in progress, raises a `ThrottlingQuotaExceededError` without a
check.

The audit log records each check and its outcome, malformed headers, and logins above the limit of
an address, but not logins that the cache answers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import math
import os
from collections.abc import Awaitable
from typing import Literal, NamedTuple, Protocol

from strandlog.broker.access.sasl import Identity
from strandlog.broker.broker import Broker
from strandlog.broker.context import ANONYMOUS, Principal, RequestContext
from strandlog.broker.runtime import Work
from strandlog.config.limits.access import (
    AUTHORIZATION_MAX_CHARACTERS,
    LOGINS_MAX_CONCURRENT,
    LOGINS_MAX_REMEMBERED,
    LOGINS_MAX_WAITING,
)
from strandlog.errors import (
    HIDDEN,
    AuthenticationError,
    ThrottlingQuotaExceededError,
    UnsupportedSaslMechanismError,
)
from strandlog.server.access.attempts import Attempts

Method = Literal["none", "session", "password", "token", "certificate"]

REMEMBERED_SECONDS = 60
RETRY_MS = 1000  # when to retry a login that was rejected because too many are in progress
INVALID_HEADER = "the Authorization header is invalid"


class Password(NamedTuple):
    """A user name and a password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Password({self.user!r}, {HIDDEN})"


class Token(NamedTuple):
    """A bearer token."""

    text: str

    def __repr__(self) -> str:
        return f"Token({HIDDEN})"


class Login(NamedTuple):
    """A client's identity, and how the client proved it."""

    principal: Principal = ANONYMOUS
    method: Method = "none"
    expires_ms: int | None = None  # when the token expires, on the wall clock
    stamp: bytes | None = None  # identifies the credentials that a password was checked against


class _Remembered(NamedTuple):
    login: Login
    until_ms: int  # monotonic


class RunWork(Protocol):
    """Runs work, with its blocking steps in a thread."""

    def __call__(self, work: Work[Identity]) -> Awaitable[Identity]: ...


def parse_authorization(header: str) -> Password | Token | None:
    """Return the credentials in an Authorization header, or None if it is malformed, too long or
    neither Basic nor Bearer."""
    scheme, _, rest = header.partition(" ")
    rest = rest.strip()
    if len(header) > AUTHORIZATION_MAX_CHARACTERS:
        return None
    match scheme.lower():
        case "bearer":
            return Token(rest) if rest else None
        case "basic":
            try:
                user, colon, password = (
                    base64.b64decode(rest, validate=True).decode().partition(":")
                )
            except (binascii.Error, ValueError):
                return None
            return Password(user, password) if colon else None
    return None


class Logins:
    """The logins and failed attempts of the HTTP and gRPC clients of one server."""

    def __init__(self, broker: Broker, run: RunWork) -> None:
        settings = broker.settings
        self._broker = broker
        self._run = run
        self._delay_seconds = settings.connection_failed_authentication_delay_ms / 1000
        self._attempts = Attempts(settings.http_max_failed_logins, broker.clock)
        self._secret = os.urandom(32)
        self._remembered: dict[bytes, _Remembered] = {}
        self._remembered_version = broker.credentials_version
        self._checks: dict[bytes, asyncio.Task[Login]] = {}
        self._turn = asyncio.Semaphore(LOGINS_MAX_CONCURRENT)
        self._waiting = 0

    async def by_header(self, context: RequestContext, header: str) -> Login:
        """Check the credentials in an Authorization header and return the login."""
        credentials = parse_authorization(header)
        if credentials is None:
            self._broker.audit.login(context, "Authorization header", "", INVALID_HEADER)
            raise AuthenticationError(INVALID_HEADER)
        # Credentials are checked, and cached, separately for each address and listener.
        text = f"{context.listener}\n{context.client_host}\n{header}"
        key = hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")
        if (login := self._recalled(key)) is not None:
            return login
        check = self._checks.get(key)
        if check is None:
            check = asyncio.create_task(self._remember(key, context.copy(), credentials))
            self._checks[key] = check
            check.add_done_callback(lambda done: self._check_done(key, done))
        # A client that disconnects must not cancel the check that others wait for.
        return await asyncio.shield(check)

    async def by_password(self, context: RequestContext, user: str, password: str) -> Login:
        """Check a password from a login page. It is not cached: a session replaces later checks."""
        return await self._checked(context, Password(user, password), "login page")

    def by_certificate(self, context: RequestContext, principal: Principal) -> Login:
        """Audit and return the login of a client whose certificate TLS has verified."""
        self._broker.audit.login(context, "certificate", principal.name)
        return Login(principal, "certificate")

    def is_valid(self, login: Login) -> bool:
        """Return whether the token or password of a login is still valid, for a stream that
        outlives its request. Other logins stay valid."""
        if login.stamp is not None:
            return login.stamp == self._broker.credentials_stamp(login.principal.name)
        return login.expires_ms is None or login.expires_ms > self._broker.clock.now_ms()

    # -- remembered logins -------------------------------------------------------------------------

    def _check_done(self, key: bytes, check: asyncio.Task[Login]) -> None:
        del self._checks[key]
        if not check.cancelled():
            check.exception()  # marks the error as retrieved; each waiting request raises it

    def _recalled(self, key: bytes) -> Login | None:
        if self._remembered_version != self._broker.credentials_version:
            self._remembered.clear()
            self._remembered_version = self._broker.credentials_version
        found = self._remembered.get(key)
        if found is None or found.until_ms <= self._broker.clock.monotonic_ms():
            return None
        return found.login if self.is_valid(found.login) else None

    async def _remember(
        self, key: bytes, context: RequestContext, credentials: Password | Token
    ) -> Login:
        version = self._broker.credentials_version
        mechanism = "Basic" if isinstance(credentials, Password) else "Bearer"
        login = await self._checked(context, credentials, mechanism)
        if version == self._broker.credentials_version:
            until_ms = self._broker.clock.monotonic_ms() + REMEMBERED_SECONDS * 1000
            self._remembered.pop(key, None)
            if len(self._remembered) >= LOGINS_MAX_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = _Remembered(login, until_ms)
        return login

    # -- checks ------------------------------------------------------------------------------------

    async def _checked(
        self, context: RequestContext, credentials: Password | Token, mechanism: str
    ) -> Login:
        """Check credentials in a thread. The error for wrong credentials is delayed. If the address
        has sent too many wrong credentials, raise an error without a check."""
        address, audit = context.client_host, self._broker.audit
        user = credentials.user if isinstance(credentials, Password) else ""
        wait_seconds = self._attempts.count(address)
        if wait_seconds:
            audit.login(context, mechanism, user, "too many failed logins; not checked")
            raise ThrottlingQuotaExceededError(
                "too many failed logins from this address (http.max.failed.logins)",
                math.ceil(wait_seconds * 1000),
            )
        try:
            login = await self._verified(context, credentials)
        except (AuthenticationError, UnsupportedSaslMechanismError) as error:
            audit.login(context, mechanism, user, str(error))
            await asyncio.sleep(self._delay_seconds)
            raise AuthenticationError(str(error)) from None
        except Exception:
            self._attempts.succeeded(address)  # the credentials were not checked
            raise
        self._attempts.succeeded(address)
        audit.login(context, mechanism, login.principal.name)
        return login

    async def _verified(self, context: RequestContext, credentials: Password | Token) -> Login:
        broker = self._broker
        if self._waiting >= LOGINS_MAX_WAITING:
            raise ThrottlingQuotaExceededError("too many logins are in progress", RETRY_MS)
        self._waiting += 1
        try:
            async with self._turn:
                if isinstance(credentials, Token):
                    found = await self._run(broker.check_token(context, credentials.text))
                    return Login(found.principal, "token", found.expires_ms)
                stamp = broker.credentials_stamp(credentials.user)
                found = await self._run(broker.check_password(context, *credentials))
                return Login(found.principal, "password", stamp=stamp)
        finally:
            self._waiting -= 1
