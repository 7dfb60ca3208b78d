"""The Kafka door: which handler answers which request, and what every handler needs.

Handlers are plain functions in `handlers/`: they parse, ask the broker, and reply, now or when a
Deferred is done. An error of the tree that a handler lets through is a mistake of the request as a
whole (`DataError`): the connection is closed, as Kafka does. Anything else is a mistake of ours:
logged, and the connection is closed, the broker lives on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from strandlog.broker.deferred import Deferred
from strandlog.clock import stopwatch
from strandlog.config.setting import Value
from strandlog.config.tables.server import Address
from strandlog.errors import DataError, StrandlogError
from strandlog.protocol.kafka.api import API_VERSIONS
from strandlog.protocol.kafka.encoder import response_encoder
from strandlog.protocol.kafka.headers import read_request_header
from strandlog.server.core import ServerCore
from strandlog.server.kafka.api import KAFKA_APIS, SUPPORTED_VERSIONS
from strandlog.server.kafka.connection import Connection, PendingReply
from strandlog.server.kafka.request import Request
from strandlog.server.listeners import ListenerConfig
from strandlog.server.memory import DecodingGate
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work

logger = logging.getLogger(__name__)

UNSUPPORTED_VERSION = 35
NODE_ID = 0
BACKLOG = 1024
SLOW_HANDLER_SECONDS = 0.05
DECODED_TOGETHER_BYTES = 2 * 1024 * 1024  # of large requests that are worked on at a time

T = TypeVar("T")


class KafkaDoor:
    """One broker, as Kafka clients see it."""

    def __init__(
        self,
        core: ServerCore,
        config: ListenerConfig,
        *,
        max_inflight: int = 64,
    ) -> None:
        import strandlog.server.kafka.handlers  # noqa: F401, PLC0415 - they know the door

        self.core = core
        self.broker = core.broker
        self.metrics = core.metrics
        self.clock = core.clock
        settings = core.broker.settings
        self.max_frame_bytes = settings.socket_request_max_bytes
        self.max_other_frame_bytes = settings.control_request_max_bytes
        self.max_inflight = max_inflight
        self._max_elements = settings.request_max_elements
        self._max_connections = settings.max_connections
        self.requests = core.request_bytes
        self.replies = core.reply_bytes
        self.decoding = DecodingGate(DECODED_TOGETHER_BYTES)
        self.turns = core.turns
        self._config = config
        self._server: asyncio.Server | None = None
        self.listener_settings: Mapping[str, Value] = {}  # of all listeners, once they are open
        self._connections: set[Connection] = set()
        self._quiet_until = 0.0

    def advertised(self, connection: Connection) -> tuple[str, int]:
        """The address in responses: the configured one, or the one that the client reached."""
        return self._config.advertised or connection.local_address

    # -- listening -------------------------------------------------------------------------------

    async def start(self) -> Address:
        host, port = self._config.address
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Connection(self), host, port, backlog=BACKLOG
            )
        except OSError as error:
            error.add_note(
                "this machine has no such address: choose another --host"
                if error.errno == errno.EADDRNOTAVAIL
                else "stop what listens there, or choose another --host or --port"
            )
            raise
        return Address(*self._server.sockets[0].getsockname()[:2])

    def serve(self) -> None:
        """Connections are served since `start`."""

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting and reading. Requests in progress are answered; `close_all` ends those
        that the server does not wait for any longer."""
        del grace_seconds
        self.stop_accepting()
        self.drain()

    # -- connections -----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self._max_connections:
            self.metrics.connections_refused += 1
            if self._may_complain():
                logger.warning(
                    "%s turned away: %d clients are connected; raise max.connections",
                    connection.peer_host,
                    len(self._connections),
                )
            return False
        self._connections.add(connection)
        self.metrics.connections_accepted += 1
        self.metrics.connections_open = len(self._connections)
        return True

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self.metrics.connections_open = len(self._connections)

    def connections(self) -> list[Connection]:
        return list(self._connections)

    def close_idle(self, max_idle_ms: int) -> None:
        """Hang up on clients that were silent for so long, with nothing under way."""
        since_ms = self.clock.monotonic_ms() - max_idle_ms
        for connection in [each for each in self._connections if each.is_idle(since_ms)]:
            self.metrics.connections_idle_closed += 1
            connection.close()

    def drain(self) -> None:
        """Take no more requests; those that are under way are answered."""
        for connection in list(self._connections):
            connection.drain()

    def close_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    # -- requests --------------------------------------------------------------------------------

    def handle(self, frame: memoryview, slot: PendingReply, connection: Connection) -> None:
        """Work on one request; fills the slot now or later."""
        name = "?"
        try:
            header = read_request_header(frame, SUPPORTED_VERSIONS)
            api = KAFKA_APIS.get(header.api_key)
            request = Request(header, frame, slot, connection, self._max_elements)
            if api is None or header.version not in api.versions:
                self._refuse_version(request)
                return
            name = slot.api = api.name
            steps = api.handler(self, request)
            if steps is not None:
                self.in_slices(request, steps)
        except DataError as error:
            logger.warning("%s: %s; hanging up", connection.peer_host, error)
            slot.fail()
        except Exception:
            logger.exception("a request of %s went wrong; hanging up", connection.peer_host)
            slot.fail()
        took = stopwatch() - slot.began
        self.metrics.handler_seconds.observe(took)
        if took > SLOW_HANDLER_SECONDS:
            self._note_slow(name, took)

    def worked(self) -> None:
        """Requests were begun: there may be something to sync or to wait for."""
        self.core.on_work()

    def _note_slow(self, name: str, took: float) -> None:
        self.metrics.slow_handlers += 1
        if self._may_complain():
            logger.warning("%s kept the event loop busy for %d ms", name, took * 1000)

    def _may_complain(self) -> bool:
        """At most once per second: a log that is flooded is read by nobody."""
        now = stopwatch()
        if now < self._quiet_until:
            return False
        self._quiet_until = now + 1
        return True

    def in_slices(self, request: Request, steps: Work[None]) -> None:
        """Work on a request, with pauses for others when it takes long.

        The connection begins no other request meanwhile: clients rely on the order.
        """
        request.connection.hold_line()
        self.turns.slices(self._guarded(request, steps))

    def _guarded(self, request: Request, steps: Work[None]) -> Work[None]:
        connection = request.connection
        try:
            for pause in steps:
                yield pause
                if not connection.is_open:
                    return  # no one is left to answer
        except DataError as error:
            logger.warning("%s: %s; hanging up", connection.peer_host, error)
            request.slot.fail()
        except Exception:
            logger.exception("a request of %s went wrong; hanging up", connection.peer_host)
            request.slot.fail()
        connection.release_line()
        self.core.on_work()

    def in_steps(self, request: Request, steps: Work[T], done: Callable[[T], None]) -> None:
        """Do work that waits for the disk, after all that was asked for before it; then `done`."""
        self.core.in_steps(request.slot.api, self._finishing(request, steps, done))

    def in_decoder(self, request: Request, steps: Work[T], done: Callable[[T], None]) -> None:
        """Do work whose slow parts decode large batches; then `done`."""
        self.core.in_decoder(request.slot.api, self._finishing(request, steps, done))

    def _finishing(self, request: Request, steps: Work[T], done: Callable[[T], None]) -> Work[None]:
        try:
            done((yield from steps))
        except Exception:
            host = request.connection.peer_host
            logger.exception("a request of %s went wrong; hanging up", host)
            request.slot.fail()
        self.core.on_work()

    def when_visible(
        self, request: Request, logs: Iterable[PartitionLog], answer: Callable[[], None]
    ) -> None:
        """Answer a request when readers see all that was written before it came."""

        def guarded() -> None:
            try:
                answer()
            except Exception:
                host = request.connection.peer_host
                logger.exception("a request of %s went wrong; hanging up", host)
                request.slot.fail()

        self.core.when_visible(logs, guarded)

    def _refuse_version(self, request: Request) -> None:
        """Only ApiVersions may be asked in a version that we do not know: it says what we do."""
        header = request.header
        if header.api_key != API_VERSIONS.key:
            raise DataError(f"unsupported API key {header.api_key}, version {header.version}")
        body = {
            "error_code": UNSUPPORTED_VERSION,
            "api_keys": [KAFKA_APIS[API_VERSIONS.key].advertised()],
        }
        correlation = header.correlation_id.to_bytes(4, signed=True)
        request.slot.fill([correlation, response_encoder(API_VERSIONS.key, 0)(body)])

    def answer_when_done(
        self,
        pending: Deferred[Any],
        reply: Callable[[Any], None],
        refuse: Callable[[StrandlogError], None],
    ) -> None:
        """Reply with the result of a Deferred, or with its error."""

        def done(finished: Deferred[Any]) -> None:
            try:
                result = finished.result()
            except StrandlogError as error:
                refuse(error)
                return
            reply(result)

        pending.on_done(done)
