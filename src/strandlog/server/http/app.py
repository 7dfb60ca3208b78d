"""Which path leads to what.

/                   the console, a page for people (`console.py`)
/metrics            figures for Prometheus
/healthz  /readyz   for whoever watches over the process
/api/v1/…           the JSON API (`routes.py` is its table)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandlog.server.core import ServerCore
from strandlog.server.http.api.routes import PREFIX, ROUTES
from strandlog.server.http.console.assets import Console
from strandlog.server.http.health import Health
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.live import Live, LiveQuery
from strandlog.server.http.metrics.exposition import Exposition
from strandlog.server.http.openapi import Stream, document
from strandlog.server.http.problems import HttpError, problem_response
from strandlog.server.http.routing import JSON, endpoint
from strandlog.server.http.security import RequestChecks
from strandlog.server.http.state import HttpState

Endpoint = Callable[[Request], Awaitable[Response]]


def told(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with its errors as problems."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - what is none of ours is logged there, as 500
            return problem_response(error)

    return answering


async def _refused(request: Request, error: Exception) -> Response:
    """What the router says: there is no such path, or no such method."""
    assert isinstance(error, HTTPException)
    words = f"{request.method} {request.url.path}: {error.detail}"
    answer = problem_response(HttpError(error.status_code, error.detail.capitalize(), words))
    answer.headers.update(error.headers or {})
    return answer


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def answering(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    return answering


class Application:
    """Everything that is served over HTTP."""

    def __init__(self, core: ServerCore, options: HttpOptions) -> None:
        self._state = HttpState(core, options)
        self.bodies = self._state.bodies
        health, exposition = Health(self._state), Exposition(self._state)
        live, console = Live(self._state), Console()
        streams = [Stream("/live", LiveQuery, "Stream rates, lag and new records of a topic")]
        described = msgspec.json.encode(document(ROUTES, streams, PREFIX, self._state.version))

        async def openapi(request: Request) -> Response:
            del request
            return Response(described, media_type=JSON)

        routes = [
            Route("/", told(console.page)),
            Route("/console/{name:path}", told(console.file)),
            Route("/metrics", told(exposition.metrics)),
            Route("/healthz", told(health.healthz)),
            Route("/readyz", told(health.readyz)),
            Route(f"{PREFIX}/openapi.json", openapi),
            Route(f"{PREFIX}/live", told(live.live), methods=["GET"]),
            *self._api(),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
        app.router.redirect_slashes = False
        self.guarded = RequestChecks(app, options.hosts)

    def _api(self) -> Iterator[Route]:
        """A route for each path: those that share one would hide each other's methods."""
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in ROUTES:
            found = by_path.setdefault(PREFIX + each.path, {})
            found[each.method] = told(endpoint(each, self._state))
        for path, endpoints in by_path.items():
            yield Route(path, _by_method(endpoints), methods=list(endpoints))

    def stop(self) -> None:
        """Whatever never ends by itself ends now."""
        self._state.stopping.set()
        self._state.rates.stop()
