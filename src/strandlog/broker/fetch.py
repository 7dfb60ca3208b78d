"""Reads for consumers: answered at once when there is enough, parked when there is not.

A fetch asks for several partitions and says how much it wants (`min_bytes`), how much it takes
(`max_bytes`, and a limit per partition) and how long it would wait. It is answered when at least
`min_bytes` can be read, when any partition has an error, or at its deadline, whichever comes first.
Partitions are served in the order of the request; the first batch of the first partition that has
one comes whole, however large, so a consumer always gets on (KIP-74).

A parked fetch is looked at again when one of its partitions has more to show (`visible`). Nothing
is read before it is known to be wanted: the estimate counts bytes up to the high watermark.

Records that are written but not durable are not read, and an offset among them is in range: a fetch
there finds nothing yet. When they were written before the fetch came, it waits for their sync even
if it would not wait for new records (`when_visible`); they were acknowledged, and the consumer
expects them.

A fetch of many partitions is read in slices, one fetch at a time: so others have their turn, and
the bytes of at most one such answer are in memory that no budget knows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from strandlog.broker.deferred import Deferred
from strandlog.broker.timers import Timer, Timers
from strandlog.broker.visibility import has_more_to_show
from strandlog.clock import stopwatch
from strandlog.config.setting import MAX_INT
from strandlog.errors import CorruptSegmentError, StrandlogError, TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.record.batch_header import end_offset_of
from strandlog.storage.files import Buffer
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import (
    CheckBudget,
    aborted_in,
    read_intact,
    read_plan,
    report,
)

FEW_ABORTED = 100
WAKE_SECONDS = 0.004
FEW_PARTITIONS = 32  # are read without a pause
# Partitions of all fetches of more than a few that wait. Another one is answered at once, and asks
# again; its consumer is served less quickly, and the memory and time for waiting are bounded.
PARKED_MAX_PARTITIONS = 100_000
TOO_LARGE = bytearray()


class FetchPart(NamedTuple):
    """One partition of a fetch: where to read, or why not."""

    tp: TopicPartition
    log: PartitionLog | None
    offset: int
    max_bytes: int
    error: StrandlogError | None = None


class FetchAnswer(NamedTuple):
    """What one partition has to say."""

    tp: TopicPartition
    error: StrandlogError | None
    high_watermark: int
    log_start_offset: int
    data: Buffer
    last_stable_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset), or not asked


class FetchWish(NamedTuple):
    """A whole fetch."""

    parts: Sequence[FetchPart]
    min_bytes: int
    max_bytes: int
    deadline_ms: int
    committed: bool = False  # nothing of open transactions, and which were aborted


class _Parked:
    """A fetch that waits."""

    __slots__ = (
        "_available",
        "_parts",
        "_readable",
        "is_expired",
        "pending",
        "timer",
        "waits_for_sync",
        "wish",
    )

    def __init__(self, wish: FetchWish, pending: Deferred[list[FetchAnswer]]) -> None:
        self.wish = wish
        self.pending = pending
        self._parts = {part.log: part for part in wish.parts}
        self._readable = {log: _part_bytes(part, wish) for log, part in self._parts.items()}
        self._available = sum(self._readable.values())
        self.timer: Timer | None = None
        self.waits_for_sync = False  # of what was written before the fetch came
        self.is_expired = False  # its deadline has passed

    def is_enough(self, logs: Iterable[PartitionLog]) -> bool:
        """Whether to answer now that these partitions have more to show; the others are as they
        were."""
        for log in logs:
            part = self._parts[log]
            if _has_error(part):
                return True
            now = _part_bytes(part, self.wish)
            self._available += now - self._readable[log]
            self._readable[log] = now
        return self._available >= self.wish.min_bytes


class Fetches:
    """All fetches of one broker."""

    def __init__(
        self,
        timers: Timers,
        when_visible: Callable[[Iterable[PartitionLog], Callable[[], None]], bool],
        room: Callable[[], int] = lambda: MAX_INT,
        later: Callable[[Callable[[], None]], None] = lambda run: run(),
        on_damage: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`when_visible` calls back once readers see what was written before (`Visibility`).
        `room` says how many bytes an answer may have now; a first batch comes whole anyway.
        `later` calls back after others had their turn: thousands may wait for one partition.
        `on_damage` gets each problem that a read finds on disk, once.
        """
        self._on_damage = on_damage
        self._later = later
        # To be looked at, each with the partitions that have more to show.
        self._woken: dict[_Parked, dict[PartitionLog, None]] = {}
        self._parked_partitions = 0  # of fetches of more than a few
        self._is_waking = False
        self._timers = timers
        self._when_visible = when_visible
        self._room = room
        self._parked: dict[PartitionLog, dict[_Parked, None]] = {}
        self._by_pending: dict[Deferred[list[FetchAnswer]], _Parked] = {}
        # Fetches of many partitions that are to be answered; the first one is being read.
        self._large: dict[Deferred[list[FetchAnswer]], FetchWish] = {}
        self._is_reading = False
        self.read_bytes = 0

    @property
    def parked_count(self) -> int:
        """How many fetches wait."""
        return len(self._by_pending)

    def fetch(self, wish: FetchWish, now_ms: int) -> Deferred[list[FetchAnswer]]:
        """The answer, now or later."""
        pending: Deferred[list[FetchAnswer]] = Deferred(wish.deadline_ms)
        if _is_enough(wish):
            self._answer(wish, pending)
            return pending
        logs = {part.log for part in wish.parts if part.log is not None}
        unseen = [log for log in logs if has_more_to_show(log)]
        size = len(wish.parts) if len(wish.parts) > FEW_PARTITIONS else 0
        has_room = self._parked_partitions + size <= PARKED_MAX_PARTITIONS
        is_expired = now_ms >= wish.deadline_ms or not (size == 0 or has_room)
        if is_expired and not unseen:
            self._answer(wish, pending)
            return pending
        self._parked_partitions += size
        parked = self._by_pending[pending] = _Parked(wish, pending)
        parked.is_expired = is_expired
        if not is_expired:
            parked.timer = self._timers.schedule(wish.deadline_ms, lambda: self._expire(parked))
        for part in wish.parts:
            if part.log is not None:
                self._parked.setdefault(part.log, {})[parked] = None
        if unseen:
            parked.waits_for_sync = True
            self._when_visible(unseen, lambda: self._synced(parked))
        return pending

    def _expire(self, parked: _Parked) -> None:
        parked.is_expired = True
        if not parked.waits_for_sync:
            self._finish(parked)

    def _synced(self, parked: _Parked) -> None:
        """What was written before the fetch came is visible, or will not be soon."""
        parked.waits_for_sync = False
        if parked.is_expired:
            self._finish(parked)

    def has_parked(self, log: PartitionLog) -> bool:
        """Whether a reader waits for this partition to have more to show."""
        return log in self._parked

    def visible(self, log: PartitionLog) -> None:
        """A partition has more to show, or is gone: look at who waits for it."""
        waiting = self._parked.get(log)
        if waiting:
            for parked in waiting:
                self._woken.setdefault(parked, {})[log] = None
            if not self._is_waking:
                self._wake()

    def _wake(self) -> None:
        """Answer those that can be, as many as the time allows; the others a little later."""
        self._is_waking = True
        began = stopwatch()
        while self._woken and stopwatch() - began < WAKE_SECONDS:
            parked = next(iter(self._woken))
            logs = self._woken.pop(parked)
            # An answer to one may close the connection of another, which cancels its fetch.
            if parked.pending in self._by_pending and parked.is_enough(logs):
                self._finish(parked)
        if self._woken:
            self._later(self._wake)
        else:
            self._is_waking = False

    def deleted(self, log: PartitionLog) -> None:
        """A partition is gone: who waits for it hears so."""
        gone = TopicNotFoundError(log.tp.topic)
        for parked in list(self._parked.get(log, ())):
            parts = [
                part._replace(error=gone) if part.log is log else part for part in parked.wish.parts
            ]
            parked.wish = parked.wish._replace(parts=parts)
            self._finish(parked)

    def finish_all(self) -> None:
        """Answer all fetches with what there is."""
        for parked in list(self._by_pending.values()):
            self._finish(parked)

    def cancel(self, pending: Deferred[list[FetchAnswer]]) -> None:
        """The consumer hung up."""
        self._large.pop(pending, None)
        parked = self._by_pending.get(pending)
        if parked is not None:
            self._unpark(parked)

    def _finish(self, parked: _Parked) -> None:
        is_wanted = parked.pending in self._by_pending  # else it was answered or cancelled
        self._unpark(parked)
        if is_wanted and not parked.pending.is_done:
            self._answer(parked.wish, parked.pending)

    def _answer(self, wish: FetchWish, pending: Deferred[list[FetchAnswer]]) -> None:
        if len(wish.parts) > FEW_PARTITIONS:
            self._large[pending] = wish
            if not self._is_reading:
                self._is_reading = True
                self._read_large()
        else:
            max_bytes = min(wish.max_bytes, self._room())
            self._complete(pending, answer(wish, max_bytes, self._on_damage))

    def _complete(self, pending: Deferred[list[FetchAnswer]], answers: list[FetchAnswer]) -> None:
        self.read_bytes += sum([len(each.data) for each in answers])
        pending.complete(answers)

    def _read_large(self) -> None:
        """Begin with the next fetch of many partitions."""
        if not self._large:
            self._is_reading = False
            return
        pending, wish = next(iter(self._large.items()))
        max_bytes = min(wish.max_bytes, self._room())
        self._read_slice(pending, answering(wish, max_bytes, self._on_damage))

    def _read_slice(
        self,
        pending: Deferred[list[FetchAnswer]],
        steps: Generator[None, None, list[FetchAnswer]],
    ) -> None:
        began = stopwatch()
        while pending in self._large:  # else the consumer hung up
            try:
                next(steps)
            except StopIteration as end:
                del self._large[pending]
                self._complete(pending, end.value)
                break
            if stopwatch() - began > WAKE_SECONDS:
                self._later(lambda: self._read_slice(pending, steps))
                return
        if self._large:
            self._later(self._read_large)
        else:
            self._is_reading = False

    def _unpark(self, parked: _Parked) -> None:
        if self._by_pending.pop(parked.pending, None) and len(parked.wish.parts) > FEW_PARTITIONS:
            self._parked_partitions -= len(parked.wish.parts)
        self._woken.pop(parked, None)
        if parked.timer is not None:
            parked.timer.cancel()
        for part in parked.wish.parts:
            waiting = self._parked.get(part.log) if part.log is not None else None
            if waiting is not None and part.log is not None:
                waiting.pop(parked, None)
                if not waiting:
                    del self._parked[part.log]


def _is_enough(wish: FetchWish) -> bool:
    """Whether there is something to answer with: an error, or min_bytes to read."""
    available = 0
    for part in wish.parts:
        if _has_error(part):
            return True
        available += _part_bytes(part, wish)
        if 0 < wish.min_bytes <= available:
            return True
    return wish.min_bytes <= 0


def _has_error(part: FetchPart) -> bool:
    log = part.log
    if part.error is not None or log is None:
        return True
    return not log.log_start_offset <= part.offset <= log.log_end_offset


def _part_bytes(part: FetchPart, wish: FetchWish) -> int:
    """About how much of a partition the fetch can read."""
    log = part.log
    if log is None or part.offset >= (
        log.last_stable_offset if wish.committed else log.high_watermark
    ):
        return 0
    if wish.min_bytes <= 1:
        return 1  # what nearly every consumer asks for: anything at all
    return min(_readable_bytes(log, part.offset, wish.committed), part.max_bytes)


def _readable_bytes(log: PartitionLog, offset: int, committed: bool) -> int:
    """About how many bytes a reader at `offset` has before it."""
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


def answer(wish: FetchWish, max_bytes: int, on_damage: Callable[[str], None]) -> list[FetchAnswer]:
    """Read what the fetch asks for, within its limits and `max_bytes` in total."""
    steps = answering(wish, max_bytes, on_damage)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answers: list[FetchAnswer] = end.value
            return answers


def answering(
    wish: FetchWish, max_bytes: int, on_damage: Callable[[str], None]
) -> Generator[None, None, list[FetchAnswer]]:
    """The same as a generator that yields after each partition."""
    left = max_bytes
    budget = CheckBudget()
    answers = []
    took_any = False
    for part in wish.parts:
        found = _answer_part(part, left, budget, is_first=not took_any, committed=wish.committed)
        if isinstance(found.error, CorruptSegmentError) and part.log is not None:
            problem = str(found.error)
            if report(part.log, problem):
                on_damage(f"{part.tp}: {problem}")
        if found.data is TOO_LARGE:
            left = 0  # the reply is full: nothing more is read only to be dropped
            found = found._replace(data=b"")
        left -= len(found.data)
        took_any = took_any or bool(found.data)
        answers.append(found)
        yield
    return answers


def refused_fetch(part: FetchPart) -> FetchAnswer:
    """The answer for a partition that cannot be read."""
    return FetchAnswer(part.tp, part.error, -1, -1, b"")


def _answer_part(
    part: FetchPart, left: int, budget: CheckBudget, *, is_first: bool, committed: bool
) -> FetchAnswer:
    log = part.log
    if log is None or part.error is not None:
        return refused_fetch(part)
    data: Buffer = b""
    error: StrandlogError | None = None
    try:
        if left > 0 or is_first:
            limit = max(0, min(part.max_bytes, left))
            data = read_intact(log, part.offset, limit, budget, committed=committed)
            if len(data) > left and not is_first:
                data = TOO_LARGE  # a first batch that no longer fits; the next fetch gets it
    except StrandlogError as refused:
        error = refused
    return FetchAnswer(
        part.tp,
        error,
        log.high_watermark,
        log.log_start_offset,
        data,
        log.last_stable_offset,
        _aborted(log, part.offset, data) if committed else None,
    )


def _aborted(log: PartitionLog, offset: int, data: Buffer) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions with records in the data."""
    if not len(log.aborted) or not len(data):
        return []
    end_offset = log.last_stable_offset
    if len(log.aborted) > FEW_ABORTED:  # else looking at each batch costs more than it saves
        end_offset = min(end_offset, end_offset_of(data))
    return [entry[:2] for entry in aborted_in(log, offset, end_offset)]
