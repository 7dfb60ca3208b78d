"""The facade: a folder opened, its topics, groups and chores wired together.

Everything here is synchronous and belongs to one thread at a time. Time, disk and chance come in
through the constructor. `tick` drives what waits for time (group sessions, chores); `next_due_ms`
says when it should be called.

The table of groups and offsets lives in the compacted topic `__consumer_offsets`, which is made
when the first group needs it: a program that uses no groups has no such folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from strandlog.broker.compacted_table import CompactedTable, TableSpec
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.maintenance import Upkeep
from strandlog.broker.metrics import Metrics
from strandlog.broker.topics.catalog import Catalog, Topic
from strandlog.broker.topics.topic import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    check_topic_name,
    forbid_internal,
)
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.errors import (
    DiskFullError,
    StorageError,
    StrandlogError,
    TopicNotFoundError,
)
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.protocol import transaction_records
from strandlog.protocol.group_records import GroupKey, OffsetKey, decode_key
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.files import Buffer, Files
from strandlog.storage.folder.log_dir import LogDir, LogDirOptions
from strandlog.storage.partition.append_checks import check_batch, split_batches
from strandlog.storage.partition.log import AppendResult, PartitionLog
from strandlog.storage.partition.record_checks import check_records
from strandlog.storage.work import Work, run_inline

FREE_SPACE_LOOK_BYTES = 8 * 1024 * 1024
IN_PROCESS_HOST = "in-process"


def _group_of(key: bytes) -> str:
    """The group that a record of `__consumer_offsets` belongs to."""
    match decode_key(key):
        case GroupKey(group=group) | OffsetKey(group=group):
            return group
        case _:
            raise AssertionError("a coordinator writes only its own kinds of records")


def _transactional_id_of(key: bytes) -> str:
    name = transaction_records.decode_key(key)
    assert name is not None, "a coordinator writes only its own kinds of records"
    return name


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
        # A copy: clients may change dynamic settings of this broker while it runs.
        self.settings = replace(settings) if settings is not None else broker_settings()
        self.clock = clock
        self.metrics = Metrics()
        # Whoever syncs elsewhere is told here about what the broker writes by itself; else that is
        # synced at once.
        self.on_written: Callable[[PartitionLog], None] | None = None
        options = LogDirOptions(
            self.settings.fsyncs,
            self.settings.log_segment_cache_size,
            self.settings.log_max_open_files,
            self.settings.decompressed_max_bytes,
            self.settings.batch_max_records,
            self.settings.log_reserve_bytes,
        )
        self.log_dir = LogDir(path, files, clock, new_uuid, options)
        try:
            with self.log_dir.reserve.spending():
                self._open(new_uuid)
        except BaseException:
            self.log_dir.abandon()
            raise
        self._bytes_until_look = 0
        self.is_closed = False

    def _open(self, new_uuid: Callable[[], UUID]) -> None:
        """Open every partition and load the coordinators."""
        self.catalog = Catalog(self.log_dir, self.settings, new_uuid)
        self.producer_ids = ProducerIds(self.log_dir)
        self.offsets_table = self._table(
            OFFSETS_TOPIC,
            self.settings.offsets_topic_num_partitions,
            self.settings.offsets_topic_segment_bytes,
            _group_of,
        )
        self.transactions_table = self._table(
            TRANSACTIONS_TOPIC,
            self.settings.transaction_state_log_num_partitions,
            self.settings.transaction_state_log_segment_bytes,
            _transactional_id_of,
        )
        self.group_coordinator = GroupCoordinator(
            self.settings, self.clock, self.offsets_table, lambda: str(new_uuid())
        )
        self.group_coordinator.load()
        self._forget_members_of_old_processes()
        self.upkeep = Upkeep(self.log_dir, self.catalog, self.settings, self.clock, self.metrics)

    def _table(
        self, name: str, partitions: int, segment_bytes: int, owner_of: Callable[[bytes], str]
    ) -> CompactedTable:
        spec = TableSpec(name, partitions, {"segment.bytes": segment_bytes}, owner_of)
        return CompactedTable(self.catalog, spec, self._written, self.log_dir.problems)

    def _written(self, log: PartitionLog) -> None:
        if self.on_written is not None:
            self.on_written(log)
        elif self.settings.fsyncs:
            log.flush()

    def _forget_members_of_old_processes(self) -> None:
        """Members that lived inside the last owner died with it; nobody need wait for them."""
        for listing in self.group_coordinator.list_groups():
            for member in self.group_coordinator.describe(listing.group_id).members:
                if member.client_host == IN_PROCESS_HOST:
                    self.group_coordinator.leave(listing.group_id, member.member_id)

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
        return run_inline(self.creating_topic(name, partitions, config))

    def creating_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Work[Topic]:
        """The same in steps."""
        forbid_internal(check_topic_name(name))
        if name not in self.catalog:
            # A crash or a full disk may have kept `delete_topic` from it.
            yield from self.group_coordinator.delete_topic_offsets(name)
        return (yield from self.catalog.creating(name, partitions, config))

    def delete_topic(self, name: str) -> None:
        """Remove a topic and what the groups remember of it."""
        run_inline(self.deleting_topic(name))

    def deleting_topic(self, name: str) -> Work[None]:
        """The same in steps; it is gone after the first."""
        forbid_internal(check_topic_name(name))
        with self.log_dir.reserve.spending():
            yield from self.catalog.deleting(name)
            try:
                yield from self.group_coordinator.delete_topic_offsets(name)
            except StrandlogError as error:  # the topic is gone; `create_topic` tries again
                self.log_dir.report(
                    "groups still have offsets of deleted topics",
                    f"groups still have offsets of the deleted topic {name!r}: {error}",
                )

    def add_partitions(self, name: str, count: int) -> Topic:
        """Let a topic grow."""
        return run_inline(self.adding_partitions(name, count))

    def adding_partitions(self, name: str, count: int) -> Work[Topic]:
        """The same in steps."""
        forbid_internal(name)  # the partition of a group follows from their number
        return (yield from self.catalog.adding_partitions(name, count))

    # -- records -------------------------------------------------------------------------------

    def append(
        self, log: PartitionLog, data: Buffer, *, records_checked: bool = False
    ) -> AppendResult:
        """Append whole batches to a partition; "written" when this returns. The caller may have
        called `check_records` before, in another thread."""
        self._bytes_until_look -= len(data)
        if self._bytes_until_look < 0:
            self._check_free_space()
        if log.settings.checks_records and not records_checked:
            self.check_records(log, data)
        return self._append(log, data)

    def append_all(
        self, parts: Sequence[tuple[PartitionLog, Buffer]], *, records_checked: bool = False
    ) -> list[AppendResult]:
        """Append to several partitions; when one refuses its part, nothing is written anywhere."""
        for log, data in parts:
            self._bytes_until_look -= len(data)
            if self._bytes_until_look < 0:
                self._check_free_space()
            if log.settings.checks_records and not records_checked:
                self.check_records(log, data)
            if len(parts) > 1:  # a partition looks at its own part anyway, when it comes to it
                if log.failure is not None:
                    raise StorageError(str(log.failure))
                now_ms = self.clock.now_ms()
                for header, view in split_batches(data):
                    most = self.settings.batch_max_records
                    check_batch(header, view, log.settings, now_ms, most, is_control=False)
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

    def check_records(self, log: PartitionLog, data: Buffer) -> None:
        """Raise what is wrong with the records of some batches, by the rules of their topic.

        Changes nothing, so any thread may do it; the headers are checked first, which bounds it.
        """
        now_ms, settings = self.clock.now_ms(), log.settings
        most, limit_bytes = self.settings.batch_max_records, self.settings.decompressed_max_bytes
        for header, view in split_batches(data):
            check_batch(header, view, settings, now_ms, most, is_control=False)
            check_records(log.tp, header, view, settings, now_ms, limit_bytes)

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

    # -- transactions --------------------------------------------------------------------------

    def write_marker(
        self, tp: TopicPartition, kind: ControlType, producer: ProducerIdentity
    ) -> PartitionLog | None:
        """End the transaction of a producer in one partition; None when there is no such one."""
        try:
            log = self.catalog.log(tp.topic, tp.partition)
        except TopicNotFoundError:
            return None
        marker = control_batch(kind, producer.producer_id, producer.epoch, self.clock.now_ms())
        with self.catalog.changing(log):
            log.append(marker, is_control=True)
            self._written(log)
        if tp.topic == OFFSETS_TOPIC:
            self.group_coordinator.end_transaction(
                producer.producer_id, commit=kind is ControlType.COMMIT
            )
        return log

    def open_transactions(self) -> Iterator[tuple[PartitionLog, ProducerIdentity]]:
        """Every open transaction of every partition."""
        for log in list(self.log_dir.logs.values()):
            for producer_id in log.producers.open_transactions():
                entry = log.producers.get(producer_id)
                if entry is not None:
                    yield log, ProducerIdentity(producer_id, entry.epoch)

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due."""
        self.tick_groups()
        self.upkeep.step()

    def tick_groups(self) -> None:
        """Do what is due, but for the chores: those are in the hands of somebody else."""
        self.group_coordinator.tick(self.clock.monotonic_ms())

    def next_due_ms(self) -> int:
        """When `tick` has something to do, on the monotonic clock."""
        group_ms = self.group_coordinator.next_deadline_ms()
        chores_ms = self.upkeep.next_due_ms()
        return chores_ms if group_ms is None else min(group_ms, chores_ms)

    def close(self) -> None:
        """Stop cleanly."""
        if not self.is_closed:
            self.is_closed = True
            self.log_dir.close()
