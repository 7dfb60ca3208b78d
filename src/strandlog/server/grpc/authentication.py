"""Authenticates gRPC calls, before their messages are received.

A call is authenticated by the first of these that it contains:

    authorization metadata    Basic or Bearer, as in HTTP (`server/access/logins.py`)
    certificate               the client certificate of the TLS connection, by
                              ssl.principal.mapping.rules
    neither                   User:ANONYMOUS; where authentication is required, UNAUTHENTICATED

Calls with wrong credentials get UNAUTHENTICATED even where no credentials are required. The health
service needs no credentials; reflection is a service like any other. With
grpc.authentication=none, credentials are ignored.

A client's token or password can become invalid while a stream is open. One task checks the tokens
and passwords of open streams every `CHECK_SECONDS`, and ends streams whose login is no longer valid
with UNAUTHENTICATED. The broker checks a stream's permissions at each fetch.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple
from urllib.parse import unquote

from strandlog.broker.broker import Broker
from strandlog.broker.context import Principal, RequestContext
from strandlog.config.authentication import AuthenticationMode, authentication_mode
from strandlog.config.limits.grpc import GRPC_REMEMBERED_CERTIFICATES
from strandlog.errors import AuthenticationError
from strandlog.server.access.logins import INVALID_HEADER, Login, Logins

CHECK_SECONDS = 0.5
AUTHORIZATION = "authorization"
CERTIFICATE = "x509_pem_cert"  # key in a call's auth context; absent if TLS has verified none
REQUIRED = "send the metadata `authorization`: Basic with user and password, or Bearer with a token"
ENDED = "the login has ended: the token has expired, or the password has changed"

PrincipalOf = Callable[[bytes | None], Principal | None]


class Caller(NamedTuple):
    """The origin of a call, and how its client has proved who it is."""

    context: RequestContext
    login: Login


class GrpcAuthentication:
    """The logins of the calls and streams of one gRPC listener."""

    def __init__(
        self, broker: Broker, host: str, logins: Logins, principal_of: PrincipalOf | None = None
    ) -> None:
        """`host` is the address of the listener; `principal_of` maps a client certificate
        to its principal."""
        setting = broker.settings.grpc_authentication
        self.mode: AuthenticationMode = authentication_mode(setting, host)
        self._logins = logins
        self._principal_of = principal_of
        self._principals: dict[bytes, Principal] = {}  # by certificate: parsing one takes time
        self._streams: dict[asyncio.Task[None], Login] = {}  # open streams whose login may end
        self._ended: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def caller_of(self, call: Any, api: str, *, is_open: bool = False) -> Caller:
        """Return the caller. The caller of an open service is anonymous.

        Raise `AuthenticationError` if authentication fails, or is required and missing, and
        `ThrottlingQuotaExceededError` if there are too many logins.
        """
        context = RequestContext(client_host=_host_of(call), listener="grpc", api=api)
        login = Login() if is_open or self.mode == "none" else await self._login_of(call, context)
        context.set_principal(login.principal)
        return Caller(context, login)

    async def _login_of(self, call: Any, context: RequestContext) -> Login:
        given = [value for name, value in call.invocation_metadata() if name == AUTHORIZATION]
        if given:
            if len(given) > 1 or not isinstance(given[0], str):
                raise AuthenticationError(INVALID_HEADER)
            return await self._logins.by_header(context, given[0])
        if (principal := self._certified(call)) is not None:
            return self._logins.by_certificate(context, principal)
        if self.mode == "required":
            raise AuthenticationError(REQUIRED)
        return Login()

    def _certified(self, call: Any) -> Principal | None:
        """Return the principal of the client certificate that TLS has verified, if there is one."""
        if self._principal_of is None or not (found := call.auth_context().get(CERTIFICATE)):
            return None
        pem: bytes = found[0]
        principal = self._principals.get(pem)
        if principal is None:
            principal = self._principal_of(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
            assert principal is not None, "there is a certificate"
            if len(self._principals) >= GRPC_REMEMBERED_CERTIFICATES:
                del self._principals[next(iter(self._principals))]
            self._principals[pem] = principal
        return principal

    async def run_stream(self, login: Login, work: Coroutine[Any, Any, None]) -> None:
        """Run a stream; raise `AuthenticationError` when the login of its client ends."""
        if login.expires_ms is None and login.stamp is None:
            await work
            return
        task = asyncio.create_task(work)
        self._streams[task] = login
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_streams(), name="gRPC logins")
        try:
            await task
        except asyncio.CancelledError:
            if task in self._ended:
                raise AuthenticationError(ENDED) from None
            raise
        finally:
            del self._streams[task]
            self._ended.discard(task)

    async def _watch_streams(self) -> None:
        while self._streams:
            for task, login in list(self._streams.items()):
                if task not in self._ended and not self._logins.is_valid(login):
                    self._ended.add(task)
                    task.cancel()
            await asyncio.sleep(CHECK_SECONDS)


def _host_of(call: Any) -> str:
    """Return the address of the client; `peer()` looks like ipv4:127.0.0.1:50123."""
    peer: str = call.peer()
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
