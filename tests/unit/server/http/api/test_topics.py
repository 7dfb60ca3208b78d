"""The work that listing topics takes in the event loop."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

from tests.support.log_builders import START_MS, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import ANONYMOUS_CLIENT
from strandlog.server.http.api import topics
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.metrics.snapshot import PARTITIONS_AT_ONCE
from strandlog.server.http.routing import ApiRequest
from strandlog.server.http.state import HttpState
from strandlog.testing import FakeClock, SimulatedFiles

TOPICS = 3 * PARTITIONS_AT_ONCE


def test_a_list_of_many_topics_does_not_block_the_event_loop() -> None:
    broker, context = (
        Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids()),
        RequestContext(),
    )
    for number in range(TOPICS):
        broker.create_topic(context, f"t{number}", 1).result()
    turns = [0]  # lines of the module that ran in each turn of the event loop

    def count(frame: FrameType, event: str, _: Any) -> Any:
        turns[-1] += event == "line"
        return count if frame.f_code.co_filename == topics.__file__ else None

    async def watch() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async def run() -> topics.TopicList:
        runtime = ServerRuntime(broker.settings, broker.clock, lambda: None, lambda _, __: None)
        state = HttpState(broker, runtime, HttpOptions("127.0.0.1", 0))
        request: ApiRequest[topics.TopicsQuery, None] = ApiRequest(
            context, {}, topics.TopicsQuery(), None, ANONYMOUS_CLIENT, {}
        )
        watching = asyncio.create_task(watch())
        before = sys.gettrace()
        sys.settrace(count)
        try:
            return await topics.list_topics(state, request)
        finally:
            sys.settrace(before)
            watching.cancel()
            state.rates.stop()

    assert len(asyncio.run(run()).topics) == TOPICS
    assert max(turns) < sum(turns) / 2
