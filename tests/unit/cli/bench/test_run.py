"""The clients of a benchmark end, or are stopped."""

from __future__ import annotations

from threading import Event

from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.bench.run import run_clients


def test_a_client_that_hangs_without_progress_is_cancelled() -> None:
    cancelled = Event()
    seen: list[bool] = []

    def hangs(_stop: Event) -> None:
        seen.append(cancelled.wait(5))  # like a Spark job, which only `on_stop` interrupts

    measurement = Measurement()
    outcome = run_clients([hangs], measurement, "hang", None, 0.2, on_stop=cancelled.set)
    assert seen == [True]
    assert not outcome.is_interrupted
    assert dict(measurement.messages) == {"no record for 0 seconds": 1}
