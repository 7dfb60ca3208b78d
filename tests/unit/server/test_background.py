"""The broker's driver: its timer and its flushes."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.log_builders import uuids

from strandlog.broker.broker import Broker
from strandlog.broker.runtime import InlineRuntime
from strandlog.server.background import BrokerDriver
from strandlog.testing import FakeClock, SimulatedFiles


def test_a_timer_of_the_broker_does_not_run_while_its_driver_stops() -> None:
    """The timer was cancelled last, so a transaction could time out after the drain."""
    runtime = InlineRuntime(executes_flushes=True)
    broker = Broker("data", SimulatedFiles(), FakeClock(), uuids(), runtime=runtime)
    ran: list[str] = []
    broker._timers.schedule(broker.clock.monotonic_ms(), lambda: ran.append("a timer"))

    async def scene() -> None:
        driver = BrokerDriver(broker, lambda what, error: pytest.fail(f"{what}: {error!r}"))
        driver.start()
        await driver.stop()
        await asyncio.sleep(0)

    asyncio.run(scene())
    broker.close()
    assert ran == []
