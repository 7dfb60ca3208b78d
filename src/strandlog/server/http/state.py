"""What all handlers of the HTTP door share."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from strandlog.server.core import ServerCore
from strandlog.server.http.api.pipeline_reports import Pipelines
from strandlog.server.http.body_limit import BodyLimit
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.metrics.rates import Rates
from strandlog.server.record_io import Writing

LOOKS_AT_ONCE = 2  # through records
TAILS_AT_ONCE = 1  # that decode; each thread competes with the event loop for the interpreter


class HttpState:
    """One broker and its HTTP door."""

    def __init__(self, core: ServerCore, options: HttpOptions) -> None:
        self.core = core
        self.broker = core.broker
        self.options = options
        self.version = version("strandlog")
        self.writing = Writing(core)
        self.rates = Rates(core)
        self.pipelines = Pipelines(core.clock)
        self.began_ms = core.clock.now_ms()
        self.bodies = BodyLimit(core.broker.settings)
        # Each may hold many megabytes and computes; others wait for their turn.
        self.looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self.tails = asyncio.Semaphore(TAILS_AT_ONCE)
        self.live_clients = 0
        self.stopping = asyncio.Event()
