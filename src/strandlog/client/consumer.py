"""The consumer of embedded and read-only logs: positions, polling and committing.

Records from all assigned partitions are merged. They are ordered within a partition but not across
partitions, which are read round robin. Without a group, the consumer reads all partitions of its
topics (or those passed to `assign`) and commits nothing. With a group, it reads its assigned
partitions, starts at the committed offsets (or as auto_offset_reset says), and can commit.

    position    the offset from which poll returns records next
    committed   the offset at which the group resumes after a restart

With auto_commit, each poll commits the records of earlier polls, and close commits the rest: a
record counts as processed once the program asks for more. Iteration commits after 500 records or
five seconds, at its end, and before a rebalance. A failed commit raises its error, unless the group
has rebalanced without this consumer. If a `with` block ends with an error, commit errors are
ignored, and the records of the last poll or the last record of an iteration stay uncommitted.

Partitions added to one of the consumer's topics are read too: group members read them after the
rebalance that the change triggers, and a consumer without a group reads them as soon as a poll
finds no records. After `assign`, the consumer has no topics, only partitions.

If a batch cannot be read (it is damaged on disk, or its producer sent it in an undecodable form),
poll raises `CorruptSegmentError` or `UndecodableBatchError`, unless it has other records to return
first. The error recurs until the program seeks to its `resume_offset`. With `on_unreadable="skip"`,
the consumer seeks there itself, logs a warning and adds the range of offsets to `skipped`; it still
raises errors that have no later `resume_offset`.

The consumer drops the partitions of a deleted topic. Without a group, it reads a new topic of the
same name from its start. If a read-only log sees only the new topic, poll raises
`UnknownTopicIdError` until the program seeks.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from strandlog.broker.groups.assignors import ASSIGNORS
from strandlog.client.arguments import (
    OffsetReset,
    OnUnreadable,
    check_auto_commit,
    check_max_records,
    check_on_unreadable,
    check_reset,
    check_timeout,
    checked_assignors,
    checked_offset,
    checked_partitions,
    checked_timestamp,
    iteration_timeout,
    reset_error,
)
from strandlog.client.arrow.rows import decode_rows
from strandlog.client.arrow.table import schema, table_of
from strandlog.client.cursor import NO_POSITION, Cursor, warn_of_reset
from strandlog.client.lifecycle import Closable, OpenCheck, state_of
from strandlog.client.record_source import (
    REBALANCED,
    ConsumerHost,
    Decode,
    GroupSubscription,
    RecordSource,
    decode_records,
)
from strandlog.client.stepped import Step
from strandlog.errors import (
    ClosedError,
    CorruptSegmentError,
    InvalidGroupError,
    NotOwnerError,
    OffsetOutOfRangeError,
    StrandlogError,
    TopicNotFoundError,
    UndecodableBatchError,
)
from strandlog.model import OffsetAndMetadata, Record, SkippedOffsets, TopicPartition
from strandlog.record.arrow.columns import are_available

if TYPE_CHECKING:
    from strandlog.client.embedded.membership import Membership

RESETS_PER_POLL = 3  # per partition, if its log start offset keeps moving; the next poll retries
SKIPS_PER_POLL = 100  # unreadable batches per partition; the next poll continues after them
SKIPS_REMEMBERED = 1000
ITERATION_COMMIT_RECORDS = 500  # the default max_records of poll
ITERATION_COMMIT_MS = 5_000  # Kafka's default for auto.commit.interval.ms
WAKE_UP_MS = 100  # a waiting poll sends heartbeats and runs maintenance this often
NOTHING_UNDELIVERED: Mapping[TopicPartition, int] = MappingProxyType({})

logger = logging.getLogger(__name__)


class Consumer(Closable):
    """A consumer, created by `Log.consumer` or `ReadOnlyLog.consumer`, for one thread at a time."""

    internal_names = frozenset(
        {
            "close_before",
            "commit_before",
            "forget_topic",
            "release",
            "step",
        }
    )

    def __init__(
        self,
        log: ConsumerHost,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        on_unreadable: OnUnreadable = "raise",
        consumer_timeout_ms: int | None = 0,
    ) -> None:
        check_on_unreadable(on_unreadable)
        self._iterates_ms = iteration_timeout(consumer_timeout_ms)
        check_reset(auto_offset_reset)
        check_auto_commit(group, auto_commit=auto_commit)
        offered = checked_assignors(assignors, ASSIGNORS)
        self._log = log
        self._source: RecordSource = log.source
        self._reset = auto_offset_reset
        self._auto_commit = auto_commit
        self._skips_unreadable = on_unreadable == "skip"
        self._skipped: deque[SkippedOffsets] = deque(maxlen=SKIPS_REMEMBERED)
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._turn = 0
        # The positions before the last step of an iteration, or [] if that step failed; None if
        # the last read was not an iteration.
        self._before_last: list[tuple[Cursor, int]] | None = None
        self._iterated = 0  # records returned by iteration since the last commit
        self._iterated_since_ms = 0
        self._membership: Membership | None = None
        self._simple_group: str | None = None
        self._is_closed = False
        self._is_open = OpenCheck(
            lambda: self._is_closed or log.is_closed, "consumer", lambda: log.is_forked
        )
        with self._is_open, self._log.lock, self._is_open:
            for topic in self._topics:
                self._source.partition_count(topic)
            self._start(group, offered, max_poll_interval_ms)

    def __repr__(self) -> str:
        state = state_of(self._log, is_closed=self._is_closed)
        return (
            f"<strandlog.Consumer of {self._log.path!r}, topics={self._topics!r}, "
            f"group={self.group!r}, {len(self._cursors)} partitions, {state}>"
        )

    def _start(self, group: str | None, assignors: list[str], max_poll_interval_ms: int) -> None:
        if group is None:
            self._take_over(self._all_partitions())
        elif self._topics:
            wish = GroupSubscription(
                group,
                self._topics,
                assignors,
                max_poll_interval_ms,
                self._take_over,
                self._is_settled,
                self._before_rejoin,
            )
            self._membership = self._log.join_group(wish)
            try:
                self._membership.step()
            except BaseException:
                self._leave()  # otherwise the group would keep a member that never polls
                raise
        else:
            self._simple_group = group

    def _all_partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition)
            for topic in self._topics
            for partition in range(self._source.partition_count(topic))
        ]

    # -- assignment ----------------------------------------------------------------------------

    @property
    def group(self) -> str | None:
        return self._membership.group if self._membership else self._simple_group

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned to this consumer."""
        with self._log.lock:
            return sorted(self._cursors)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the topics; a member leaves its group."""
        with self._is_open, self._log.lock, self._is_open:
            wanted = checked_partitions(partitions)
            for tp in wanted:
                self._source.offset_range(tp)
            if self._auto_commit:
                self._commit_if_member()
            self._simple_group = self.group
            self._leave()
            self._topics = []
            self._take_over(wanted)

    def _take_over(self, assignment: list[TopicPartition]) -> None:
        """Replace the assignment; partitions that remain assigned keep their positions."""
        kept = {tp: cursor for tp, cursor in self._cursors.items() if tp in assignment}
        self._cursors = kept
        self._committed = {tp: at for tp, at in self._committed.items() if tp in kept}
        for tp in assignment:
            if tp not in kept:
                position = self._first_position(tp)
                kept[tp] = Cursor(tp, position, self._source.topic_id(tp))

    def forget_topic(self, topic: str) -> None:
        """Drop the cursors of a deleted topic, so that a new topic of that name is read afresh."""
        self._take_over([tp for tp in self._cursors if tp.topic != topic])

    def _first_position(self, tp: TopicPartition) -> int:
        committed = self._fetch_committed(tp)
        start, end = self._source.offset_range(tp)
        if committed is not None:
            self._committed[tp] = committed
            if start <= committed <= end:
                return committed
        elif self.group is None and self._reset == "none":
            return start
        if self._reset == "none":
            return NO_POSITION if committed is None else committed  # the next poll raises the error
        position = start if self._reset == "earliest" else end
        if committed is not None:
            warn_of_reset(f"the committed offset {committed} of {tp}", start, end, position)
        return position

    def _reset_position(self, tp: TopicPartition, offset: int) -> int:
        start, end = self._source.offset_range(tp)
        if self._reset == "none":
            raise reset_error(self.group, tp, offset, start, end)
        position = start if self._reset == "earliest" else end
        warn_of_reset(f"the position {offset} of {tp}", start, end, position)
        return position

    def _fetch_committed(self, tp: TopicPartition) -> int | None:
        if self.group is None:
            return None
        return self._log.committed_offset(self.group, tp)

    # -- reading -------------------------------------------------------------------------------

    def poll(self, max_records: int = 500, timeout_ms: int = 0) -> list[Record]:
        """Return up to `max_records` records; wait up to `timeout_ms` for the first one."""
        return cast(list[Record], self._read(max_records, timeout_ms, decode_records))

    def _read(
        self, max_records: int, timeout_ms: int, decode: Decode, *, is_iteration: bool = False
    ) -> Any:
        """Poll for records and decode them with `decode`; return [] if there are none."""
        check_max_records(max_records)
        check_timeout(timeout_ms)
        began_at: list[tuple[Cursor, int]] = []
        try:
            with self._is_open, self._log.lock, self._is_open:
                self._before_last = [] if is_iteration else None
                records = self._poll(max_records, timeout_ms, began_at, decode)
                if is_iteration:
                    self._before_last = began_at
                    self._iterated += len(records)
                return records
        except StrandlogError:
            raise
        except BaseException:
            with self._is_open, self._log.lock, self._is_open:
                for cursor, position in reversed(began_at):
                    cursor.seek(position)  # the interrupted poll has returned no records
            raise

    def _poll(
        self,
        max_records: int,
        timeout_ms: int,
        began_at: list[tuple[Cursor, int]],
        decode: Decode,
    ) -> Any:
        deadline_ms = self._log.clock.monotonic_ms() + timeout_ms
        while True:
            self._log.tick()
            if self._auto_commit and not self._commits_later():
                self._commit_if_member()
            if self._membership is not None:
                self._membership.step()
            began_at.clear()
            records = self._take(max_records, began_at, decode) if self._is_member() else []
            if not records and self._find_new_partitions():
                continue
            left_ms = deadline_ms - self._log.clock.monotonic_ms()
            if records or left_ms <= 0:
                return records
            self._log.wait(min(left_ms, WAKE_UP_MS))
            if self._is_closed or self._log.is_closed:
                raise ClosedError("consumer")

    def poll_arrow(self, max_records: int = 100_000, timeout_ms: int = 0) -> Any:
        """Poll for records and return them as an Arrow table (see arrow/table.py)."""
        schema()  # raises if pyarrow is missing, before any records are consumed
        if not are_available():
            return table_of(self.poll(max_records, timeout_ms))
        rows = self._read(max_records, timeout_ms, decode_rows)
        return rows.table() if rows else table_of([])

    def step(
        self,
        max_records: int,
        *,
        is_first: bool,
        is_iteration: bool = False,
        wait_ms: int = 0,
    ) -> Step:
        """Poll without waiting, for the asyncio API (stepped.py)."""
        del is_first, wait_ms
        records = self._read(max_records, 0, decode_records, is_iteration=is_iteration)
        if records:
            return Step(records)
        with self._log.lock:
            return Step([], None, self._is_member(), frozenset(self._cursors))

    def _is_member(self) -> bool:
        """Return whether the assignment is valid; true for a consumer that is not a member."""
        return self._membership is None or self._membership.is_member

    def _find_new_partitions(self) -> bool:
        """Add partitions created since the last check, at their start; return whether there were
        any. Do nothing with a group."""
        if self.group is not None:
            return False
        found = False
        for topic in self._topics:
            with contextlib.suppress(TopicNotFoundError):
                for number in range(self._source.partition_count(topic)):
                    tp = TopicPartition(topic, number)
                    if tp not in self._cursors:
                        start, _ = self._source.offset_range(tp)
                        self._cursors[tp] = Cursor(tp, start, self._source.topic_id(tp))
                        found = True
        return found

    def _take(self, max_records: int, began_at: list[tuple[Cursor, int]], decode: Decode) -> Any:
        """Read the partitions round robin; add each cursor and its old position to `began_at`."""
        cursors = list(self._cursors.values())
        if not cursors:
            return []
        self._turn = (self._turn + 1) % len(cursors)
        records: Any = []
        for cursor in cursors[self._turn :] + cursors[: self._turn]:
            wanted = max_records - len(records)
            if not wanted:
                break
            began_at.append((cursor, cursor.position))
            try:
                found = self._take_from(cursor, wanted, decode)
            except TopicNotFoundError:
                del self._cursors[cursor.tp]  # the topic was deleted
                continue
            except StrandlogError:
                if records:
                    return records  # the error recurs when a poll reads this partition first
                raise
            if found:
                records = records + found if records else found
        return records

    def _take_from(self, cursor: Cursor, count: int, decode: Decode) -> Any:
        resets = skips = 0
        while resets < RESETS_PER_POLL and skips < SKIPS_PER_POLL:
            try:
                return cursor.take(self._source, count, decode)
            except OffsetOutOfRangeError as error:
                # Retention or DeleteRecords moved the log start offset, and it may move again
                # before the next read.
                cursor.seek(self._reset_position(cursor.tp, error.offset))
                resets += 1
            except (CorruptSegmentError, UndecodableBatchError) as error:
                if not self._skips_unreadable:
                    raise
                self._skip(cursor, error)
                skips += 1
        return []

    def _skip(self, cursor: Cursor, error: CorruptSegmentError | UndecodableBatchError) -> None:
        """Seek past an unreadable batch and log a warning; raise if no later offset is known."""
        resume_offset = error.resume_offset
        if resume_offset is None or resume_offset <= cursor.position:
            raise error
        skipped = SkippedOffsets(*cursor.tp, cursor.position, resume_offset - 1, str(error))
        logger.warning(
            "skipped offsets %d to %d of %s: %s",
            skipped.first_offset,
            skipped.last_offset,
            cursor.tp,
            error,
        )
        self._skipped.append(skipped)
        cursor.seek(resume_offset)

    @property
    def skipped(self) -> list[SkippedOffsets]:
        """The last 1,000 offset ranges skipped because of `on_unreadable="skip"`."""
        return list(self._skipped)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; stop the iteration after `consumer_timeout_ms` without one."""
        found = self._read(1, self._iterates_ms, decode_records, is_iteration=True)
        records = cast(list[Record], found)
        if records:
            return records[0]
        if self._auto_commit:
            with self._is_open, self._log.lock, self._is_open:
                self._commit_if_member()
        raise StopIteration

    # -- positions -----------------------------------------------------------------------------

    def position(self, topic: str, partition: int) -> int:
        """Return the offset from which the next poll reads this partition."""
        with self._is_open, self._log.lock, self._is_open:
            cursor = self._cursor(topic, partition)
            if cursor.position == NO_POSITION:
                self._reset_position(cursor.tp, NO_POSITION)
            return cursor.position

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move to an offset; raise `OffsetOutOfRangeError` if it is outside the valid range."""
        with self._is_open, self._log.lock, self._is_open:
            cursor = self._cursor(topic, partition)
            valid = self._source.offset_range(cursor.tp)
            cursor.seek_in(self._source, checked_offset(offset, cursor.tp, *valid))

    def seek_all(self, offset: int) -> None:
        """Move all partitions to an offset, or to the nearest valid one."""
        with self._is_open, self._log.lock, self._is_open:
            for cursor in self._cursors.values():
                start, end = self._source.offset_range(cursor.tp)
                cursor.seek_in(self._source, min(max(offset, start), end))

    def seek_to_time(self, timestamp_ms: int) -> None:
        """Move each partition to its first record at or after a time, or else to its end."""
        with self._is_open, self._log.lock, self._is_open:
            self._log.make_visible(list(self._cursors))
            for cursor in self._cursors.values():
                found = self._source.find_timestamp(cursor.tp, checked_timestamp(timestamp_ms))
                end = self._source.readable_end(cursor.tp)
                cursor.seek_in(self._source, end if found is None else found.offset)

    def _cursor(self, topic: str, partition: int) -> Cursor:
        tp = TopicPartition(topic, partition)
        cursor = self._cursors.get(tp)
        if cursor is None:
            self._source.offset_range(tp)
            raise NotOwnerError(f"{tp} is not assigned to this consumer; see consumer.assignment")
        return cursor

    # -- committing ----------------------------------------------------------------------------

    def commit(self) -> dict[TopicPartition, int]:
        """Commit the current positions durably for the group; return the changed offsets."""
        return self.commit_before(NOTHING_UNDELIVERED)

    def commit_before(self, undelivered: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit the positions; for partitions in `undelivered`, commit the offset given there."""
        with self._is_open, self._log.lock, self._is_open:
            if self.group is None:
                raise InvalidGroupError(None, "commit requires a group; pass group=… to consumer()")
            if self._membership is not None and not self._membership.is_member:
                self._membership.step()  # the group may have completed a rebalance
            return self._commit_consumed(undelivered)

    def _commit_consumed(
        self, undelivered: Mapping[TopicPartition, int] = NOTHING_UNDELIVERED
    ) -> dict[TopicPartition, int]:
        positions = {
            tp: undelivered.get(tp, cursor.position) for tp, cursor in self._cursors.items()
        }
        changed = {
            tp: position
            for tp, position in positions.items()
            if self._committed.get(tp) != position != NO_POSITION
        }
        self._iterated = 0
        if not changed:
            return {}
        offsets = {tp: OffsetAndMetadata(offset) for tp, offset in changed.items()}
        for tp in changed:
            self._committed.pop(tp, None)  # unknown until the commit succeeds
        if self._membership is not None:
            self._membership.commit(offsets)
        else:
            assert self._simple_group is not None
            self._log.commit_offsets(self._simple_group, changed)
        self._committed.update(changed)
        for tp, offset in changed.items():
            self._cursors[tp].settled_at = offset
        return changed

    def _commit_if_member(
        self, undelivered: Mapping[TopicPartition, int] = NOTHING_UNDELIVERED
    ) -> None:
        with contextlib.suppress(*(REBALANCED if self._membership is not None else ())):
            self._commit_consumed(undelivered)

    def _commits_later(self) -> bool:
        """Return whether iteration postpones this commit; each commit costs an fsync."""
        if self._before_last is None:
            return False
        now_ms = self._log.clock.monotonic_ms()
        if not self._iterated:
            self._iterated_since_ms = now_ms
        is_due = now_ms - self._iterated_since_ms >= ITERATION_COMMIT_MS
        return self._iterated < ITERATION_COMMIT_RECORDS and not is_due

    def _before_rejoin(self) -> None:
        """Make the commit that iteration has postponed: the rebalance may revoke partitions."""
        if self._auto_commit and self._before_last is not None:
            self._commit_if_member()

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed offset of a partition, or None if there is none."""
        with self._is_open, self._log.lock, self._is_open:
            tp = TopicPartition(topic, partition)
            self._source.offset_range(tp)
            return self._fetch_committed(tp)

    def _is_settled(self) -> bool:
        return all(cursor.is_settled for cursor in self._cursors.values())

    # -- close ---------------------------------------------------------------------------------

    def _leave(self) -> None:
        if self._membership is not None:
            membership, self._membership = self._membership, None
            self._log.leave_group(membership)

    def close(self) -> None:
        """Make a final commit if auto_commit is set, then leave the group. Idempotent."""
        self.close_before(NOTHING_UNDELIVERED)

    def close_before(self, undelivered: Mapping[TopicPartition, int]) -> None:
        """Close; the final auto-commit excludes the records at or after these offsets."""
        if self._log.is_closed:
            self._is_closed = True
        if self._is_closed:
            return
        with self._log.lock:
            try:
                if self._auto_commit and not self._log.is_closed:
                    self._commit_if_member(undelivered)
            finally:
                self.release()

    def release(self) -> None:
        """Leave the group and close, without a commit."""
        self._is_closed = True
        if self._log.is_closed:
            return
        with self._log.lock:
            if not self._log.is_closed:
                self._leave()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            if self._auto_commit and self._before_last is not None and not self._is_closed:
                with (
                    contextlib.suppress(StrandlogError),
                    self._is_open,
                    self._log.lock,
                    self._is_open,
                ):
                    for cursor, position in reversed(self._before_last):
                        cursor.seek(position)  # exclude the record that the program was processing
                    self._commit_if_member()
        finally:
            self.release()
