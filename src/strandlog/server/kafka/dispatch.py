"""Finds the declared API for a request, checks its version, and calls and times the handler.

Handlers are functions in `handlers/`: they decode the request, call the broker and reply, now or
when a Deferred is done. A handler that may take a long time returns `Work`, which runs in slices. A
`DataError` raised by a handler means that the entire request is invalid, and the connection is
closed, as in Kafka. Any other exception is a bug: it is logged and the connection is closed, but
the broker keeps running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work
from strandlog.clock import stopwatch
from strandlog.config.setting import Value
from strandlog.errors import DataError
from strandlog.protocol.kafka.api import API_VERSIONS
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import read_request_header
from strandlog.server.background import ServerRuntime
from strandlog.server.kafka.connection import Connection
from strandlog.server.kafka.handlers import KAFKA_APIS, SUPPORTED_VERSIONS
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.server.kafka.request import Request
from strandlog.server.kafka.throttle import UNMETERED_APIS, Meter

logger = logging.getLogger(__name__)

UNSUPPORTED_VERSION = 35
SLOW_HANDLER_SECONDS = 0.05

T = TypeVar("T")


class OncePerSecond:
    """Limits a log message to once per second."""

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

    def __init__(self, broker: Broker, runtime: ServerRuntime) -> None:
        self.broker = broker
        self._runtime = runtime
        self._metrics = broker.metrics
        self.max_elements = broker.settings.request_max_elements
        self.listener_settings: Mapping[str, Value] = {}  # set once all listeners are open
        self._slow_log = OncePerSecond()

    def handle(self, frame: memoryview, reply: PendingReply, connection: Connection) -> None:
        """Handle one request and fill its reply, now or later."""
        name = "?"
        try:
            header = read_request_header(frame, SUPPORTED_VERSIONS)
            api = KAFKA_APIS.get(header.api_key)
            connection.context.client_id = header.client_id or ""
            request = Request(header, frame, reply, connection, self)
            if api is None or header.version not in api.versions:
                self._reject_version(request)
                return
            name = reply.api = connection.context.api = api.name
            work = api.handler(self.broker, request)
            if work is not None:
                self.run_in_slices(request, work)
            elif request.meter is not None:
                request.meter.pause()
        except Exception as error:  # noqa: BLE001 - it closes the connection
            _close_failed(connection, reply, error)
        took = stopwatch() - reply.began
        self._metrics.handler_seconds.observe(took)
        if took > SLOW_HANDLER_SECONDS:
            self._log_slow(name, took)

    def fail(self, request: Request, error: Exception) -> None:
        """Close the connection of a request whose handler raised an exception."""
        _close_failed(request.connection, request.pending, error)

    def throttle_ms(self, request: Request, meter: Meter) -> int:
        """Charge the time of a request to its client, and return the throttle time for the
        response. The connection is muted for that time. Requests before and during a login are not
        charged."""
        header = request.header
        if header.api_key in UNMETERED_APIS or request.connection.is_before_login:
            return 0
        client_id = header.client_id or ""
        meter.add(self.broker.charge_time(request.context, client_id, meter.seconds))
        if meter.throttle_ms:
            self.count_throttled(meter.throttle_ms)
            request.connection.mute(meter.throttle_ms)
        return meter.throttle_ms

    def count_throttled(self, throttle_ms: int) -> None:
        self._metrics.throttled_requests += 1
        self._metrics.throttle_ms += throttle_ms

    def _log_slow(self, name: str, took: float) -> None:
        self._metrics.slow_handlers += 1
        if self._slow_log.may_log():
            logger.warning("%s kept the event loop busy for %d ms", name, took * 1000)

    def _reject_version(self, request: Request) -> None:
        """Answer an unsupported version of ApiVersions with the supported ones. For any other API,
        raise `DataError`, which closes the connection."""
        header = request.header
        if header.api_key != API_VERSIONS.key:
            raise DataError(f"unsupported API key {header.api_key}, version {header.version}")
        body = {
            "error_code": UNSUPPORTED_VERSION,
            "api_keys": [KAFKA_APIS[API_VERSIONS.key].advertised()],
        }
        correlation = header.correlation_id.to_bytes(4, signed=True)
        request.pending.fill([correlation, response_encoder(API_VERSIONS.key, 0)(body)])

    # -- long-running work -----------------------------------------------------------------------

    def run_in_slices(self, request: Request, work: Work[None]) -> None:
        """Run work in the event loop, yielding to other connections if it takes a while.

        The connection starts no other request until the work is done: clients rely on the order.
        """
        request.connection.hold_line()
        self._runtime.turns.slices(self._guarded(request, work))

    def _guarded(self, request: Request, work: Work[None]) -> Work[None]:
        connection = request.connection
        if request.meter is not None:
            work = _metered(work, request.meter)
        try:
            for pause in work:
                yield pause
                if not connection.is_open:
                    return  # no response can be sent
        except Exception as error:  # noqa: BLE001 - it closes the connection
            self.fail(request, error)
        connection.release_line()
        self._runtime.handle_wake()

    def run_in_decoder(self, request: Request, work: Work[T], then: Callable[[T], None]) -> None:
        """Run work, with its blocking steps in the decoder thread; call `then` with the result."""
        self._runtime.run_in_decoder(request.pending.api, self._finish(request, work, then))

    def _finish(self, request: Request, work: Work[T], then: Callable[[T], None]) -> Work[None]:
        try:
            result = yield from work
        except Exception as error:  # noqa: BLE001 - it closes the connection
            self.fail(request, error)
            return
        self.guard(request, lambda: then(result))

    def guard(self, request: Request, run: Callable[[], None]) -> None:
        """Call a function that answers a request; an exception closes the connection."""
        meter = request.meter
        if meter is not None:
            meter.resume()
        try:
            run()
        except Exception as error:  # noqa: BLE001 - it closes the connection
            self.fail(request, error)
        if meter is not None:
            meter.pause()
        self._runtime.handle_wake()


def _close_failed(connection: Connection, reply: PendingReply, error: Exception) -> None:
    """Close the connection of a request that cannot be answered."""
    if isinstance(error, DataError):
        logger.warning("closing the connection from %s: %s", connection.peer_host, error)
    else:
        text = "internal error in a request from %s; closing the connection"
        logger.error(text, connection.peer_host, exc_info=error)
    reply.fail()


def _metered(work: Work[None], meter: Meter) -> Work[None]:
    """Measure the time of each step of a handler's work."""
    while True:
        meter.resume()
        try:
            step = next(work)
        except StopIteration:
            return
        finally:
            meter.pause()
        yield step
