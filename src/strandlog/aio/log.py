"""The three asyncio logs, each a wrapper around the synchronous log of the same name.

    strandlog.aio.open      Log            owns a data folder
    strandlog.aio.connect   RemoteLog      a broker
    strandlog.aio.read      ReadOnlyLog    a folder that another process may own

Operations that could block the event loop run in a bounded number of worker threads: file access,
fsync, network requests, and waiting for the log's lock. base.py contains the common base classes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from strandlog.aio.base import AsyncOpenLog, AsyncReadableLog
from strandlog.aio.consumer import Consumer, ConsumerOptions
from strandlog.aio.opening import Opening
from strandlog.aio.rounds import run_step
from strandlog.aio.waiting import (
    BLOCKING_STEP_MS,
    BLOCKING_STEPS,
    READ_ONLY_RECHECK_SECONDS,
    Interest,
    remote_recheck_seconds,
)
from strandlog.aio.workers import Workers
from strandlog.broker.access.quota_entity import Entity, FilterPart, QuotaChange
from strandlog.client.arguments import OffsetReset, OnUnreadable
from strandlog.client.embedded.log import Log as EmbeddedLog
from strandlog.client.lifecycle import Closable
from strandlog.client.readonly.log import ReadOnlyLog as FolderLog
from strandlog.client.remote.log import RemoteLog as BrokerLog
from strandlog.client.stepped import Step

if TYPE_CHECKING:
    from strandlog.storage.cleaning.compaction import CompactionReport

C = TypeVar("C", bound=Closable)

WORKER_THREADS = 4
MAINTENANCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Log(AsyncOpenLog[EmbeddedLog]):
    """An open log, returned by `strandlog.aio.open`. All tasks of its event loop may share it.

    The log runs maintenance every second. In a forked child process it is closed.
    """

    def __init__(self, log: EmbeddedLog, workers: Workers) -> None:
        super().__init__(log, workers)
        self._timer: asyncio.TimerHandle | None = None
        self._schedule_maintenance()

    def _schedule_maintenance(self) -> None:
        self._timer = self.workers.loop.call_later(MAINTENANCE_SECONDS, self._maintain)

    def _maintain(self) -> None:
        if not self.workers.is_closing:
            self.workers.submit(self._log.run_maintenance, self._maintained)

    def _maintained(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None and not self.workers.is_closing:
            logger.error("maintenance failed: %s", error, exc_info=error)
        if not self.workers.is_closing:
            self._schedule_maintenance()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super()._close()

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        on_unreadable: OnUnreadable = "raise",
        consumer_timeout_ms: int | None = None,
    ) -> Opening[Consumer]:
        """Create a consumer, either standalone or as a member of a group.

        The arguments are those of `strandlog.Log.consumer`, except for `consumer_timeout_ms`, whose
        default is different: `async for` waits for the next record indefinitely.
        """
        create = partial(
            self._log.consumer,
            topics,
            group,
            auto_offset_reset,
            auto_commit,
            assignors,
            max_poll_interval_ms,
            on_unreadable,
        )
        options = ConsumerOptions(group, auto_commit, consumer_timeout_ms, max_poll_interval_ms)
        return self._opening_consumer(create, options)

    async def client_quotas(
        self, parts: Sequence[FilterPart] = ()
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Return the entities that match all parts of a filter, with their client quotas."""
        return await self._call(self._log.client_quotas, parts)

    async def alter_client_quotas(self, changes: Sequence[QuotaChange]) -> None:
        """Set and delete client quotas for the clients of a broker started on the folder."""
        await self._call(self._log.alter_client_quotas, changes)

    async def compact(self, name: str) -> CompactionReport:
        """Compact a topic now, whatever its cleanup.policy: keep the last record of each key."""
        return await self._call(self._log.compact, name)

    async def enforce_retention(self, name: str) -> int:
        """Delete segments that exceed the topic's retention, except those that its lake table
        still needs; return the number of offsets removed."""
        return await self._call(self._log.enforce_retention, name)

    async def problems(self) -> list[str]:
        """Return the problems found when the folder was opened, and later maintenance errors."""
        return await self._call(lambda: self._log.problems)

    async def run_maintenance(self) -> None:
        """Run the maintenance tasks that are due. The log also does this every second."""
        await self._call(self._log.run_maintenance)

    async def flush(self) -> None:
        """Wait until all records appended before this call are on disk."""
        await self._call(self._log.flush)


class ReadOnlyLog(AsyncReadableLog[FolderLog]):
    """A read-only log, returned by `strandlog.aio.read`."""

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        on_unreadable: OnUnreadable = "raise",
        consumer_timeout_ms: int | None = None,
    ) -> Opening[Consumer]:
        """Create a consumer, which cannot be a member of a group.

        The arguments are those of `strandlog.ReadOnlyLog.consumer`, except for
        `consumer_timeout_ms`, whose default is different: `async for` waits indefinitely.
        """
        create = partial(self._log.consumer, topics, group, auto_offset_reset, on_unreadable)
        options = ConsumerOptions(None, False, consumer_timeout_ms, 0)
        return self._opening_consumer(create, options)

    async def pause(self, interest: Interest, step: Step, seen: int, left_seconds: float) -> None:
        """Wait briefly, because the owner is another process and cannot wake this one."""
        del step
        await self.waiting.wait(interest, seen, min(left_seconds, READ_ONLY_RECHECK_SECONDS))


class RemoteLog(AsyncOpenLog[BrokerLog]):
    """A remote log, returned by `strandlog.aio.connect`.

    Producers with the same arguments share one librdkafka client. Each consumer has its own client,
    with its own native threads and connections.
    """

    def __init__(self, log: BrokerLog, workers: Workers) -> None:
        super().__init__(log, workers)
        self._blocking = 0

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        consumer_timeout_ms: int | None = None,
    ) -> Opening[Consumer]:
        """Create a consumer, either standalone or as a member of a group.

        The arguments are those of `strandlog.RemoteLog.consumer`, except for `consumer_timeout_ms`,
        whose default is different: `async for` waits for the next record indefinitely.
        """
        create = partial(
            self._log.consumer,
            topics,
            group,
            auto_offset_reset,
            auto_commit,
            assignors,
            max_poll_interval_ms,
        )
        options = ConsumerOptions(group, auto_commit, consumer_timeout_ms, max_poll_interval_ms)
        return self._opening_consumer(create, options)

    @property
    def longest_look_seconds(self) -> float:
        """How long poll(timeout_ms=0) can take, including a rebalance and a round trip."""
        return self._log.timeout_ms / 1000

    def run_step(
        self,
        work: Callable[[int], Step],
        left_seconds: float,
        done: Callable[[Step | Exception], None],
    ) -> None:
        """Run a consumer step. It waits for records in librdkafka if time is left and fewer than
        BLOCKING_STEPS steps already wait there."""
        if self._blocking >= BLOCKING_STEPS or left_seconds <= 0:
            self.rounds.add(partial(work, 0), done)
            return
        self._blocking += 1
        wait_ms = int(min(BLOCKING_STEP_MS, left_seconds * 1000))

        def finished(future: Future[Step | Exception]) -> None:
            self._blocking -= 1
            done(future.result())

        self.workers.submit(partial(run_step, partial(work, wait_ms)), finished)

    async def pause(self, interest: Interest, step: Step, seen: int, left_seconds: float) -> None:
        """Wait until it is worth looking again, unless the next step can wait in librdkafka."""
        del step
        if self._blocking < BLOCKING_STEPS:
            return
        seconds = remote_recheck_seconds(len(self.waiting))
        await self.waiting.wait(interest, seen, min(left_seconds, seconds))


def open_log(
    path: str | os.PathLike[str], settings: Mapping[str, object] | None = None
) -> Opening[Log]:
    """Implement `strandlog.aio.open`."""

    async def opened() -> Log:
        workers = Workers(WORKER_THREADS)
        return Log(await _made(workers, partial(EmbeddedLog, path, settings)), workers)

    return Opening(opened)


def read_log(path: str | os.PathLike[str]) -> Opening[ReadOnlyLog]:
    """Implement `strandlog.aio.read`."""

    async def opened() -> ReadOnlyLog:
        workers = Workers(WORKER_THREADS)
        return ReadOnlyLog(await _made(workers, partial(FolderLog, path)), workers)

    return Opening(opened)


def connect_log(
    bootstrap: str,
    config: Mapping[str, object],
    timeout_ms: int,
    config_file: str | os.PathLike[str] | None,
) -> Opening[RemoteLog]:
    """Implement `strandlog.aio.connect`."""
    make = partial(BrokerLog, bootstrap, config, timeout_ms=timeout_ms, config_file=config_file)

    async def opened() -> RemoteLog:
        workers = Workers(WORKER_THREADS + BLOCKING_STEPS)
        return RemoteLog(await _made(workers, make), workers)

    return Opening(opened)


async def _made(workers: Workers, make: Callable[[], C]) -> C:
    """Create the synchronous log in a worker thread; if that fails, end the threads."""
    try:
        return await workers.run(make, abandoned=lambda log: log.close())
    except BaseException:
        workers.shut_down_when_idle()
        raise
