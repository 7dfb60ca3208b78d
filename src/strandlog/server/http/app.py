"""The Starlette application and the uvicorn server that runs it.

    /, /console/…       the console (`console/assets.py`)
    /metrics            Prometheus metrics
    /healthz, /readyz   for supervisors and load balancers
    /api/v1/…           the JSON API (routes: `api/routes.py`), the live stream (`live.py`) and the
                        OpenAPI document (`openapi.py`)
    /subjects, …        the schema registry (routes: `schemas/routes.py`)

A request passes `security.py` (Host and size), then `access/authentication.py` (who sends it), then
the endpoint, whose calls to the broker check the permissions. uvicorn runs in the server's event
loop and leaves signals to the server. `connections.py` limits connections and their idle time,
`body_limit.py` limits bodies, `parsing.py` limits request heads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandlog.broker.broker import Broker
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import HAS_REGISTRY, AuthenticatedApp
from strandlog.server.http.api.routes import PREFIX, ROUTES
from strandlog.server.http.connections import Connections
from strandlog.server.http.console.assets import Console
from strandlog.server.http.health import Health
from strandlog.server.http.live import Live, LiveQuery
from strandlog.server.http.metrics.exposition import Exposition
from strandlog.server.http.openapi import Stream, document
from strandlog.server.http.problems import (
    HttpError,
    is_registry_path,
    problem_response,
    registry_response,
)
from strandlog.server.http.routing import JSON, endpoint
from strandlog.server.http.schemas.answers import schema_endpoint
from strandlog.server.http.schemas.routes import SCHEMA_ROUTES
from strandlog.server.http.security import RequestChecks
from strandlog.server.http.state import HttpState
from strandlog.server.network.acceptor import Slot

if TYPE_CHECKING:
    from strandlog.server.http.listener import HttpOptions

Endpoint = Callable[[Request], Awaitable[Response]]


def with_problems(endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint so that its errors become problem+json responses."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - `problem_response` logs unexpected ones
            return problem_response(error)

    return respond


async def _router_error(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}: {error.detail}"
    failure = HttpError(error.status_code, error.detail.capitalize(), detail)
    is_registry = request.scope[HAS_REGISTRY] and is_registry_path(request.url.path)
    response = registry_response(failure) if is_registry else problem_response(failure)
    response.headers.update(error.headers or {})
    return response


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def respond(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    return respond


class Application:
    """The ASGI application with all routes of one broker."""

    def __init__(self, broker: Broker, runtime: ServerRuntime, options: HttpOptions) -> None:
        self._state = HttpState(broker, runtime, options)
        self.bodies = self._state.bodies
        health, exposition = Health(self._state), Exposition(self._state)
        live, console = Live(self._state), Console()
        streams = [Stream("/live", LiveQuery, "Stream rates, lag and new records of a topic")]
        described = msgspec.json.encode(document(ROUTES, streams, PREFIX, self._state.version))

        async def openapi(request: Request) -> Response:
            del request
            return Response(described, media_type=JSON)

        routes = [
            Route("/", with_problems(console.page)),
            Route("/console/{name:path}", with_problems(console.file)),
            Route("/metrics", with_problems(exposition.metrics)),
            Route("/healthz", with_problems(health.healthz)),
            Route("/readyz", with_problems(health.readyz)),
            Route(f"{PREFIX}/openapi.json", openapi),
            Route(f"{PREFIX}/live", with_problems(live.live), methods=["GET"]),
            *self._api(),
            *self._schemas(broker),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _router_error})
        app.router.redirect_slashes = False
        has_registry = broker.settings.schema_registry_enable
        known = AuthenticatedApp(app, self._state.authentication, has_registry=has_registry)
        self.guarded = RequestChecks(known, options.hosts, broker.settings.http_request_max_bytes)

    def _api(self) -> Iterator[Route]:
        """Yield one route per path, so that the Allow header of a 405 lists all of its methods."""
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in ROUTES:
            found = by_path.setdefault(PREFIX + each.path, {})
            found[each.method] = with_problems(endpoint(each, self._state))
        for path, endpoints in by_path.items():
            yield Route(path, _by_method(endpoints), methods=list(endpoints))

    def _schemas(self, broker: Broker) -> Iterator[Route]:
        """Yield the routes of the schema registry, each also with a trailing slash, because some
        clients add one."""
        if not broker.settings.schema_registry_enable:
            return
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in SCHEMA_ROUTES:
            by_path.setdefault(each.path, {})[each.method] = schema_endpoint(each, self._state)
        for path, endpoints in by_path.items():
            for shown in (path, path + "/"):
                yield Route(shown, _by_method(endpoints), methods=list(endpoints))

    def start(self) -> None:
        """Start recording the history; call this in the event loop."""
        self._state.history.start()

    def stop(self) -> None:
        """Stop the live streams, which do not end on their own, and the background tasks."""
        self._state.stopping.set()
        self._state.rates.stop()
        self._state.history.stop()


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers and listening sockets: the server has its own."""

    on_started: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Runs the application in uvicorn."""

    def __init__(self, broker: Broker, runtime: ServerRuntime, options: HttpOptions) -> None:
        """Build the application. This is slow, so call it in a thread."""
        self._application = Application(broker, runtime, options)
        settings = broker.settings
        idle_seconds = settings.http_idle_timeout_ms / 1000
        self.connections = connections = Connections(
            settings.http_max_connections, idle_seconds, broker.metrics
        )
        self._application.bodies.disconnect = connections.abort
        self._protocol = connections.protocol()
        config = uvicorn.Config(
            self._application.guarded,
            http=self._protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(idle_seconds)),
        )
        config.load()
        # The server logs its start and stop itself.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._uvicorn = _Uvicorn(config)

    async def serve(self, on_started: Callable[[], None]) -> None:
        """Serve until `stop` is called; call `on_started` when clients can connect."""
        self._uvicorn.on_started = on_started
        self._application.start()
        await self._uvicorn.serve([])

    def connection(self, slot: Slot) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        server = self._uvicorn
        connection = self._protocol(
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        connection.slot = slot
        return connection

    def stop(self, grace_seconds: float) -> None:
        self._application.stop()
        self._uvicorn.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._uvicorn.should_exit = True
