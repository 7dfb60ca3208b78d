"""Consumes from a broker through librdkafka, either standalone or as a member of a group.

It behaves like the embedded consumer (client/consumer.py): `position` is the offset from which poll
returns records next, and only `commit` and auto_commit commit positions. librdkafka's own
offset store and auto-commit are disabled; it starts at the offsets that this consumer passes to it.

    poll(timeout_ms=0)   returns the available records, which takes a round trip. It first waits for
                         the group to assign partitions, and returns an empty list only after it
                         has reached the end of every partition. If this takes longer than the
                         log's `timeout_ms`, it raises an error
    poll(timeout_ms=N)   waits at most N ms for the first record

    assign, seek         take effect in the next poll, which passes all changes to librdkafka
    rebalance            happens inside poll, and inside `position` and the seek methods while the
                         consumer waits for its assignment. New partitions start at the
                         group's committed offset, or as auto_offset_reset says. With auto_commit,
                         the consumer commits its positions before it gives up partitions, unless
                         it has already lost them

A failed auto-commit raises no error, and the next commit includes its offsets. The consumer logs
the failure, unless the group has rebalanced or the last logged failure was of the same kind.

A consumer without a group does not read partitions that are added after it was created.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from strandlog.client.arguments import (
    OffsetReset,
    check_auto_commit,
    check_max_records,
    check_reset,
    check_timeout,
    checked_assignors,
    checked_offset,
    checked_partitions,
    checked_timestamp,
    iteration_timeout,
    reset_error,
)
from strandlog.client.arrow.table import schema, table_of
from strandlog.client.lifecycle import Closable, state_of
from strandlog.client.record_source import REBALANCED
from strandlog.client.remote.errors import (
    AUTO_OFFSET_RESET,
    BAD_COMPRESSION,
    BAD_MESSAGE,
    PARTITION_EOF,
    UNREACHABLE,
    check_names,
    confluent,
    error_of,
    translated,
)
from strandlog.client.remote.groups import RemoteOffsets
from strandlog.client.remote.login import Login
from strandlog.client.remote.positions import NO_POSITION, Progress
from strandlog.client.stepped import Step
from strandlog.errors import (
    ClosedError,
    InvalidGroupError,
    NotOwnerError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    RemoteError,
    StrandlogError,
    TopicNotFoundError,
    UndecodableBatchError,
    UnreachableError,
)
from strandlog.model import Record, TopicPartition

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

SLICE_MS = 100  # interval between checks for Ctrl-C
NO_GROUP = "strandlog-without-a-group"  # librdkafka requires a group id; nothing is committed
GROUP_AUTHORIZATION_FAILED = 30
COOPERATIVE = "cooperative-sticky"
ASSIGNORS = ("range", "roundrobin", COOPERATIVE)

logger = logging.getLogger(__name__)


class RemoteConsumer(Closable):
    """A consumer, created by `RemoteLog.consumer`. Only one thread at a time may use it."""

    internal_names = frozenset(
        {
            "close_before",
            "commit_before",
            "release",
            "step",
        }
    )

    def __init__(
        self,
        log: RemoteLog,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        consumer_timeout_ms: int | None = 0,
    ) -> None:
        self._iterates_ms = iteration_timeout(consumer_timeout_ms)
        check_reset(auto_offset_reset)
        check_auto_commit(group, auto_commit=auto_commit)
        offered = checked_assignors(assignors, ASSIGNORS)
        check_names(group=group)
        self._log = log
        self.group = group
        self._reset = auto_offset_reset
        self._auto_commit = auto_commit
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        counts = {topic: log.partition_count(topic, "READ") for topic in self._topics}
        config = {
            "group.id": group or NO_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error" if auto_offset_reset == "none" else auto_offset_reset,
            "partition.assignment.strategy": ",".join(offered),
            "max.poll.interval.ms": max_poll_interval_ms,
            "fetch.queue.backoff.ms": 10,  # the default is one second
            "check.crcs": True,  # otherwise damaged records would be delivered
            **({"on_commit": self._on_commit} if auto_commit else {}),
            **log.client_config,
        }
        self._is_cooperative = config["partition.assignment.strategy"] == COOPERATIVE
        self._login = Login(confluent().Consumer, config, log.credentials)
        self._client = self._login.client
        self._offsets = RemoteOffsets(log, self._client, group)
        self._progress = Progress()
        self._failure: StrandlogError | None = None
        # The kind of error last logged; None after a successful auto-commit.
        self._commit_error: type[StrandlogError] | None = None
        self._is_member = group is not None and bool(self._topics)
        self._has_share = not self._is_member
        self._is_closed = False
        if self._is_member:
            with translated(group=group):
                self._client.subscribe(
                    self._topics,
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_lost,
                )
        else:
            self._take_over(
                [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]
            )

    def __repr__(self) -> str:
        state = state_of(self._log, is_closed=self._is_closed)
        return (
            f"<strandlog.RemoteConsumer of {self._log.bootstrap!r}, topics={self._topics!r}, "
            f"group={self.group!r}, {len(self._progress.positions)} partitions, {state}>"
        )

    # -- assignment ----------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned to this consumer."""
        return sorted(self._progress.positions)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the topics; a member leaves its group."""
        self._check_open()
        wanted = checked_partitions(partitions)
        self._check_exist(wanted)
        if self._is_member:
            if self._auto_commit:
                self._commit_quietly()
            with translated(group=self.group):
                self._client.unsubscribe()
                self._client.unassign()
            self._is_member, self._has_share = False, True
        self._take_over(wanted)

    def _check_exist(self, tps: Iterable[TopicPartition]) -> None:
        counts: dict[str, int] = {}
        for topic, partition in tps:
            if topic not in counts:
                counts[topic] = self._log.partition_count(topic, "READ")
            if not 0 <= partition < counts[topic]:
                raise TopicNotFoundError(topic, partition, counts[topic])

    def _take_over(self, tps: list[TopicPartition]) -> None:
        """Replace the assignment, keeping the positions of partitions that remain assigned."""
        held = self._progress.positions
        self._progress.forget(held.keys() - tps)
        kept = {tp: at for tp, at in held.items() if tp in tps}
        self._progress.move(kept | self._first_positions([tp for tp in tps if tp not in kept]))

    def _first_positions(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        if not tps:
            return {}
        committed = self._offsets.fetch(tps)
        self._progress.committed |= committed
        unknown = [tp for tp in tps if tp not in committed]
        if self._reset == "none" and self.group is not None:
            return committed | dict.fromkeys(unknown, NO_POSITION)  # the next poll raises the error
        ranges = self._log.offset_ranges(unknown)
        side = 1 if self._reset == "latest" else 0
        return committed | {tp: ranges[tp][side] for tp in unknown}

    # -- rebalances, inside poll ---------------------------------------------------------------

    def _on_assign(self, client: Any, partitions: list[Any]) -> None:
        tps = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        try:
            starts = self._first_positions(tps)
        except StrandlogError as error:
            # An error raised in this callback would be lost, so poll raises it later. Until then,
            # librdkafka chooses the positions.
            self._failure = error
            starts = dict.fromkeys(tps, NO_POSITION)
        self._progress.move(starts)
        self._progress.moved.clear()
        if self._is_cooperative:
            client.incremental_assign(self._progress.starts(tps))
        else:
            client.assign(self._progress.starts(tps))
        self._has_share = True

    def _on_revoke(self, client: Any, partitions: list[Any]) -> None:
        if self._auto_commit:
            self._commit_quietly()
        self._on_lost(client, partitions)

    def _on_lost(self, client: Any, partitions: list[Any]) -> None:
        del client
        tps = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        self._progress.forget(tps)
        self._has_share = self._is_cooperative

    def _apply_moves(self) -> None:
        """Pass changed positions to librdkafka."""
        progress = self._progress
        if not progress.moved:
            return
        moved, progress.moved = progress.moved, set()
        with translated(group=self.group):
            if self._is_cooperative and self._is_member:
                starts = progress.starts(moved)
                self._client.incremental_unassign(starts)
                self._client.incremental_assign(starts)
            else:
                self._client.assign(progress.starts(progress.positions))
                # librdkafka restarts all partitions and reports their ends again.
                progress.at_end.clear()

    # -- reading -------------------------------------------------------------------------------

    def poll(self, max_records: int = 500, timeout_ms: int = 0) -> list[Record]:
        """Return up to `max_records` records; see the module docstring for `timeout_ms`."""
        check_max_records(max_records)
        check_timeout(timeout_ms)
        self._begin_poll()
        deadline_ms = self._log.clock.monotonic_ms() + (timeout_ms or self._log.timeout_ms)
        while True:
            left_ms = deadline_ms - self._log.clock.monotonic_ms()
            records = self._look(max_records, max(0, min(left_ms, SLICE_MS)))
            if records or (not timeout_ms and self._is_at_end()):
                return records
            if left_ms <= 0 and self._failure is None:
                if timeout_ms:
                    return []
                raise self._timeout_error()

    def _begin_poll(self) -> None:
        self._check_open()
        if self._auto_commit:
            self._commit_later()

    def _look(self, max_records: int, wait_ms: int) -> list[Record]:
        """Return records that have arrived, waiting up to `wait_ms`; raise a pending error."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._apply_moves()
        return self._take(max_records, wait_ms)

    def _is_at_end(self) -> bool:
        return self._has_share and self._progress.is_all_read

    def step(
        self,
        max_records: int,
        *,
        is_first: bool,
        is_iteration: bool = False,
        wait_ms: int = 0,
    ) -> Step:
        """Poll for up to `wait_ms`, for the asyncio API (client/stepped.py)."""
        del is_iteration
        if is_first:
            self._begin_poll()
        else:
            self._check_open()
        records = self._look(max_records, wait_ms)
        if not records and self._failure is not None:
            records = self._look(max_records, 0)  # raises the failure
        if records:
            return Step(records)
        error = None if self._is_at_end() else self._timeout_error()
        return Step([], error, self._has_share)

    def _timeout_error(self) -> StrandlogError:
        seconds = self._log.timeout_ms / 1000
        if not self._has_share:
            return RebalanceInProgressError(
                f"group {self.group!r} did not complete its rebalance within {seconds:g} s; "
                f"poll again, or look for members that do not respond"
            )
        silent = ", ".join(
            map(str, sorted(self._progress.positions.keys() - self._progress.at_end)[:3])
        )
        return UnreachableError(
            f"no response from {self._log.bootstrap} for {silent} within {seconds:g} s"
        )

    def poll_arrow(self, max_records: int = 100_000, timeout_ms: int = 0) -> Any:
        """Poll for records and return them as an Arrow table (see arrow/table.py)."""
        schema()  # raises if pyarrow is missing, before any records are consumed
        return table_of(self.poll(max_records, timeout_ms))

    def _take(self, count: int, wait_ms: int) -> list[Record]:
        """Return records that have arrived, or wait up to `wait_ms` for the next ones."""
        with translated(
            group=self.group, to=self._log.bootstrap, needs="READ", principal=self._log.principal
        ):
            ahead = self._progress.ahead
            if ahead:
                messages, self._progress.ahead = ahead[:count], ahead[count:]
            else:
                messages = self._client.consume(count, 0)
            if not messages:
                first = self._client.poll(wait_ms / 1000)
                if first is not None:
                    messages = [first, *(self._client.consume(count - 1, 0) if count > 1 else ())]
        if messages:
            self._login.succeeded()
        self._login.check()
        return self._progress.records_of(messages, self._note_event)

    def _note_event(self, tp: TopicPartition, message: Any) -> None:
        """Handle an event: the end of a partition, an error, or a record that cannot be read."""
        error = message.error()
        if error is None:
            offset, reason = message.offset(), "the name of a header is not UTF-8"
            self._failure = UndecodableBatchError(*tp, offset, offset, reason)
            return
        code = error.code()
        if code == PARTITION_EOF:
            self._progress.note_end(tp, message.offset())
        elif code == GROUP_AUTHORIZATION_FAILED and self.group is None:
            return  # librdkafka tries to fetch the offsets of NO_GROUP, which are not needed
        elif code == AUTO_OFFSET_RESET and tp in self._progress.positions:
            self._failure = self._reset_error(tp)
            # Makes librdkafka report the error again, so that poll raises until the program seeks.
            self._progress.move({tp: self._progress.positions[tp]})
        elif code in (BAD_COMPRESSION, BAD_MESSAGE):
            position = self._progress.positions.get(tp, message.offset())
            self._failure = RemoteError(
                f"{tp}: cannot decode the batch at offset {position} ({error.str()}); seek past "
                f"its last offset, which 'strandlog log dump' shows",
                code,
            )
        elif code not in UNREACHABLE and self._failure is None:
            # Ignore connection errors: librdkafka retries, and the callers enforce a timeout.
            self._failure = error_of(
                error, topic=tp.topic, group=self.group, needs="READ", principal=self._log.principal
            )

    def _reset_error(self, tp: TopicPartition) -> OffsetOutOfRangeError:
        start, end = self._log.offset_ranges([tp])[tp]
        return reset_error(self.group, tp, self._progress.positions[tp], start, end)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; stop the iteration after `consumer_timeout_ms` without one."""
        records = self.poll(max_records=1, timeout_ms=self._iterates_ms)
        if not records:
            raise StopIteration
        return records[0]

    # -- positions -----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until the group has assigned partitions, keeping any records that arrive."""
        self._check_open()
        deadline_ms = self._log.clock.monotonic_ms() + self._log.timeout_ms
        while not self._has_share:
            with translated(
                group=self.group,
                to=self._log.bootstrap,
                needs="READ",
                principal=self._log.principal,
            ):
                message = self._client.poll(SLICE_MS / 1000)
            if message is not None:
                self._progress.ahead.append(message)
            self._login.check()
            if self._log.clock.monotonic_ms() >= deadline_ms:
                raise self._timeout_error()

    def position(self, topic: str, partition: int) -> int:
        """Return the offset from which the next poll reads this partition."""
        tp = self._own(topic, partition)
        at = self._progress.positions[tp]
        if at == NO_POSITION:
            at = self._first_positions([tp])[tp]
            if at == NO_POSITION:
                raise self._reset_error(tp)
        return at

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Move to an offset; raise `OffsetOutOfRangeError` if it is outside the valid range."""
        tp = self._own(topic, partition)
        start, end = self._log.offset_ranges([tp])[tp]
        self._progress.move({tp: checked_offset(offset, tp, start, end)})

    def seek_all(self, offset: int) -> None:
        """Move all partitions to an offset, or to the nearest valid one."""
        self._settle()
        ranges = self._log.offset_ranges(self._progress.positions)
        self._progress.move(
            {tp: min(max(offset, start), end) for tp, (start, end) in ranges.items()}
        )

    def seek_to_time(self, timestamp_ms: int) -> None:
        """Move each partition to its first record at or after a time, or else to its end."""
        self._settle()
        time_ms = checked_timestamp(timestamp_ms)
        self._progress.move(self._log.offsets_at(self._progress.positions, time_ms))

    def _own(self, topic: str, partition: int) -> TopicPartition:
        self._settle()
        tp = TopicPartition(topic, partition)
        if tp not in self._progress.positions:
            self._check_exist([tp])
            raise NotOwnerError(f"{tp} is not assigned to this consumer; see consumer.assignment")
        return tp

    # -- committing ----------------------------------------------------------------------------

    def commit(self) -> dict[TopicPartition, int]:
        """Commit the current positions for the group; return the changed offsets."""
        return self.commit_before({})

    def commit_before(self, undelivered: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit the positions; for partitions in `undelivered`, commit the offset given there."""
        self._check_open()
        if self.group is None:
            raise InvalidGroupError(None, "commit requires a group; pass group=… to consumer()")
        return self._commit_positions(undelivered)

    def _commit_positions(
        self, undelivered: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> dict[TopicPartition, int]:
        changed = self._progress.uncommitted(undelivered)
        if not changed:
            return {}
        self._offsets.commit(changed)
        self._progress.committed |= changed
        return changed

    def _commit_later(self) -> None:
        changed = self._progress.uncommitted() if self._has_share else {}
        if changed:
            try:
                self._offsets.commit_later(changed)
            except StrandlogError as error:
                self._report(error)
            else:
                self._progress.committed |= changed

    def _commit_quietly(
        self, undelivered: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> None:
        try:
            self._commit_positions(undelivered)
        except StrandlogError as error:
            self._report(error)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        """Handle the result of `commit_later`; the next commit includes the offsets that failed."""
        failures = [(tp, tp.error if error is None else error) for tp in partitions]
        failures = [(tp, failure) for tp, failure in failures if failure is not None]
        for tp, _ in failures:
            self._progress.committed.pop(TopicPartition(tp.topic, tp.partition), None)
        if failures:
            self._report(
                error_of(
                    failures[0][1], group=self.group, needs="READ", principal=self._log.principal
                )
            )
        else:
            self._commit_error = None

    def _report(self, error: StrandlogError) -> None:
        """Log the error of an auto-commit, unless the new owners of the partitions read the records
        again, or the same kind of error was the last one logged."""
        is_reread = self._is_member and isinstance(error, REBALANCED)
        if not is_reread and type(error) is not self._commit_error:
            self._commit_error = type(error)
            logger.warning("auto-commit failed: %s", error)

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed offset of a partition, or None if there is none."""
        self._check_open()
        tp = TopicPartition(topic, partition)
        self._check_exist([tp])
        return self._offsets.fetch([tp]).get(tp)

    # -- close ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed or self._log.is_closed:
            raise ClosedError("consumer")

    def close(self) -> None:
        """Make a final commit if auto_commit is set, then leave the group. Idempotent."""
        self.close_before({})

    def close_before(self, undelivered: Mapping[TopicPartition, int]) -> None:
        """Close; the final auto-commit excludes the records at or after these offsets."""
        if not self._is_closed and self._auto_commit:
            self._commit_quietly(undelivered)
        self.release()

    def release(self) -> None:
        """Leave the group and close, without a commit."""
        if not self._is_closed:
            self._is_closed = True
            self._auto_commit = False  # leaving the group calls _on_revoke, which must not commit
            self._client.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.release()
