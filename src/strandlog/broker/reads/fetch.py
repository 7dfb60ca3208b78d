"""Reads records for consumers; a fetch with too little data waits for more or for its deadline.

A fetch lists one or more partitions and specifies the minimum amount of data to wait for
(`min_bytes`), the maximum to return (`max_bytes`, and a limit per partition) and a deadline. It is
answered when at least `min_bytes` can be read, when any partition has an error, or at its deadline,
whichever comes first. A large fetch does not wait for more records if the waiting fetches already
have too many partitions. Partitions are read in the order of the request; the first batch of the
first partition that has one is returned in full, however large, so that a consumer always makes
progress (KIP-74).

A delayed fetch is rechecked when the high watermark of one of its partitions advances. No data is
read until the fetch is answered: the recheck only estimates how many bytes can be read.

Records that are appended but not yet durable are not returned. Their offsets are in range: a fetch
from one of them returns no data yet. Unless a fetch can be answered immediately, it waits for the
flush of records that were appended before it arrived (`when_visible`), even past its deadline: they
may have been acknowledged, so the consumer expects them.

Fetches of many partitions are served in slices, one fetch at a time. This lets other requests run,
and at most one such response is in memory before it counts against a memory budget.

An error of a partition is part of its result. Any other exception is a bug: it fails this fetch,
but affects neither the flush that woke the fetch nor other fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from strandlog.broker.deferred import Deferred, as_result
from strandlog.broker.runtime import Runtime
from strandlog.broker.timers import Timer, Timers
from strandlog.clock import stopwatch
from strandlog.config.limits.kafka import MAX_WAITING_PARTITIONS
from strandlog.errors import CorruptSegmentError, StorageError, StrandlogError, TopicNotFoundError
from strandlog.model import Buffer, IsolationLevel, TopicRef
from strandlog.record.batch_header import end_offset_of
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import (
    CheckBudget,
    read,
    read_plan,
    verified_aborted,
)
from strandlog.storage.segment.transaction_index import AbortedTransaction
from strandlog.storage.work import Work, run_inline, yield_control

FEW_ABORTED = 100
WAKE_SECONDS = 0.004
FEW_PARTITIONS = 32  # up to this many partitions are read in a single step
NO_EPOCH = -1
TOO_LARGE = bytearray()
BEING_REBUILT = "a transaction index is wrong and is being rebuilt from the log; read again later"
FindAborted = Callable[[PartitionLog, int, int], list[AbortedTransaction] | None]


class FetchPartition(NamedTuple):
    """One partition of a fetch."""

    topic: TopicRef
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH  # the epoch known to the client


class FetchRequest(NamedTuple):
    """A fetch of one or more partitions."""

    partitions: Sequence[FetchPartition]
    min_bytes: int
    max_bytes: int
    deadline_ms: int
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    is_from_broker: bool = False  # sent by another broker that copies the log, not by a consumer


class FetchPartitionData(NamedTuple):
    """The result for one partition."""

    topic: TopicRef
    partition: int
    error: StrandlogError | None
    high_watermark: int
    log_start_offset: int
    data: Buffer
    last_stable_offset: int = -1
    # (producer id, first offset) of aborted transactions; only for read_committed
    aborted: Sequence[tuple[int, int]] | None = None


FetchResult = list[FetchPartitionData]
# The log of a requested partition, or the error that explains why it cannot be read.
Target = PartitionLog | StrandlogError
WhenVisible = Callable[[Iterable[PartitionLog], Callable[[], None]], bool]


class DelayedFetch(Deferred[FetchResult]):
    """A fetch that has not been answered yet."""

    __slots__ = (
        "_available",
        "_readable",
        "_rows",
        "is_expired",
        "request",
        "targets",
        "timer",
        "waits_for_flush",
    )

    def __init__(self, request: FetchRequest, targets: list[Target]) -> None:
        super().__init__(request.deadline_ms)
        self.request = request
        self.targets = targets
        self.timer: Timer | None = None
        self.waits_for_flush = False  # waits until records appended before it are flushed
        self.is_expired = False  # its deadline has passed, or there is no room for it to wait
        self._available = 0
        self._readable: dict[PartitionLog, int] = {}
        self._rows: dict[PartitionLog, FetchPartition] = {}

    def estimate(self) -> None:
        """Estimate how many bytes can be read from each partition now."""
        for part, log in zip(self.request.partitions, self.targets, strict=True):
            if isinstance(log, PartitionLog):
                self._rows[log] = part
                self._readable[log] = _part_bytes(part, log, self.request)
        self._available = sum(self._readable.values())

    def is_enough(self, logs: Iterable[PartitionLog]) -> bool:
        """Update the estimate for these partitions; return whether the fetch can be answered."""
        for log in logs:
            part = self._rows[log]
            if _has_error(part, log):
                return True
            now = _part_bytes(part, log, self.request)
            self._available += now - self._readable[log]
            self._readable[log] = now
        return self._available >= self.request.min_bytes


class DelayedFetches:
    """Answers the fetches of one broker, and holds the waiting ones until they can be answered."""

    def __init__(self, timers: Timers, runtime: Runtime) -> None:
        self._timers = timers
        self._runtime = runtime
        # Fetches to recheck, each with its partitions that have newly visible records.
        self._woken: dict[DelayedFetch, dict[PartitionLog, None]] = {}
        self._waiting_partitions = 0  # total number of partitions of the waiting large fetches
        self._is_waking = False
        self._by_log: dict[PartitionLog, dict[DelayedFetch, None]] = {}
        self._waiting: dict[DelayedFetch, None] = {}
        # Large fetches that can be answered; the first one is being served.
        self._large: dict[DelayedFetch, None] = {}
        self._is_reading = False
        # Partitions whose list of aborted transactions was wrong and is being rebuilt.
        self._rebuilding: set[PartitionLog] = set()
        self.read_bytes = 0

    @property
    def waiting_count(self) -> int:
        """The number of waiting fetches."""
        return len(self._waiting)

    def fetch(
        self, request: FetchRequest, targets: list[Target], now_ms: int, when_visible: WhenVisible
    ) -> FetchResult | Deferred[FetchResult]:
        """Return the result, or a `Deferred` if the fetch is large or has to wait. `when_visible`
        calls back once readers can see all records that were appended before the fetch, or when it
        gives up waiting for them."""
        is_large = len(targets) > FEW_PARTITIONS
        if _is_enough(request, targets):
            if not is_large:
                return self._read(request, targets)
            delayed = DelayedFetch(request, targets)
            self._answer(delayed)
            return delayed
        logs = [log for log in targets if isinstance(log, PartitionLog)]
        unseen = {log for log in logs if has_more_to_show(log)}
        size = len(targets) if is_large else 0
        has_room = self._waiting_partitions + size <= MAX_WAITING_PARTITIONS
        is_expired = now_ms >= request.deadline_ms or not (size == 0 or has_room)
        if is_expired and not unseen and not is_large:
            return self._read(request, targets)
        delayed = DelayedFetch(request, targets)
        if is_expired and not unseen:
            self._answer(delayed)
            return delayed
        self._wait(delayed, logs, size, is_expired=is_expired)
        if unseen:
            delayed.waits_for_flush = True
            when_visible(unseen, lambda: self._flushed(delayed))
        return delayed

    def _wait(
        self, delayed: DelayedFetch, logs: list[PartitionLog], size: int, *, is_expired: bool
    ) -> None:
        delayed.estimate()
        self._waiting_partitions += size
        self._waiting[delayed] = None
        delayed.is_expired = is_expired
        if not is_expired:
            deadline_ms = delayed.request.deadline_ms
            delayed.timer = self._timers.schedule(deadline_ms, lambda: self._expire(delayed))
        for log in logs:
            self._by_log.setdefault(log, {})[delayed] = None

    def _expire(self, delayed: DelayedFetch) -> None:
        delayed.is_expired = True
        if not delayed.waits_for_flush:
            self._finish(delayed)

    def _flushed(self, delayed: DelayedFetch) -> None:
        """Stop waiting for the flush of earlier appends; answer the fetch if it has expired."""
        delayed.waits_for_flush = False
        if delayed.is_expired:
            self._finish(delayed)

    def is_awaited(self, log: PartitionLog) -> bool:
        """Return whether any fetch waits for more records of this partition."""
        return log in self._by_log

    def high_watermark_moved(self, log: PartitionLog) -> None:
        """Recheck the fetches that wait for a partition, because its high watermark advanced."""
        waiting = self._by_log.get(log)
        if waiting:
            for delayed in waiting:
                self._woken.setdefault(delayed, {})[log] = None
            if not self._is_waking:
                self._wake()

    def _wake(self) -> None:
        """Answer the woken fetches that are ready; continue later if this takes too long."""
        self._is_waking = True
        began = stopwatch()
        try:
            while self._woken and stopwatch() - began < WAKE_SECONDS:
                delayed = next(iter(self._woken))
                logs = self._woken.pop(delayed)
                # Sending a response may close another fetch's connection, which cancels that fetch.
                if delayed in self._waiting and self._is_enough(delayed, logs):
                    self._finish(delayed)
        finally:  # an error in one fetch must not leave the others asleep
            if self._woken:
                self._runtime.run_soon(self._wake)
            else:
                self._is_waking = False

    def _is_enough(self, delayed: DelayedFetch, logs: Iterable[PartitionLog]) -> bool:
        """Return whether a fetch is ready; if this raises, the fetch fails."""
        try:
            return delayed.is_enough(logs)
        except Exception as error:  # noqa: BLE001 - the fetch fails with it
            self._stop_waiting(delayed)
            delayed.fail(error)
            return False

    def deleted(self, log: PartitionLog) -> None:
        """Answer the fetches that wait for a deleted partition, with an error for it."""
        gone = TopicNotFoundError(log.tp.topic)
        for delayed in list(self._by_log.get(log, ())):
            self._stop_waiting(delayed)
            delayed.targets = [gone if each is log else each for each in delayed.targets]
            if not delayed.is_done:
                self._answer(delayed)

    def complete_all(self) -> None:
        """Answer all waiting fetches with the data available now."""
        for delayed in list(self._waiting):
            self._finish(delayed)

    def cancel(self, delayed: Deferred[FetchResult]) -> None:
        """Drop a fetch whose consumer has disconnected."""
        assert isinstance(delayed, DelayedFetch), "only fetches of this broker can be cancelled"
        self._large.pop(delayed, None)
        if delayed in self._waiting:
            self._stop_waiting(delayed)

    def _finish(self, delayed: DelayedFetch) -> None:
        is_wanted = delayed in self._waiting  # otherwise it has been answered or cancelled
        self._stop_waiting(delayed)
        if is_wanted and not delayed.is_done:
            self._answer(delayed)

    # -- reading ---------------------------------------------------------------------------------

    def _answer(self, delayed: DelayedFetch) -> None:
        if len(delayed.targets) > FEW_PARTITIONS:
            self._large[delayed] = None
            if not self._is_reading:
                self._is_reading = True
                self._read_large()
            return
        try:
            found = self._read(delayed.request, delayed.targets)
        except Exception as error:  # noqa: BLE001 - the fetch fails with it
            delayed.fail(error)
        else:
            delayed.complete(found)

    def _read(self, request: FetchRequest, targets: list[Target]) -> FetchResult:
        max_bytes = min(request.max_bytes, self._runtime.response_room())
        return self._count(run_inline(self._reading(request, targets, max_bytes)))

    def _count(self, found: FetchResult) -> FetchResult:
        self.read_bytes += sum([len(each.data) for each in found])
        return found

    def _read_large(self) -> None:
        """Start serving the next large fetch."""
        if not self._large:
            self._is_reading = False
            return
        delayed = next(iter(self._large))
        max_bytes = min(delayed.request.max_bytes, self._runtime.response_room())
        self._read_slice(delayed, self._reading(delayed.request, delayed.targets, max_bytes))

    def _read_slice(self, delayed: DelayedFetch, reading: Work[FetchResult]) -> None:
        began, is_paused = stopwatch(), False
        try:
            while delayed in self._large:  # removed if the consumer disconnects
                next(reading)
                if stopwatch() - began > WAKE_SECONDS:
                    self._runtime.run_soon(lambda: self._read_slice(delayed, reading))
                    is_paused = True
                    return
        except StopIteration as end:
            del self._large[delayed]
            delayed.complete(self._count(end.value))
        except Exception as error:  # noqa: BLE001 - the fetch fails with it
            del self._large[delayed]
            delayed.fail(error)
        finally:  # whatever happens to this fetch, the next one is served
            if not is_paused:
                self._large.pop(delayed, None)
                self._read_next()

    def _read_next(self) -> None:
        if self._large:
            self._runtime.run_soon(self._read_large)
        else:
            self._is_reading = False

    def _reading(
        self, request: FetchRequest, targets: list[Target], max_bytes: int
    ) -> Work[FetchResult]:
        """Read the partitions of a fetch; yield after each partition. Only the first batch of the
        response may exceed `max_bytes`, and only the first batch of a partition its own limit."""
        left = max_bytes
        budget = CheckBudget()
        results = []
        took_any = False
        committed = request.isolation is IsolationLevel.READ_COMMITTED
        # `map` is lazy: it checks each partition in the step that reads it.
        for part, log in zip(request.partitions, map(_unless_deleted, targets), strict=True):
            if not isinstance(log, PartitionLog):
                results.append(failed_fetch(part, log))
                yield yield_control
                continue
            is_first = not took_any
            found = _read_part(part, log, left, budget, is_first=is_first, committed=committed)
            if committed and found.aborted is None:
                if self._rebuild_aborted(log):
                    found = _read_part(part, log, left, budget, is_first=is_first, committed=True)
                else:
                    found = failed_fetch(part, StorageError(f"{log.tp}: {BEING_REBUILT}"))
            if isinstance(found.error, CorruptSegmentError):
                problem = str(found.error)
                if log.report(problem):
                    self._runtime.report(f"{log.tp}: {problem}")
            if found.data is TOO_LARGE:
                left = 0  # the response is full: do not read more data only to discard it
                found = found._replace(data=b"")
            left -= len(found.data)
            took_any = took_any or bool(found.data)
            results.append(found)
            yield yield_control
        return results

    def _rebuild_aborted(self, log: PartitionLog) -> bool:
        """Start to rebuild the list of aborted transactions of a partition, unless a rebuild is
        already running. Return whether the rebuild has finished; with an inline runtime, it has."""
        if log not in self._rebuilding:
            self._rebuilding.add(log)
            work = self._rebuilding_aborted(log)
            self._runtime.run_in_background("transaction index", work, is_long=False)
        return log not in self._rebuilding

    def _rebuilding_aborted(self, log: PartitionLog) -> Work[None]:
        try:
            yield from log.rebuild_aborted()
        except StrandlogError as error:
            if not log.is_closed:
                self._runtime.report(f"{log.tp}: could not rebuild a transaction index: {error}")
        finally:
            self._rebuilding.discard(log)

    def _stop_waiting(self, delayed: DelayedFetch) -> None:
        if delayed in self._waiting:
            del self._waiting[delayed]
            if len(delayed.targets) > FEW_PARTITIONS:
                self._waiting_partitions -= len(delayed.targets)
        self._woken.pop(delayed, None)
        if delayed.timer is not None:
            delayed.timer.cancel()
        for log in delayed.targets:
            waiting = self._by_log.get(log) if isinstance(log, PartitionLog) else None
            if waiting is not None and isinstance(log, PartitionLog):
                waiting.pop(delayed, None)
                if not waiting:
                    del self._by_log[log]


def _unless_deleted(target: Target) -> Target:
    """Return an error if the topic was deleted after the fetch began, otherwise `target`."""
    if isinstance(target, PartitionLog) and target.is_closed:
        return TopicNotFoundError(target.tp.topic)
    return target


def has_more_to_show(log: PartitionLog) -> bool:
    """Return whether a flush would make more records visible to readers."""
    return log.high_watermark < log.log_end_offset and log.failure is None


def _is_enough(request: FetchRequest, targets: list[Target]) -> bool:
    """Return whether the fetch can be answered now, with an error or at least `min_bytes`."""
    available = 0
    for part, log in zip(request.partitions, targets, strict=True):
        if not isinstance(log, PartitionLog) or _has_error(part, log):
            return True
        available += _part_bytes(part, log, request)
        if 0 < request.min_bytes <= available:
            return True
    return request.min_bytes <= 0


def _has_error(part: FetchPartition, log: PartitionLog) -> bool:
    return not log.log_start_offset <= part.offset <= log.log_end_offset


def _part_bytes(part: FetchPartition, log: PartitionLog, request: FetchRequest) -> int:
    """Estimate how many bytes the fetch can read from a partition."""
    committed = request.isolation is IsolationLevel.READ_COMMITTED
    if part.offset >= (log.last_stable_offset if committed else log.high_watermark):
        return 0
    if request.min_bytes <= 1:
        return 1  # the usual case: the consumer waits for any data at all
    return min(_readable_bytes(log, part.offset, committed), part.max_bytes)


def _readable_bytes(log: PartitionLog, offset: int, committed: bool) -> int:
    """Estimate how many bytes can be read from `offset` on."""
    plan = read_plan(log, offset, 0, committed=committed)
    found = plan.locate() if plan is not None else None
    if plan is None or found is None:
        return 0
    later = [
        segment.size_bytes
        for segment in log.segments.all()
        if plan.base_offset < segment.base_offset < log.high_watermark
    ]
    return plan.end_position - found[0] + sum(later)


def failed_fetch(part: FetchPartition, error: StrandlogError) -> FetchPartitionData:
    """Return the result for a partition that cannot be read."""
    return FetchPartitionData(part.topic, part.partition, error, -1, -1, b"")


def _read_part(
    part: FetchPartition,
    log: PartitionLog,
    left: int,
    budget: CheckBudget,
    *,
    is_first: bool,
    committed: bool,
) -> FetchPartitionData:
    """Read one partition. With `committed`, `aborted` is None if the list of aborted transactions
    is wrong."""
    data: Buffer = b""
    error: StrandlogError | None = None
    aborted: Sequence[tuple[int, int]] | None = [] if committed else None
    try:
        if left > 0 or is_first:
            limit = max(0, min(part.max_bytes, left))
            data = read(log, part.offset, limit, committed=committed, verify=budget)
            if len(data) > left and not is_first:
                data = TOO_LARGE  # the batch no longer fits; a later fetch returns it
            if committed:
                aborted = aborted_in_data(log, part.offset, data, verified_aborted)
    except StrandlogError as raised:
        data, error = b"", as_result(raised)
    return FetchPartitionData(
        part.topic,
        part.partition,
        error,
        log.high_watermark,
        log.log_start_offset,
        data,
        log.last_stable_offset,
        aborted,
    )


def aborted_in_data(
    log: PartitionLog, offset: int, data: Buffer, find: FindAborted
) -> list[tuple[int, int]] | None:
    """Return (producer id, first offset) of aborted transactions that may be in the data of a read
    at `offset`, or None if `find` returns None."""
    if not len(log.aborted) or not len(data):
        return []
    end_offset = log.last_stable_offset
    if len(log.aborted) > FEW_ABORTED:  # otherwise parsing the batches costs more than it saves
        end_offset = min(end_offset, end_offset_of(data))
    found = find(log, offset, end_offset)
    return None if found is None else [entry[:2] for entry in found]
