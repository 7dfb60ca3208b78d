"""Work in steps: the owner's thread decides, whoever waits for the disk does the slow parts.

A `Steps` is a generator. Between its yields it runs in the thread that owns the log, with nobody
else at work, and may change what it likes. Each yield hands out one slow part: a function that any
thread may call, and that touches files only. When it is done, the generator goes on; its error is
thrown in where it was yielded. While a part is under way, others may change what they like; so
whatever was true before a yield must be looked at again after it.

The embedded library does the parts where it stands (`do_here`). The server does them in a thread,
one after the other, so that two parts never write the same file. Parts that have no file in common
may be handed out `Together`: a file system makes many small files durable at once nearly as quickly
as one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")

Part = Callable[[], object]
Steps = Generator[Part, None, T]


class Together:
    """Parts that may be done at the same time; called like any other, one after the other."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def __call__(self) -> None:
        for part in self.parts:
            part()


def do_here(steps: Steps[T]) -> T:
    """Do everything in this thread."""
    try:
        part = next(steps)
        while True:
            try:
                part()
            except BaseException as error:  # noqa: BLE001 - it is the generator's to judge
                part = steps.throw(error)
            else:
                part = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def breathe() -> None:
    """A part without work: whoever owns the thread has time for something else."""
