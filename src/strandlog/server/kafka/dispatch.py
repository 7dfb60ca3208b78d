"""Finds the declared API for a request, checks its version, calls the handler and measures it.

Handlers are functions in `handlers/`: they decode the request, call the broker and reply, now or
when a Deferred is done. A handler returns `Work` if it may take long; then it runs in slices. A
`DataError` that leaves a handler means that the whole request is invalid: the connection is closed,
as Kafka does. Any other exception is a bug: it is logged and the connection is closed; the broker
continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work
from strandlog.clock import stopwatch
from strandlog.config.setting import Value
from strandlog.config.tables.server import Address
from strandlog.errors import DataError
from strandlog.protocol.kafka.api import API_VERSIONS
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import read_request_header
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.connection import Connection, PendingReply
from strandlog.server.kafka.handlers import KAFKA_APIS, SUPPORTED_VERSIONS
from strandlog.server.kafka.request import Request

logger = logging.getLogger(__name__)

UNSUPPORTED_VERSION = 35
SLOW_HANDLER_SECONDS = 0.05

T = TypeVar("T")


class OncePerSecond:
    """Limits how often a message is logged."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def may_log(self) -> bool:
        now = stopwatch()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + 1
        return True


class Dispatcher:
    """Handles the requests of every Kafka connection."""

    def __init__(
        self, broker: Broker, runtime: ServerRuntime, advertised: Address | None = None
    ) -> None:
        self._broker = broker
        self._runtime = runtime
        self._metrics = broker.metrics
        self.max_elements = broker.settings.request_max_elements
        self.listener_settings: Mapping[str, Value] = {}  # of all listeners, once they are open
        self._advertised = advertised
        self._slow_log = OncePerSecond()

    def advertised(self, connection: Connection) -> tuple[str, int]:
        """The address in responses: the configured one, or the one that the client reached."""
        return self._advertised or connection.local_address

    def handle(self, frame: memoryview, reply: PendingReply, connection: Connection) -> None:
        """Handle one request; fills its reply now or later."""
        name = "?"
        try:
            header = read_request_header(frame, SUPPORTED_VERSIONS)
            api = KAFKA_APIS.get(header.api_key)
            request = Request(header, frame, reply, connection, self)
            if api is None or header.version not in api.versions:
                self._reject_version(request)
                return
            name = reply.api = api.name
            work = api.handler(self._broker, request)
            if work is not None:
                self.run_in_slices(request, work)
        except Exception as error:  # noqa: BLE001 - it closes the connection
            self._failed(request_host=connection.peer_host, reply=reply, error=error)
        took = stopwatch() - reply.began
        self._metrics.handler_seconds.observe(took)
        if took > SLOW_HANDLER_SECONDS:
            self._log_slow(name, took)

    def _failed(self, *, request_host: str, reply: PendingReply, error: Exception) -> None:
        """Close the connection of a request that cannot be answered."""
        if isinstance(error, DataError):
            logger.warning("closing the connection from %s: %s", request_host, error)
        else:
            text = "internal error in a request from %s; closing the connection"
            logger.error(text, request_host, exc_info=error)
        reply.fail()

    def _log_slow(self, name: str, took: float) -> None:
        self._metrics.slow_handlers += 1
        if self._slow_log.may_log():
            logger.warning("%s kept the event loop busy for %d ms", name, took * 1000)

    def _reject_version(self, request: Request) -> None:
        """An unknown version of ApiVersions gets the supported ones; any other request fails."""
        header = request.header
        if header.api_key != API_VERSIONS.key:
            raise DataError(f"unsupported API key {header.api_key}, version {header.version}")
        body = {
            "error_code": UNSUPPORTED_VERSION,
            "api_keys": [KAFKA_APIS[API_VERSIONS.key].advertised()],
        }
        correlation = header.correlation_id.to_bytes(4, signed=True)
        request.pending.fill([correlation, response_encoder(API_VERSIONS.key, 0)(body)])

    # -- work that takes longer ------------------------------------------------------------------

    def run_in_slices(self, request: Request, work: Work[None]) -> None:
        """Run work in the event loop, with pauses for other connections when it takes long.

        The connection begins no other request meanwhile: clients rely on the order.
        """
        request.connection.hold_line()
        self._runtime.turns.slices(self._guarded(request, work))

    def _guarded(self, request: Request, work: Work[None]) -> Work[None]:
        connection = request.connection
        try:
            for pause in work:
                yield pause
                if not connection.is_open:
                    return  # no response can be sent
        except Exception as error:  # noqa: BLE001 - it closes the connection
            self._failed(request_host=connection.peer_host, reply=request.pending, error=error)
        connection.release_line()
        self._runtime.handle_wake()

    def run_in_decoder(self, request: Request, work: Work[T], then: Callable[[T], None]) -> None:
        """Run work whose slow steps decode large batches, then `then`."""
        self._runtime.run_in_decoder(request.pending.api, self._finish(request, work, then))

    def _finish(self, request: Request, work: Work[T], then: Callable[[T], None]) -> Work[None]:
        try:
            result = yield from work
        except Exception as error:  # noqa: BLE001 - it closes the connection
            host = request.connection.peer_host
            self._failed(request_host=host, reply=request.pending, error=error)
            return
        self.guard(request, lambda: then(result))

    def guard(self, request: Request, run: Callable[[], None]) -> None:
        """Call what answers a request; an exception closes its connection."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - it closes the connection
            host = request.connection.peer_host
            self._failed(request_host=host, reply=request.pending, error=error)
        self._runtime.handle_wake()
