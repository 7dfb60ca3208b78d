"""Work in steps: generators that yield the blocking calls another thread may execute.

A `Work` runs in the thread that owns the log. Between its yields it runs alone and may change
state. Each yield hands out one `Step`: a function that may block, touches files only and may run in
any thread. When the step is done the generator continues; an error of the step is raised where it
was yielded. While a step runs, other code may change state, so a condition that was checked before
a yield must be checked again after it.

The embedded library executes steps in place (`run_inline`). The server executes them in a thread,
one after the other, so two steps never write the same file. Work without a file in common may be
handed out as `Parallel`: a file system makes many small files durable nearly as fast as one.

An operation that works in steps is one function: a verb that returns `Work`. Synchronous callers
write `run_inline(verb(...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Step = Callable[[], object]
Work = Generator[Step, None, T]


class Parallel:
    """Work that may run at the same time; as a step itself, it runs them one after the other."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps

    def __call__(self) -> None:
        for step in self.steps:
            step()


def run_inline(work: Work[T]) -> T:
    """Execute work in this thread."""
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
    """A step without work: lets the thread that owns the log handle other requests."""
