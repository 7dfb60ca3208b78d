"""The facade: a folder opened, its topics, groups and chores wired together.

Everything here is synchronous and belongs to one thread at a time. Time, disk and chance come in
through the constructor. `tick` drives what waits for time (group sessions, chores); `next_due_ms`
says when it should be called.

The table of groups and offsets lives in the compacted topic `__consumer_offsets`, which is made
when the first group needs it: a program that uses no groups has no such folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from strandlog.broker.catalog import Catalog, Topic
from strandlog.broker.group_coordinator import GroupCoordinator
from strandlog.broker.internal_topic import Entry, InternalTopic, group_partition
from strandlog.broker.metrics import Metrics
from strandlog.broker.topic_rules import OFFSETS_TOPIC, check_not_internal, check_topic_name
from strandlog.broker.upkeep import Upkeep
from strandlog.clock import Clock
from strandlog.config.broker_settings import BrokerSettings, broker_settings
from strandlog.errors import (
    CorruptSegmentError,
    DiskFullError,
    InvalidRecordError,
    StorageError,
    StrandlogError,
)
from strandlog.model import TopicPartition
from strandlog.protocol.group_records import GroupKey, OffsetKey, decode_key
from strandlog.record.batch import BatchView
from strandlog.record.builder import build_batch
from strandlog.storage.batch_checks import check_batch, split_batches
from strandlog.storage.batch_reader import checked_batches
from strandlog.storage.files import Buffer, Files
from strandlog.storage.log_dir import LogDir, LogDirOptions
from strandlog.storage.partition_log import AppendResult, PartitionLog
from strandlog.storage.partition_reads import read
from strandlog.storage.steps import Steps, do_here

REPLAY_BYTES = 1024 * 1024
FREE_SPACE_LOOK_BYTES = 8 * 1024 * 1024
IN_PROCESS_HOST = "in-process"


class OffsetsTopic:
    """`__consumer_offsets` as the coordinator's table; made at the first write."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(self, records: Sequence[Entry], timestamp_ms: int) -> None:
        """Keep the records: on disk when this returns, unless somebody else sees to that."""
        self._broker.ensure_offsets_topic()
        self._table().append(records, timestamp_ms)

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        if OFFSETS_TOPIC in self._broker.catalog:
            yield from self._table().replay()

    def _table(self) -> InternalTopic:
        logs = self._broker.catalog.logs(OFFSETS_TOPIC)
        partitions = [_TableLog(log, self._broker) for log in logs]
        return InternalTopic(partitions, lambda key: _partition_of(key, len(logs)))


def _partition_of(key: bytes, count: int) -> int:
    match decode_key(key):
        case GroupKey(group=group) | OffsetKey(group=group):
            return group_partition(group, count)
        case _:
            raise AssertionError("a coordinator writes only its own kinds of records")


class _TableLog:
    """One partition of an internal topic."""

    def __init__(self, log: PartitionLog, broker: Broker) -> None:
        self._log = log
        self._broker = broker

    def append(self, records: Sequence[Entry], timestamp_ms: int) -> None:
        keys = [key for key, _ in records]
        values = [value for _, value in records]
        with self._broker.catalog.changing(self._log):
            self._log.append(build_batch(timestamp_ms, values, keys))
            if self._broker.offsets_written is not None:
                self._broker.offsets_written(self._log)
            elif self._broker.settings.fsyncs:
                self._log.flush()

    def replay(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Every record that can be read. One flipped bit must not lock everybody out of the log: a
        damaged commit is reported, and its group goes on from the commit before it."""
        log, offset = self._log, self._log.log_start_offset
        while offset < log.log_end_offset:
            began_at = offset
            try:
                data = read(log, offset, REPLAY_BYTES, unflushed=True)
                if not data:
                    return
                for batch in checked_batches(
                    data, path=str(log.tp), offset=offset, end_offset=log.log_end_offset
                ):
                    for record in batch.records(*log.tp, from_offset=offset):
                        yield record.key, record.value
                    offset = batch.header.next_offset
            except CorruptSegmentError as damage:
                if offset > began_at:
                    continue  # only a read that begins with the damage knows where it ends
                self._broker.log_dir.problems.append(f"commits of groups were lost: {damage}")
                if damage.resume_offset is None or damage.resume_offset <= offset:
                    return
                offset = damage.resume_offset


class Broker:
    """One data folder at work."""

    def __init__(
        self,
        path: str,
        files: Files,
        clock: Clock,
        new_uuid: Callable[[], UUID],
        settings: BrokerSettings | None = None,
    ) -> None:
        self.settings = settings or broker_settings()
        self.clock = clock
        self.metrics = Metrics()
        # Whoever syncs elsewhere is told here about writes to the offsets topic; else they are
        # synced at once.
        self.offsets_written: Callable[[PartitionLog], None] | None = None
        options = LogDirOptions(
            self.settings.fsyncs,
            self.settings.log_segment_cache_size,
            self.settings.log_max_open_files,
            self.settings.decompressed_max_bytes,
        )
        self.log_dir = LogDir(path, files, clock, new_uuid, options)
        try:
            self.catalog = Catalog(self.log_dir, self.settings, new_uuid)
            self.groups = GroupCoordinator(
                self.settings, clock, OffsetsTopic(self), lambda: str(new_uuid())
            )
            self.groups.load()
            self._forget_members_of_old_processes()
            self.upkeep = Upkeep(self.log_dir, self.catalog, self.settings, clock, self.metrics)
        except BaseException:
            self.log_dir.abandon()
            raise
        self._bytes_until_look = 0
        self.is_closed = False

    def _forget_members_of_old_processes(self) -> None:
        """Members that lived inside the last owner died with it; nobody need wait for them."""
        for listing in self.groups.list_groups():
            for member in self.groups.describe(listing.group_id).members:
                if member.client_host == IN_PROCESS_HOST:
                    self.groups.leave(listing.group_id, member.member_id)

    @property
    def problems(self) -> list[str]:
        """What the start found wrong, and what was done about it; what chores cannot do."""
        found = [*self.log_dir.problems, *self.upkeep.failures]
        for log in self.log_dir.logs.values():
            report = log.last_report
            if report.torn_bytes:
                found.append(f"{log.tp}: a torn tail of {report.torn_bytes} bytes was cut off")
            found += [f"{log.tp}: {problem}" for problem in report.problems]
        return found

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Make a topic, of which no group remembers anything."""
        return do_here(self.creating_topic(name, partitions, config))

    def creating_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Steps[Topic]:
        """The same in steps."""
        check_not_internal(check_topic_name(name))
        if name not in self.catalog:
            # A crash or a full disk may have kept `delete_topic` from it.
            self.groups.forget_topic(name)
        return (yield from self.catalog.creating(name, partitions, config))

    def delete_topic(self, name: str) -> None:
        """Remove a topic and what the groups remember of it."""
        do_here(self.deleting_topic(name))

    def deleting_topic(self, name: str) -> Steps[None]:
        """The same in steps; it is gone after the first."""
        check_not_internal(check_topic_name(name))
        yield from self.catalog.deleting(name)
        with contextlib.suppress(StorageError):  # it is gone; `create_topic` tries again
            self.groups.forget_topic(name)

    def add_partitions(self, name: str, count: int) -> Topic:
        """Let a topic grow."""
        return do_here(self.adding_partitions(name, count))

    def adding_partitions(self, name: str, count: int) -> Steps[Topic]:
        """The same in steps."""
        check_not_internal(name)  # the partition of a group follows from their number
        return (yield from self.catalog.adding_partitions(name, count))

    def ensure_offsets_topic(self) -> None:
        """Make the table of groups and offsets unless it is there."""
        if OFFSETS_TOPIC not in self.catalog:
            config = {
                "cleanup.policy": "compact",
                "segment.bytes": self.settings.offsets_topic_segment_bytes,
            }
            self.catalog.create(OFFSETS_TOPIC, self.settings.offsets_topic_num_partitions, config)

    # -- records -------------------------------------------------------------------------------

    def append(self, log: PartitionLog, data: Buffer) -> AppendResult:
        """Append whole batches to a partition; "written" when this returns."""
        self._check_before_append(log, data)
        return self._append(log, data)

    def append_all(self, parts: Sequence[tuple[PartitionLog, Buffer]]) -> list[AppendResult]:
        """Append to several partitions; when one refuses its part, nothing is written anywhere."""
        for log, data in parts:
            self._check_before_append(log, data)
            if len(parts) > 1:  # a partition looks at its own part anyway, when it comes to it
                if log.failure is not None:
                    raise StorageError(str(log.failure))
                now_ms = self.clock.now_ms()
                for header, view in split_batches(data):
                    check_batch(header, view, log.settings, now_ms, is_control=False)
        return [self._append(log, data) for log, data in parts]

    def _append(self, log: PartitionLog, data: Buffer) -> AppendResult:
        try:  # as `Catalog.changing` does, but this is called often
            result = log.append(data)
        except StrandlogError:
            raise
        except BaseException:
            self.catalog.distrust(log)
            raise
        if not result.is_duplicate:
            self.metrics.produced_bytes += len(data)
            self.metrics.produced_records += result.last_offset - result.base_offset + 1
        return result

    def _check_before_append(self, log: PartitionLog, data: Buffer) -> None:
        self._bytes_until_look -= len(data)
        if self._bytes_until_look < 0:
            self._check_free_space()
        if log.settings.compacts:
            check_keys(log.tp, data, self.settings.decompressed_max_bytes)

    def _check_free_space(self) -> None:
        """Refuse appends while there is room left for reads, deletes and a clean stop."""
        free = self.log_dir.files.free_bytes(self.log_dir.path)
        limit = self.settings.log_min_free_bytes
        if free < limit:
            raise DiskFullError(
                f"{self.log_dir.path} has {free} bytes left; appends are refused below {limit} "
                f"(log.min.free.bytes): free some space, reading and deleting still work"
            )
        self._bytes_until_look = min(FREE_SPACE_LOOK_BYTES, free - limit)

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due."""
        self.tick_groups()
        self.upkeep.step()

    def tick_groups(self) -> None:
        """Do what is due, but for the chores: those are in the hands of somebody else."""
        self.groups.tick(self.clock.monotonic_ms())

    def next_due_ms(self) -> int:
        """When `tick` has something to do, on the monotonic clock."""
        group_ms = self.groups.next_deadline_ms()
        chores_ms = self.upkeep.next_due_ms()
        return chores_ms if group_ms is None else min(group_ms, chores_ms)

    def close(self) -> None:
        """Stop cleanly."""
        if not self.is_closed:
            self.is_closed = True
            self.log_dir.close()


def check_keys(tp: TopicPartition, data: Buffer, limit_bytes: int) -> None:
    """A compacted topic keeps the last value per key, so each record needs one."""
    position = 0
    while position < len(data):
        batch = BatchView(data, position)
        batch.check()
        if not batch.header.is_control:
            for record in batch.records(*tp, limit_bytes=limit_bytes):
                if record.key is None:
                    raise InvalidRecordError(
                        f"{tp} is compacted: every record needs a key, number "
                        f"{record.offset - batch.header.base_offset} of the batch has none"
                    )
        position += batch.size_bytes
