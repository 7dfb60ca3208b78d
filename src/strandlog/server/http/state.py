"""State shared by the HTTP handlers of one server."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from strandlog.broker.broker import Broker
from strandlog.broker.metrics import Metrics
from strandlog.broker.runtime import Work
from strandlog.config.limits.http import HTTP_CONCURRENT_READS
from strandlog.server.access.logins import Logins
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import Authentication
from strandlog.server.http.body_limit import BodyLimit
from strandlog.server.http.metrics.history import History
from strandlog.server.http.metrics.rates import Rates
from strandlog.server.http.pipeline_reports import PipelineReports
from strandlog.server.record_io import RecordProducer
from strandlog.server.value_schemas import ValueSchemas

if TYPE_CHECKING:
    from strandlog.server.http.listener import HttpOptions

T = TypeVar("T")

MAX_TAIL_READS = 1  # one at a time: each thread competes with the event loop for the GIL


class HttpState:
    """The broker and the state that its HTTP handlers share."""

    def __init__(self, broker: Broker, runtime: ServerRuntime, options: HttpOptions) -> None:
        self._runtime = runtime
        self.broker = broker
        self.options = options
        self.version = version("strandlog")
        self.producer = RecordProducer(broker)
        self.rates = Rates(broker)
        self.history = History(broker)
        self.pipelines = PipelineReports(broker.clock)
        self.began_ms = broker.clock.now_ms()
        self.bodies = BodyLimit(broker.settings)
        logins = options.logins or Logins(broker, runtime.check_login)
        self.authentication = Authentication(broker, options.host, logins, options.principal_of)
        # A read can hold many megabytes and keep a CPU busy, so only a few run concurrently.
        self.reads = asyncio.Semaphore(HTTP_CONCURRENT_READS)
        self.tails = asyncio.Semaphore(MAX_TAIL_READS)
        self.value_schemas = ValueSchemas(broker)
        self.live_clients = 0
        self.stopping = asyncio.Event()

    def metrics(self) -> Metrics:
        """Refresh and return the broker's metrics."""
        return self._runtime.refresh_metrics(self.broker)

    async def decode(self, name: str, work: Work[T]) -> T:
        """Execute work, with its blocking steps in the decoder thread, and return its result."""
        return await self._runtime.decode(name, work)

    async def process_schemas(self, name: str, work: Work[T]) -> T:
        """Execute work, with its blocking steps in the schemas thread, and return its result."""
        return await self._runtime.process_schemas(name, work)
