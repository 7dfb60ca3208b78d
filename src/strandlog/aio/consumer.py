"""The asyncio consumer: polling, iterating and committing, without a thread per consumer.

    received      the program got the record from `poll` or from `async for`
    read ahead    the consumer has the record, but the program has not received it yet: `async for`
                  read it in advance, or the task that polled for it was cancelled

`position` returns, and `commit` commits, the offset after the last received record, so records that
were only read ahead are never committed. The next poll or iteration returns them; a seek discards
them and reads from the new position.

The synchronous consumer executes one call at a time. A poll that waits for records occupies it for
at most BLOCKING_STEP_MS in a row, so another task can commit or seek during the wait; `close` makes
the waiting poll raise ClosedError.
If a task is cancelled while a worker thread executes its call, the call completes in the
background, and the next call of any task starts after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from strandlog.aio.opening import AsyncClosable
from strandlog.aio.waiting import Interest, Waiting
from strandlog.aio.workers import Workers, finish
from strandlog.client.arguments import check_max_records, check_timeout
from strandlog.client.arrow.table import table_of
from strandlog.client.record_source import REBALANCED
from strandlog.client.stepped import Step, SteppedConsumer
from strandlog.errors import ClosedError
from strandlog.model import Record, SkippedOffsets, TopicPartition

T = TypeVar("T")

READ_AHEAD_RECORDS = 500  # the default max_records of poll


class ConsumerHost(Protocol):
    """The asyncio log that a consumer belongs to."""

    workers: Workers
    waiting: Waiting

    @property
    def longest_look_seconds(self) -> float:
        """How long poll(timeout_ms=0) can take to find out whether there are records."""

    def run_step(
        self,
        work: Callable[[int], Step],
        left_seconds: float,
        done: Callable[[Step | Exception], None],
    ) -> None:
        """Run a step in a worker thread, then call `done` in the event loop.

        The argument of `work` is the number of milliseconds that the step may wait for records.
        """

    async def pause(self, interest: Interest, step: Step, seen: int, left_seconds: float) -> None:
        """Wait after a step without records, until it is worth looking again."""


class ConsumerOptions(NamedTuple):
    """The arguments of `Log.consumer` that the asyncio consumer uses itself."""

    group: str | None
    auto_commit: bool
    consumer_timeout_ms: int | None
    max_poll_interval_ms: int


class Consumer(AsyncClosable):
    """A consumer, created by `Log.consumer`. Tasks may share it; each record goes to one of them.

    `async for record in consumer` waits for the next record indefinitely, or for at most
    `consumer_timeout_ms`, a parameter of `Log.consumer`.
    """

    def __init__(
        self, log: ConsumerHost, consumer: SteppedConsumer, options: ConsumerOptions
    ) -> None:
        self._log = log
        self._workers = log.workers
        self._consumer = consumer
        self._group = options.group
        self._auto_commit = options.auto_commit
        self._iterates_ms = options.consumer_timeout_ms
        # A member that waits for records polls at least this often, so that it stays in its group.
        is_member = options.group is not None
        self._heartbeat_seconds = options.max_poll_interval_ms / 3_000 if is_member else math.inf
        self._ahead: deque[Record] = deque()
        # The last record that iteration returned; None before the first one and after a poll.
        self._last: Record | None = None
        self._is_busy = False
        self._turns: deque[asyncio.Future[None]] = deque()
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<strandlog.aio.Consumer, {len(self._ahead)} records ahead, {self._consumer!r}>"

    # -- reading -------------------------------------------------------------------------------

    async def poll(self, max_records: int = 500, timeout_ms: int = 0) -> list[Record]:
        """Return up to `max_records` records; wait up to `timeout_ms` for the first one.

        If the task is cancelled, no records are lost: the next poll returns them.
        """
        check_max_records(max_records)
        check_timeout(timeout_ms)
        self._check()
        self._last = None
        if not self._ahead:
            await self._read_ahead(max_records, timeout_ms, is_iteration=False)
        return self._take(max_records)

    def _take(self, count: int) -> list[Record]:
        ahead = self._ahead
        if len(ahead) <= count:
            records = list(ahead)
            ahead.clear()
            return records
        return [ahead.popleft() for _ in range(count)]

    async def poll_arrow(self, max_records: int = 100_000, timeout_ms: int = 0) -> Any:
        """Poll for records and return them as an Arrow table."""
        check_max_records(max_records)
        check_timeout(timeout_ms)
        self._check()
        self._last = None
        if not self._ahead and not (timeout_ms and self._log.longest_look_seconds):
            work = partial(self._consumer.poll_arrow, max_records, 0)
            table = await self._operate(work, abandoned=self._return_rows)
            if table.num_rows or not timeout_ms:
                return table
        if not self._ahead:
            await self._read_ahead(max_records, timeout_ms, is_iteration=False)
        records = self._take(max_records)
        try:
            return await self._workers.run(partial(table_of, records))
        except BaseException:
            self._ahead.extendleft(reversed(records))
            raise

    def _return_rows(self, table: Any) -> None:
        columns = (table.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        firsts: dict[TopicPartition, int] = {}
        for topic, partition, offset in zip(*columns, strict=True):
            firsts.setdefault(TopicPartition(topic, partition), offset)
        for tp, offset in firsts.items():
            self._consumer.seek(*tp, offset)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; stop the iteration after `consumer_timeout_ms` without one."""
        if not self._ahead:
            await self._read_ahead(READ_AHEAD_RECORDS, self._iterates_ms, is_iteration=True)
            if not self._ahead:
                if self._auto_commit:
                    with contextlib.suppress(*REBALANCED):
                        await self.commit()
                raise StopAsyncIteration
        self._last = self._ahead.popleft()
        return self._last

    async def _read_ahead(
        self, max_records: int, timeout_ms: int | None, *, is_iteration: bool
    ) -> None:
        """Return when there are records in `_ahead`, or when `timeout_ms` has passed.

        With 0, return as soon as it is certain that there are none, or raise the error of the last
        step if that takes too long; with None, wait indefinitely.
        """
        loop = self._workers.loop
        limit = self._log.longest_look_seconds if timeout_ms == 0 else (timeout_ms or 0) / 1000
        deadline = math.inf if timeout_ms is None else loop.time() + limit
        left, is_first = deadline - loop.time(), True
        while True:
            seen = self._log.waiting.mark()
            call = partial(
                self._consumer.step, max_records, is_first=is_first, is_iteration=is_iteration
            )
            step = await self._step(call, left)
            if self._ahead or (timeout_ms == 0 and step.timeout_error is None):
                return
            left, is_first = deadline - loop.time(), False
            if left <= 0:
                if timeout_ms == 0 and step.timeout_error is not None:
                    raise step.timeout_error
                return
            interest = Interest(step.partitions, self._group, id(self))
            await self._log.pause(interest, step, seen, min(left, self._heartbeat_seconds))
            self._check()

    async def _step(self, call: Callable[..., Step], left_seconds: float) -> Step:
        """Run one step, and put its records into `_ahead`."""
        await self._acquire()
        if self._ahead:  # left by a cancelled poll, or read ahead by another task
            self._release()
            return Step([])
        answer: asyncio.Future[Step] = self._workers.loop.create_future()

        def done(outcome: Step | Exception) -> None:
            if isinstance(outcome, Step):
                self._ahead.extend(outcome.records)
            if not answer.done():
                if isinstance(outcome, Step):
                    answer.set_result(outcome)
                else:
                    answer.set_exception(outcome)
            self._release()

        def work(wait_ms: int) -> Step:
            return call(wait_ms=wait_ms)

        self._log.run_step(work, left_seconds, done)
        return await answer

    @property
    def skipped(self) -> list[SkippedOffsets]:
        """The last 1,000 offset ranges skipped because of `on_unreadable="skip"`."""
        return list(getattr(self._consumer, "skipped", ()))

    # -- assignment and positions ----------------------------------------------------------------

    @property
    def group(self) -> str | None:
        """The group of this consumer, or None."""
        return self._group

    async def assignment(self) -> list[TopicPartition]:
        """Return the partitions assigned to this consumer."""
        return await self._operate(lambda: self._consumer.assignment)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the topics; a member leaves its group."""
        wanted = [TopicPartition(*pair) for pair in partitions]

        def keep(_: None) -> None:
            self._discard(lambda record: record[:2] not in wanted)

        await self._operate(partial(self._consumer.assign, wanted), keep)

    async def position(self, topic: str, partition: int) -> int:
        """Return the offset from which the next poll returns records of this partition."""
        position = await self._operate(partial(self._consumer.position, topic, partition))
        return self._undelivered().get(TopicPartition(topic, partition), position)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move to an offset; raise `OffsetOutOfRangeError` if it is outside the valid range."""

        def moved(_: None) -> None:
            self._discard(lambda record: record[:2] == (topic, partition))

        await self._operate(partial(self._consumer.seek, topic, partition, offset), moved)

    async def seek_all(self, offset: int) -> None:
        """Move all partitions to an offset, or to the nearest valid one."""
        await self._operate(partial(self._consumer.seek_all, offset), self._discard_all)

    async def seek_to_time(self, timestamp_ms: int) -> None:
        """Move each partition to its first record at or after a time, or else to its end."""
        await self._operate(partial(self._consumer.seek_to_time, timestamp_ms), self._discard_all)

    def _discard_all(self, _: None) -> None:
        self._discard(lambda _: True)

    def _discard(self, is_obsolete: Callable[[Record], bool]) -> None:
        """Discard read-ahead records, and wake waiting polls to read from the new positions."""
        self._ahead = deque(record for record in self._ahead if not is_obsolete(record))
        self._log.waiting.consumer_changed(id(self))

    def _undelivered(self) -> dict[TopicPartition, int]:
        """Return the offset of the first read-ahead record of each partition."""
        firsts: dict[TopicPartition, int] = {}
        for record in self._ahead:
            tp = TopicPartition(record.topic, record.partition)
            if tp not in firsts:
                firsts[tp] = record.offset
        return firsts

    # -- committing ----------------------------------------------------------------------------

    async def commit(self) -> dict[TopicPartition, int]:
        """Durably commit the offsets after the received records; return the changed offsets."""
        await self._acquire()
        committed = await self._run(partial(self._consumer.commit_before, self._undelivered()))
        self._log.waiting.group_changed(self._group)
        return committed

    async def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed offset of a partition, or None if there is none."""
        return await self._operate(partial(self._consumer.committed, topic, partition))

    # -- one call at a time ----------------------------------------------------------------------

    async def _operate(
        self,
        work: Callable[[], T],
        then: Callable[[T], None] | None = None,
        abandoned: Callable[[T], None] | None = None,
    ) -> T:
        """Call the synchronous consumer, after the calls that other tasks made earlier."""
        await self._acquire()
        return await self._run(work, then, abandoned)

    async def _run(
        self,
        work: Callable[[], T],
        then: Callable[[T], None] | None = None,
        abandoned: Callable[[T], None] | None = None,
    ) -> T:
        """Run `work` in a worker thread, then `then` in the loop; the caller has acquired the turn.

        Both run even if the task is cancelled, but `then` only if `work` succeeds. After a
        cancellation, a worker thread passes the result to `abandoned` before the turn is released.
        """
        answer: asyncio.Future[T] = self._workers.loop.create_future()

        def done(future: Future[T]) -> None:
            error = future.exception()
            if error is None and then is not None:
                then(future.result())
            if answer.done():
                self._release_after(future, abandoned)
            elif error is None:
                answer.set_result(future.result())
            else:
                answer.set_exception(error)

        self._workers.submit(work, done)
        try:
            result = await answer
        except BaseException:
            if answer.done() and not answer.cancelled():
                # The work has failed, or its result arrived in the same iteration of the loop as a
                # cancellation.
                self._release_after(answer, abandoned)
            answer.cancel()
            raise
        self._release()
        return result

    def _release_after(
        self, outcome: Future[T] | asyncio.Future[T], abandoned: Callable[[T], None] | None
    ) -> None:
        """Pass the result that a task no longer waits for to `abandoned`, and release the turn."""

        def undone(future: Future[None]) -> None:
            future.exception()
            self._release()

        if abandoned is None or outcome.exception() is not None:
            self._release()
        else:
            self._workers.submit(partial(abandoned, outcome.result()), undone)

    async def _acquire(self, *, is_closing: bool = False) -> None:
        """Wait until the calls that other tasks made earlier are complete."""
        if not is_closing:
            self._check()
        if not self._is_busy:
            self._is_busy = True
            return
        turn: asyncio.Future[None] = self._workers.loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            raise
        try:
            if not is_closing:
                self._check()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False

    def _check(self) -> None:
        self._workers.check("consumer")
        if self._closing is not None:
            raise ClosedError("consumer")

    # -- close ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Make a final commit if auto_commit is set, then leave the group.

        This method is idempotent. Tasks that wait in `poll` get `ClosedError`. A task that is
        cancelled here still waits until the consumer is closed.
        """
        await self._close_once(self._close_received)

    async def _close_once(self, closes: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._closing is None:
            if self._workers.is_closed:
                return
            self._workers.check_owner("consumer")
            self._closing = self._workers.loop.create_task(closes())
            self._log.waiting.consumer_changed(id(self))
        await finish(self._closing)

    async def _close_received(self) -> None:
        await self._acquire(is_closing=True)
        await self._close_with(partial(self._consumer.close_before, self._undelivered()))

    async def _close_after_error(self) -> None:
        """Close after an error. With auto_commit, commit the records that iteration has returned,
        except the last one."""
        await self._acquire(is_closing=True)
        work: Callable[[], None]
        if self._auto_commit and self._last is not None:
            self._ahead.appendleft(self._last)
            work = partial(self._consumer.close_before, self._undelivered())
        else:
            work = self._consumer.release
        await self._close_with(work)

    async def _close_with(self, work: Callable[[], None]) -> None:
        self._ahead.clear()
        try:
            await self._run(work)
        finally:
            self._log.waiting.consumer_closed(id(self))
            self._log.waiting.group_changed(self._group)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_once(self._close_received if error is None else self._close_after_error)
