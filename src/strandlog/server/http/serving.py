"""The web server: uvicorn without its own event loop and signals, and the application it serves.

Connections and their idle time are bounded in `connections.py`, bodies in `bodies.py`, heads in
`parsing.py`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn

from strandlog.server.core import ServerCore
from strandlog.server.http.app import Application
from strandlog.server.http.connections import Connections
from strandlog.server.http.listener import HttpOptions


class _Uvicorn(uvicorn.Server):
    """Signals are the business of the server as a whole."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServing:
    """The application at work."""

    def __init__(self, core: ServerCore, options: HttpOptions) -> None:
        """Loads everything; to be made in a thread."""
        self._application = Application(core, options)
        settings = core.broker.settings
        idle_seconds = settings.http_idle_timeout_ms / 1000
        connections = Connections(settings.http_max_connections, idle_seconds, core.metrics)
        self._application.bodies.disconnect = connections.abort
        config = uvicorn.Config(
            self._application.guarded,
            http=connections.protocol(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(idle_seconds)),
        )
        config.load()
        # What uvicorn says when it starts and stops, the broker has said already.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._uvicorn = _Uvicorn(config)

    async def serve(self, listening: socket.socket) -> None:
        """Until `stop`."""
        await self._uvicorn.serve([listening])

    def stop(self, grace_seconds: float) -> None:
        self._application.stop()
        self._uvicorn.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._uvicorn.should_exit = True
