"""Authenticates HTTP requests, before they reach an endpoint.

A request is authenticated by the first of these that it contains:

    session        a valid session cookie: the user that signed in to the console
    password       Authorization: Basic, checked against the same users as SASL
    token          Authorization: Bearer, checked like SASL's OAUTHBEARER
    certificate    the client certificate of the TLS connection, by ssl.principal.mapping.rules
    none           User:ANONYMOUS; where authentication is required, a 401 instead

Wrong credentials lead to a 401 even where no credentials are required. A cookie whose session has
ended counts as wrong credentials unless there is an Authorization header; the 401 deletes it.

With http.authentication=none, credentials are ignored. They are also ignored on the paths that
never need them: the console's page and its files, which contain no data, /healthz and /readyz, and
the login itself. For /metrics, metrics.authentication replaces http.authentication, if it is set.

`server/access/logins.py`, which the gRPC listener shares, checks passwords and tokens and caches
verified ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from strandlog.broker.broker import Broker
from strandlog.broker.context import ANONYMOUS, Principal, RequestContext
from strandlog.config.authentication import AuthenticationMode, authentication_mode
from strandlog.errors import (
    AuthenticationError,
    StrandlogError,
    ThrottlingQuotaExceededError,
)
from strandlog.server.access.logins import INVALID_HEADER, Login, Logins, Method
from strandlog.server.http.access.credentials import not_authenticated
from strandlog.server.http.access.origin import check_origin
from strandlog.server.http.access.sessions import (
    Session,
    Sessions,
    clear_cookie,
    cookie_name,
    cookie_values,
)
from strandlog.server.http.problems import (
    HttpError,
    is_registry_path,
    problem_response,
    registry_response,
)

PrincipalOf = Callable[[bytes | None], Principal | None]

STREAM_CHECK_SECONDS = 1.0  # how often a stream checks that its login is still valid
CLIENT = "strandlog.client"  # in the ASGI scope: the `Client` of the request
CERTIFICATE = "strandlog.certificate"  # in the ASGI scope: the client's certificate (DER), or None
HAS_REGISTRY = "strandlog.has_registry"  # in the ASGI scope: whether the broker has a registry
CONSOLE = "/console/"
METRICS = "/metrics"
OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
LOGIN = ("POST", "/api/v1/session")


class Client(NamedTuple):
    """The identity of a request's sender, and how the request proves it."""

    principal: Principal = ANONYMOUS
    method: Method = "none"
    expires_ms: int | None = None  # when the token expires, on the wall clock
    session: Session | None = None
    stamp: bytes | None = None  # identifies the credentials that a password was checked against


ANONYMOUS_CLIENT = Client()
LOGIN_ERRORS = (AuthenticationError, ThrottlingQuotaExceededError)


def _client_of(login: Login) -> Client:
    return Client(login.principal, login.method, login.expires_ms, stamp=login.stamp)


class Authentication:
    """The logins and sessions of one HTTP listener."""

    def __init__(
        self, broker: Broker, host: str, logins: Logins, principal_of: PrincipalOf | None = None
    ) -> None:
        """`host` is the address of the listener; `principal_of` maps a client certificate
        to its principal."""
        settings = broker.settings
        self._broker = broker
        self._logins = logins
        self._principal_of = principal_of
        self.mode: AuthenticationMode = authentication_mode(settings.http_authentication, host)
        self._metrics_mode = settings.metrics_authentication or self.mode
        self.sessions = Sessions(settings, broker.clock, broker.credentials_stamp)

    # -- a request -------------------------------------------------------------------------------

    async def client_of(self, scope: Scope) -> Client:
        """Return the client of a request. Raise a 401 if authentication fails, or is required and
        missing, a 429 if there are too many logins, and a 403 if the page of another site sent the
        request."""
        headers, path = Headers(scope=scope), scope["path"]
        mode = self._metrics_mode if path == METRICS else self.mode
        is_open = path in OPEN_PATHS or path.startswith(CONSOLE)
        if mode == "none" or is_open or (scope["method"], path) == LOGIN:
            check_origin(scope["method"], headers, has_cookie=False)
            return ANONYMOUS_CLIENT
        client = await self._identified(scope, headers)
        check_origin(scope["method"], headers, has_cookie=client.session is not None)
        if client.method == "none" and mode == "required":
            raise not_authenticated(
                "sign in, or send a user and password (Basic) or a token (Bearer)", headers
            )
        return client

    async def _identified(self, scope: Scope, headers: Headers) -> Client:
        name = cookie_name_of(scope)
        given = cookie_values(headers.get("cookie", ""), name)
        if len(given) == 1 and (session := self.sessions.find(given[0])) is not None:
            return Client(session.principal, "session", session=session)
        if "authorization" in headers:
            return await self._by_header(_context(scope), headers)
        if given:
            raise not_authenticated(
                "the session has ended; sign in again", headers, clear_cookie=clear_cookie(name)
            )
        certificate = scope.get(CERTIFICATE)
        if certificate is not None and self._principal_of is not None:
            try:
                principal = self._principal_of(certificate)
            except AuthenticationError as error:
                raise not_authenticated(str(error), headers) from None
            if principal is not None:
                return _client_of(self._logins.by_certificate(_context(scope), principal))
        return ANONYMOUS_CLIENT

    def is_valid(self, client: Client) -> bool:
        """Return whether the session, token or password of a client is still valid, and mark a
        session as used. Streams call this, because they outlive their requests."""
        if client.session is not None:
            return self.sessions.use(client.session)
        login = Login(client.principal, client.method, client.expires_ms, client.stamp)
        return self._logins.is_valid(login)

    async def ended(self, client: Client) -> None:
        """Wait until the session, token or password of a client is no longer valid."""
        while self.is_valid(client):
            await asyncio.sleep(STREAM_CHECK_SECONDS)

    # -- passwords and tokens ----------------------------------------------------------------------

    async def log_in(self, scope: Scope, user: str, password: str) -> tuple[Session, str]:
        """Check a password, end the request's session, and return a new session and its id."""
        headers = Headers(scope=scope)
        try:
            login = await self._logins.by_password(_context(scope), user, password)
        except LOGIN_ERRORS as error:
            _reject(error, headers)
        assert login.stamp is not None, "a password was checked"
        self.log_out(scope)
        identifier = self.sessions.begin(login.principal, login.stamp)
        session = self.sessions.find(identifier)
        if session is None:  # the password was changed during the check
            raise not_authenticated("the password has changed; sign in again", headers)
        return session, identifier

    def log_out(self, scope: Scope) -> None:
        """End the session of a request, if it has one."""
        header = Headers(scope=scope).get("cookie", "")
        for identifier in cookie_values(header, cookie_name_of(scope)):
            self.sessions.end(identifier)

    async def _by_header(self, context: RequestContext, headers: Headers) -> Client:
        """Return the client that an Authorization header identifies."""
        given = headers.getlist("authorization")
        if len(given) != 1:
            raise not_authenticated(INVALID_HEADER, headers)
        try:
            return _client_of(await self._logins.by_header(context, given[0]))
        except LOGIN_ERRORS as error:
            _reject(error, headers)


def _reject(error: StrandlogError, headers: Headers) -> NoReturn:
    """Raise a 401 for a failed login, or a 429 for one that was not checked."""
    if isinstance(error, ThrottlingQuotaExceededError):
        retry = [("retry-after", str(math.ceil(error.retry_after_ms / 1000)))]
        raise HttpError(429, "Too many logins", str(error), retry) from None
    raise not_authenticated(str(error), headers) from None


def cookie_name_of(scope: Scope) -> str:
    """Return the name of the session cookie for a connection."""
    _, port = scope["server"]
    return cookie_name(port or 0, uses_tls=scope["scheme"] == "https")


def _context(scope: Scope) -> RequestContext:
    client = scope.get("client")
    return RequestContext(client_host=client[0] if client else "", listener="http")


class AuthenticatedApp:
    """ASGI middleware that puts the `Client` of each request into its scope."""

    def __init__(self, app: ASGIApp, authentication: Authentication, *, has_registry: bool) -> None:
        self._app = app
        self._authentication = authentication
        self._has_registry = has_registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[HAS_REGISTRY] = self._has_registry
        try:
            scope[CLIENT] = await self._authentication.client_of(scope)
        except Exception as error:  # noqa: BLE001 - `problem_response` logs unexpected ones
            is_registry = self._has_registry and is_registry_path(scope["path"])
            response = registry_response(error) if is_registry else problem_response(error)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)
