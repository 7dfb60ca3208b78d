"""The threads of a server, and the broker's driver: its timer and its flushes."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest
from tests.support.log_builders import uuids

from strandlog.broker.broker import Broker
from strandlog.broker.runtime import InlineRuntime, Work
from strandlog.config.tables.broker import broker_settings
from strandlog.server.background import BrokerDriver, ServerRuntime
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


def test_large_batches_are_decoded_while_a_schema_is_compared() -> None:
    released = Event()

    def compare() -> Work[str]:
        yield lambda: released.wait(30)
        return "compared"

    def decode() -> Work[str]:
        yield released.set
        return "decoded"

    async def scene() -> list[str]:
        settings, clock = broker_settings({}), FakeClock()
        runtime = ServerRuntime(
            settings, clock, lambda: None, lambda *crash: pytest.fail(str(crash))
        )
        comparison = asyncio.create_task(runtime.process_schemas("a schema", compare()))
        await asyncio.sleep(0)
        results = [await runtime.decode("a batch", decode()), await comparison]
        await runtime.finish()
        return results

    assert asyncio.run(scene()) == ["decoded", "compared"]
