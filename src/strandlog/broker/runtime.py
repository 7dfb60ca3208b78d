"""`Runtime`, the broker's interface to threads and scheduling, its inline implementation, and
`FlushJob`.

The broker starts no threads. Its caller supplies a runtime, to which the broker hands topic
changes, maintenance tasks and work that it continues later:

    server      executes blocking calls in threads and everything between them in the event loop
    inline      executes everything in the calling thread; used by the node, the command line, tests
                and the embedded library, which holds its lock during the call

`executes_flushes` determines who calls fsync. If it is True, the owner of the runtime takes flush
jobs (`Broker.take_flushes`), executes them in any thread, and reports each with
`Broker.flush_done`. If it is False, the broker flushes as soon as a request waits for the disk, so
that the request's deferred result is complete when the call returns, unless another thread is
flushing the partition (`FlushWait`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandlog.config.setting import MAX_INT
from strandlog.storage.partition.flush import FlushPlan
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Parallel, Step, Work, run_inline, yield_control

__all__ = [
    "FlushJob",
    "InlineRuntime",
    "Parallel",
    "Runtime",
    "Step",
    "Work",
    "run_inline",
    "yield_control",
]


class FlushJob(NamedTuple):
    """One partition's flush; any thread may execute the plan."""

    log: PartitionLog
    plan: FlushPlan


class Runtime(Protocol):
    """The interface that the broker requires from its host process."""

    executes_flushes: bool

    def wake(self) -> None:
        """Notify the runtime that a flush, or a timer that precedes all others, was scheduled."""

    def run_in_order(self, name: str, work: Work[None]) -> None:
        """Execute a topic change, after all changes that were submitted earlier."""

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        """Execute a maintenance task, or the rebuild of a transaction index; `is_long` is True for
        compactions."""

    def run_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback`; a server first lets other pending work run."""

    def response_room(self) -> int:
        """Return the current size limit of a response in bytes. A fetch returns its first batch in
        full even if it is larger."""

    def report(self, problem: str) -> None:
        """Log a problem that an operator should see."""


class InlineRuntime:
    """Executes everything in the calling thread."""

    def __init__(self, *, executes_flushes: bool = False) -> None:
        self.executes_flushes = executes_flushes

    def wake(self) -> None:
        """Do nothing: the caller polls `next_deadline_ms` itself."""

    def run_in_order(self, name: str, work: Work[None]) -> None:
        del name
        run_inline(work)

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        del name, is_long
        run_inline(work)

    def run_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def response_room(self) -> int:
        return MAX_INT

    def report(self, problem: str) -> None:
        """Do nothing: only servers log problems; `Broker.problems` lists those in the data."""
