"""The delay of the event loop: measured by a timer, logged if it is long."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator

import pytest
from tests.support.virtual_time import VirtualTimeLoop, virtual_time

from strandlog.broker.metrics import Metrics
from strandlog.server.monitoring import loop_monitor
from strandlog.server.monitoring.loop_monitor import INTERVAL_SECONDS, LONG_SECONDS, LoopMonitor

Monitored = Callable[[Callable[[], Coroutine[None, None, None]]], Metrics]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualTimeLoop]:
    with virtual_time() as opened:
        monkeypatch.setattr(loop_monitor, "stopwatch", opened.time)
        yield opened


@pytest.fixture
def monitored(loop: VirtualTimeLoop) -> Monitored:
    """Runs a coroutine in a loop that is monitored, and returns the metrics."""

    async def run(act: Callable[[], Coroutine[None, None, None]]) -> Metrics:
        metrics = Metrics()
        monitor = LoopMonitor(metrics)
        monitor.start()
        await act()
        monitor.stop()
        return metrics

    return lambda act: loop.run_until_complete(run(act))


def test_an_idle_loop_is_not_late(loop: VirtualTimeLoop, monitored: Monitored) -> None:
    async def act() -> None:
        await loop.elapse(10.5 * INTERVAL_SECONDS)

    delays = monitored(act).event_loop_delay_seconds
    assert delays.count == 10
    assert delays.max_seconds == pytest.approx(0)


def test_the_delay_is_the_time_that_the_timer_fires_too_late(
    loop: VirtualTimeLoop, monitored: Monitored, caplog: pytest.LogCaptureFixture
) -> None:
    async def act() -> None:
        loop.block(INTERVAL_SECONDS + 0.04)
        await loop.elapse(0)

    delays = monitored(act).event_loop_delay_seconds
    assert delays.count == 1
    assert delays.max_seconds == pytest.approx(0.04)
    assert caplog.messages == []


def test_long_delays_are_logged_at_most_once_per_second(
    loop: VirtualTimeLoop, monitored: Monitored, caplog: pytest.LogCaptureFixture
) -> None:
    async def act() -> None:
        for _ in range(3):
            loop.block(INTERVAL_SECONDS + LONG_SECONDS + 0.01)
            await loop.elapse(0)
        assert len(caplog.messages) == 1
        loop.block(1)
        await loop.elapse(0)

    assert monitored(act).event_loop_delay_seconds.count == 4
    assert caplog.messages == [
        "the event loop was blocked for 260 ms",
        "the event loop was blocked for 950 ms",
    ]
