"""The limit on live streams, while the broker flushes."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Message
from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.runtime import InlineRuntime
from strandlog.config.tables.broker import broker_settings
from strandlog.model import Acks, PartitionRecords
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import ANONYMOUS_CLIENT, CLIENT
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.live import Live
from strandlog.server.http.state import HttpState
from strandlog.testing import FakeClock, SimulatedFiles


def _request() -> Request:
    query = b"topic=t&rates=false&lag=false"
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": query}
    return Request({**scope, "client": ("127.0.0.1", 1), CLIENT: ANONYMOUS_CLIENT})


def test_streams_that_are_opened_during_a_flush_do_not_exceed_the_limit() -> None:
    broker = Broker(
        "data",
        SimulatedFiles(),
        FakeClock(START_MS),
        uuids(),
        broker_settings({"http.max.live.streams": 1}),
        runtime=InlineRuntime(executes_flushes=True),
    )
    broker.create_topic(RequestContext(), "t", 1).result()
    broker.produce(RequestContext(), [PartitionRecords("t", 0, batch(b"v"))], Acks.LEADER)

    async def run() -> None:
        runtime = ServerRuntime(broker.settings, broker.clock, lambda: None, lambda _, __: None)
        state = HttpState(broker, runtime, HttpOptions("127.0.0.1", 0))
        live = Live(state)

        async def serve() -> None:
            request = _request()
            response = await live.live(request)
            await response(request.scope, _never, _discard)

        streams = [asyncio.create_task(serve()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in streams), "both wait for the flush"
        for job in broker.take_flushes():
            job.plan.execute()
            broker.flush_done(job, None)
        while not any(each.done() for each in streams) and state.live_clients < 2:
            await asyncio.sleep(0)
        assert state.live_clients == 1
        state.stopping.set()
        for outcome in await asyncio.gather(*streams, return_exceptions=True):
            assert outcome is None or "http.max.live.streams" in str(outcome)

    asyncio.run(run())


async def _never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def _discard(message: Message) -> None:
    del message
