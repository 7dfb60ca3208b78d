"""Runs the steps of many consumers in few worker threads.

A step is one `step` call of a synchronous consumer. Steps that become due while a round runs are
collected for the next one, so a thousand consumers that wake together need sixteen rounds instead
of a thousand thread switches. A round runs at most MAX_ROUND_STEPS, so that its results arrive
soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from strandlog.aio.workers import Workers
from strandlog.client.stepped import Step

MAX_ROUND_STEPS = 64

Done = Callable[[Step | Exception], None]


class DueStep(NamedTuple):
    """A step to run in a worker thread, and the function that receives its outcome in the loop."""

    work: Callable[[], Step]
    done: Done


class Rounds:
    """The steps that wait for a worker thread."""

    def __init__(self, workers: Workers, parallel: int) -> None:
        """`parallel` is the number of rounds that may run at the same time."""
        self._workers = workers
        self._parallel = parallel
        self._running = 0
        self._due: deque[DueStep] = deque()

    def add(self, work: Callable[[], Step], done: Done) -> None:
        """Run a step in one of the next rounds."""
        self._due.append(DueStep(work, done))
        if len(self._due) == 1:
            self._workers.loop.call_soon(self._start)  # runs after tasks that are ready now

    def _start(self) -> None:
        while self._due and self._running < self._parallel:
            count = min(len(self._due), MAX_ROUND_STEPS)
            steps = [self._due.popleft() for _ in range(count)]
            self._running += 1
            self._workers.submit(partial(_run, steps), partial(self._finished, steps))

    def _finished(self, steps: list[DueStep], future: Future[list[Step | Exception]]) -> None:
        self._running -= 1
        self._start()
        for step, outcome in zip(steps, future.result(), strict=True):
            step.done(outcome)


def run_step(work: Callable[[], Step]) -> Step | Exception:
    """Run a step in a worker thread; return its result, or the error for the task to raise."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - see above
        return error


def _run(steps: list[DueStep]) -> list[Step | Exception]:
    return [run_step(step.work) for step in steps]
