"""The console's login: signing in and out, and the client's identity and permissions.

    POST /session      checks user and password, begins a session and sets its cookie
    GET /session       returns the principal and its permissions
    DELETE /session    ends the session of the cookie

The permissions are for display only: the console hides what the user may not do, and the broker
checks every request.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from strandlog.broker.access.permission import (
    CLUSTER,
    CREATE,
    Operation,
    ResourceType,
)
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.config.authentication import AuthenticationMode
from strandlog.server.access.logins import Method
from strandlog.server.http.access.authentication import Client, cookie_name_of
from strandlog.server.http.access.sessions import clear_cookie, set_cookie
from strandlog.server.http.problems import HttpError
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState

# Bounds the text that is hashed; the broker's own limits are lower.
Text = Annotated[str, Meta(max_length=4096)]


class Login(Struct, forbid_unknown_fields=True):
    """A user and its password."""

    user: Text
    password: Text

    def __repr__(self) -> str:
        return f"Login({self.user!r}, [hidden])"


class SessionStatus(Struct):
    """Who the client is, how the request proves it, and what the client may do.

    `authentication` is "required" if a request without credentials gets a 401. `expires_ms` is when
    the session or token ends at the latest, or null. `cluster_operations` are the permitted
    operations on the cluster; the descriptions of topics and groups list those on topics and
    groups. `has_users` is false if no login with a password can succeed."""

    principal: str
    user: str | None
    method: Method
    authentication: AuthenticationMode
    expires_ms: int | None
    cluster_operations: list[str]
    can_create_topics: bool
    has_users: bool


async def describe_session(state: HttpState, request: ApiRequest[Nothing, None]) -> SessionStatus:
    return _status(state, request.context, request.client)


async def log_in(state: HttpState, request: ApiRequest[Nothing, Login]) -> SessionStatus:
    if state.authentication.mode == "none":
        raise HttpError(
            409, "Authentication is off", "http.authentication is none: no login needed"
        )
    login, scope = request.body, request.scope
    session, identifier = await state.authentication.log_in(scope, login.user, login.password)
    request.answer_headers.append(("set-cookie", set_cookie(cookie_name_of(scope), identifier)))
    context = request.context
    context.set_principal(session.principal)
    return _status(state, context, Client(session.principal, "session", session=session))


async def log_out(state: HttpState, request: ApiRequest[Nothing, None]) -> None:
    state.authentication.log_out(request.scope)
    cleared = clear_cookie(cookie_name_of(request.scope))
    request.answer_headers.append(("set-cookie", cleared))


def _status(state: HttpState, context: RequestContext, client: Client) -> SessionStatus:
    broker, authentication = state.broker, state.authentication
    expires_ms = client.expires_ms
    if client.session is not None:
        left_ms = authentication.sessions.expires_in_ms(client.session)
        expires_ms = broker.clock.now_ms() + left_ms
    cluster = operation_names(broker, context, CLUSTER)
    return SessionStatus(
        str(client.principal),
        None if client.method == "none" else client.principal.name,
        client.method,
        authentication.mode,
        expires_ms,
        cluster,
        CREATE.name in cluster or broker.has_access_to_any_topic(context, CREATE),
        broker.has_users,
    )


def operation_names(
    broker: Broker, context: RequestContext, resource: ResourceType, name: str = ""
) -> list[str]:
    """Return the names of the operations that a client may perform on a resource."""
    mask = broker.authorized_operations(context, resource, name)
    return [each.name for each in Operation if mask >> each & 1]
