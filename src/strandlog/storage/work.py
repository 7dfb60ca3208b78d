"""Generators that yield blocking calls as steps, so that another thread can execute them.

A `Work` runs in the thread that owns the log. Between yields it runs exclusively and may change
state. Each yield produces one `Step`: a function that may block and may run in any thread. While a
step runs, other code may change state, so the step must not use such state, and a condition that
was checked before a yield must be checked again after it. When the step finishes, the generator
continues; an error in the step is raised at the yield.

The embedded library executes steps in place (`run_inline`). The server executes them in threads;
steps that write files run one after the other, so that no two write the same file at the same time.
Compaction has its own thread. Steps that share no file can be yielded as `Parallel`, because a file
system makes many small files durable nearly as fast as one.

An operation that works in steps is a single function that returns `Work`. Synchronous callers write
`run_inline(function(...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Step = Callable[[], object]
Work = Generator[Step, None, T]


class Parallel:
    """Steps that may run concurrently. Calling the object runs them one after the other."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def __call__(self) -> None:
        for step in self.steps:
            step()


def run_inline(work: Work[T]) -> T:
    """Execute all steps in the current thread and return the result."""
    try:
        step = next(work)
        while True:
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - the generator handles it
                step = work.throw(error)
            else:
                step = next(work)
    except StopIteration as end:
        result: T = end.value
        return result


def yield_control() -> None:
    """Do nothing. As a step, this lets the thread that owns the log handle other requests."""
