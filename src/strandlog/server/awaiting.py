"""Waits, in coroutines, for what the core answers later.

The core calls back from the event loop's own thread. A coroutine that is cancelled while it waits
(its client hung up) is no longer there to be told: that is checked, and nothing else is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from strandlog.broker.runtime import Work
from strandlog.errors import StorageError
from strandlog.server.core import ServerCore
from strandlog.storage.partition.log import PartitionLog

T = TypeVar("T")


class _Told:
    """Somebody who is told once that something is on disk, or why not."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: StorageError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


async def durable(core: ServerCore, log: PartitionLog, end_offset: int) -> None:
    """Until everything below an offset is on disk."""
    told = _Told()
    core.when_durable(log, end_offset, told)
    core.on_work()
    await told.future


async def visible(core: ServerCore, logs: Iterable[PartitionLog]) -> None:
    """Until readers see all that was written to some partitions before this call, or the disk
    failed or takes too long (`broker/visibility.py`)."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not future.done():
            future.set_result(None)

    if not core.when_visible(logs, then):
        core.on_work()
        await future


async def all_visible(core: ServerCore) -> None:
    """The same for all partitions."""
    await visible(core, core.durability.unflushed())


async def group_durable(core: ServerCore, group: str) -> None:
    """Until what was committed for a group is on disk."""
    told = _Told()
    core.when_group_is_durable(group, told)
    core.on_work()
    await told.future


async def decoded(core: ServerCore, name: str, steps: Work[T]) -> T:
    """The result of work whose slow parts decode large batches."""
    return await _done(core, name, steps, core.in_decoder)


async def done_in_steps(core: ServerCore, name: str, steps: Work[T]) -> T:
    """The result of work that waits for the disk, done in its turn."""
    return await _done(core, name, steps, core.in_steps)


async def _done(
    core: ServerCore, name: str, steps: Work[T], begin: Callable[[str, Work[None]], None]
) -> T:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def work() -> Work[None]:
        try:
            result = yield from steps
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(result)

    begin(name, work())
    result = await future
    core.on_work()
    return result
