"""The work that the rates of many partitions take in the event loop."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

from tests.support.log_builders import START_MS, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.server.http.metrics import rates
from strandlog.server.http.metrics.snapshot import PARTITIONS_AT_ONCE
from strandlog.testing import FakeClock, SimulatedFiles

PARTITIONS = 3 * PARTITIONS_AT_ONCE


def test_the_rates_of_many_partitions_do_not_block_the_event_loop() -> None:
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids())
    broker.create_topic(RequestContext(), "t", PARTITIONS).result()
    turns = [0]  # lines of the module that ran in each turn of the event loop

    def count(frame: FrameType, event: str, _: Any) -> Any:
        turns[-1] += event == "line"
        return count if frame.f_code.co_filename == rates.__file__ else None

    async def watch() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    async def run() -> dict[str, rates.TopicRate]:
        measured = rates.Rates(broker)
        await measured._update()
        watching = asyncio.create_task(watch())
        before = sys.gettrace()
        sys.settrace(count)
        try:
            await measured._update()
        finally:
            sys.settrace(before)
            watching.cancel()
        return measured._topics

    assert asyncio.run(run()) == {"t": rates.TopicRate(0, 0)}
    assert max(turns) < sum(turns) / 2
