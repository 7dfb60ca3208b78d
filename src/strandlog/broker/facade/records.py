"""Requests about records: produce, fetch, look up offsets by time and by epoch, and wait for
flushes.

`Broker` inherits these methods. Methods that access records check the client's permission first
(WRITE or READ on the topic, DESCRIBE for offsets), except `append` and `append_all`, whose callers
check it. A partition that the client may not access gets an error; the other partitions of the
request are still handled, except by `produce_all`. A fetch that had to wait is checked again before
its records are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Requirement,
)
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, as_result
from strandlog.broker.facade.access import AccessRequests
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.flushing.flush_wait import FlushWait
from strandlog.broker.flushing.visibility import Visibility
from strandlog.broker.metrics import Metrics
from strandlog.broker.produce import (
    NOTHING_CHECKED,
    Checked,
    ProduceResult,
    RecordAppender,
    is_transactional,
)
from strandlog.broker.reads.fetch import (
    DelayedFetches,
    FetchPartition,
    FetchRequest,
    FetchResult,
    Target,
    aborted_in_data,
    failed_fetch,
)
from strandlog.broker.reads.offset_lookup import check_leader_epoch, end_of_epoch, offset_at
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.clock import Clock
from strandlog.errors import StorageError, StrandlogError, TopicAuthorizationError
from strandlog.model import Buffer, IsolationLevel, PartitionRecords, TimestampOffset, TopicRef
from strandlog.storage.partition.log import AppendResult, PartitionLog
from strandlog.storage.partition.read import aborted_in, read, read_plan
from strandlog.storage.work import Work, run_inline, yield_control

PARTITIONS_PER_STEP = 32  # partitions of a fetch that one step resolves
MAX_COUNTED_POSITIONS = 10_000  # fetch positions kept per client
READ_TOPIC, WRITE_TOPIC, DESCRIBE_TOPIC = READ.on(TOPIC), WRITE.on(TOPIC), DESCRIBE.on(TOPIC)
WRITE_TRANSACTIONS = WRITE.on(TRANSACTIONAL_ID)
FIND_EPOCHS = (CLUSTER_ACTION.on(CLUSTER), DESCRIBE_TOPIC)
_new_tuple = tuple.__new__  # three times as fast as the named tuple's own constructor


class ReadBatches(NamedTuple):
    """Raw batches of one partition below its last stable offset, and the partition's state when
    they were read. `aborted` contains the (producer id, first offset) of the aborted transactions
    in the data."""

    data: Buffer
    last_stable_offset: int
    end_offset: int
    folder: str
    aborted: Sequence[tuple[int, int]]


class RecordRequests(AccessRequests):
    """The record requests of a `Broker`."""

    _catalog: TopicCatalog
    clock: Clock
    metrics: Metrics
    _durability: Durability
    _delayed_fetches: DelayedFetches
    _appender: RecordAppender
    _visibility: Visibility

    def produce(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
        transactional_id: str | None = None,
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to each partition independently; the result completes as `acks` requires."""
        if self._access.is_on and not self._is_simple_and_allowed(context, partitions):
            denials = self._with_denials(context, partitions, checked, transactional_id)
            checked = run_inline(denials)
        return self._appender.produce(partitions, acks, checked)

    def produce_work(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
        transactional_id: str | None = None,
    ) -> Work[list[ProduceResult] | Deferred[list[ProduceResult]]]:
        """Do the same as `produce`, but in steps, for a request with many partitions."""
        if self._access.is_on and not self._is_simple_and_allowed(context, partitions):
            checked = yield from self._with_denials(context, partitions, checked, transactional_id)
        return (yield from self._appender.produce_work(partitions, acks, checked))

    def _is_simple_and_allowed(
        self, context: RequestContext, partitions: Sequence[PartitionRecords]
    ) -> bool:
        """Return whether a request is allowed, has a single partition, identifies its topic by name
        and is not transactional. Most requests are like this, and for small ones the cost of
        `_with_denials` would be noticeable."""
        if len(partitions) != 1:
            return False
        topic, _, records = partitions[0]
        return (
            isinstance(topic, str)
            and not is_transactional(records)
            and self._access.allows(context, WRITE_TOPIC, topic)
        )

    def _with_denials(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        checked: Checked,
        transactional_id: str | None,
    ) -> Work[Checked]:
        """Return the results of the record checks, with an error for each partition that the client
        may not write to. A request with transactional batches requires WRITE on its transactional
        id; without it, every partition gets an error. A transactional batch whose producer belongs
        to a different transactional id also gets an error, because it would become part of another
        client's transaction."""
        errors: dict[int, StrandlogError | None] = dict(checked)
        access = self._access
        in_transaction = [
            (number, part.records)
            for number, part in enumerate(partitions)
            if part.records is not None and is_transactional(part.records)
        ]
        if in_transaction and not access.allows_transactions(context, transactional_id):
            error = access.denied(context, WRITE_TRANSACTIONS, transactional_id or "")
            return dict.fromkeys(range(len(partitions)), error)
        if transactional_id is not None:
            for number, records in in_transaction:
                if (
                    foreign := self._appender.foreign_producer(transactional_id, records)
                ) is not None:
                    errors[number] = foreign
        denials: dict[TopicRef, StrandlogError | None] = {}
        for number, part in enumerate(partitions):
            if part.topic not in denials:
                denials[part.topic] = self._denial(context, WRITE_TOPIC, part.topic)
                yield yield_control
            if (denial := denials[part.topic]) is not None:
                errors[number] = denial
        return errors

    def _may_write(self, context: RequestContext, topic: TopicRef) -> bool:
        """Return whether a client may write to a topic, without reporting a denial. Return True for
        an unknown topic id, which the lookup reports."""
        name = self._known_name(topic)
        return name is None or self._access.allows(context, WRITE_TOPIC, name)

    def _known_name(self, topic: TopicRef) -> str | None:
        """Return the name of a topic, or None for an unknown id, which the lookup reports."""
        if not isinstance(topic, UUID):
            return topic
        try:
            return self._catalog.topic_with_id(topic).name
        except StrandlogError:
            return None

    def _denial(
        self, context: RequestContext, needs: Requirement, topic: TopicRef
    ) -> StrandlogError | None:
        """Return an error if the client lacks a permission on a topic. An unknown topic id is not a
        denial: the lookup reports it."""
        name = self._known_name(topic)
        if name is None:
            return None
        return self._access.denial(context, needs, name, by_id=isinstance(topic, UUID))

    def record_checks(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> Work[Checked] | None:
        """Return work that decodes and checks the records of a request before they are produced.
        Return None if no topic requires it, if `produce` itself can do this quickly, or if the
        client may not write to any of the topics."""
        if len(partitions) == 1:  # first find out whether its topic requires checks: most do not
            checks = self._appender.record_checks(partitions, is_abandoned)
            is_denied = checks is not None and self._lacks_all(context, partitions)
            return None if is_denied else checks
        if self._lacks_all(context, partitions):
            return None
        return self._appender.record_checks(partitions, is_abandoned)

    def _lacks_all(self, context: RequestContext, partitions: Sequence[PartitionRecords]) -> bool:
        """Return True if the client may write to none of these topics."""
        return self._access.is_on and all(
            not self._may_write(context, part.topic) for part in partitions
        )

    def produce_all(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to all partitions, or raise and append nothing. If an append fails partway,
        raise `PartialAppendError`, which names the partitions that were written."""
        if self._access.is_on:
            for part in partitions:
                if (denial := self._denial(context, WRITE_TOPIC, part.topic)) is not None:
                    raise denial
        return self._appender.produce_all(partitions, acks, checked)

    def append(
        self, context: RequestContext, topic: str, partition: int, batch: Buffer
    ) -> AppendResult:
        """Append one batch, which is in the page cache when this returns; raise if it is rejected.

        Callers that need it on disk use `flush_wait`. The partition must exist; the caller
        checks this, and the permission, with `writable_topic`.
        """
        return self._appender.append(self._catalog.logs(topic)[partition], batch)

    def append_all(
        self, context: RequestContext, topic: str, batches: Iterable[tuple[int, Buffer]]
    ) -> list[AppendResult]:
        """Append one batch to each of several partitions of a topic, or raise and append nothing.
        If an append fails partway, raise `PartialAppendError`.

        The batches are in the page cache when this returns. The caller checks the topic with
        `writable_topic`.
        """
        logs = self._catalog.logs(topic)
        return self._appender.append_all([(logs[number], batch) for number, batch in batches])

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResult | Deferred[FetchResult]:
        """Read batches; the result may wait for `min_bytes`, an error or the deadline."""
        return run_inline(self.fetch_work(context, request))

    def fetch_work(
        self, context: RequestContext, request: FetchRequest
    ) -> Work[FetchResult | Deferred[FetchResult]]:
        """Do the same as `fetch`, but in steps, for a request with many partitions."""
        targets: list[Target] = []
        positions = context.fetch_positions
        is_on = self._access.is_on
        denials: dict[TopicRef, StrandlogError | None] = {}
        for number, part in enumerate(request.partitions, 1):
            if not number % PARTITIONS_PER_STEP:
                yield yield_control
            try:
                if is_on:
                    if part.topic not in denials:
                        denials[part.topic] = self._fetch_denial(context, request, part.topic)
                    if (denial := denials[part.topic]) is not None:
                        raise denial
                log = self._catalog.resolve(part.topic, part.partition)
                if not -1 <= part.leader_epoch <= 0:  # -1: unknown; 0: the only epoch
                    check_leader_epoch(part.leader_epoch)
            except StrandlogError as error:
                targets.append(as_result(error))
                continue
            if positions and (part.topic, part.partition) in positions:
                self._count_consumed(positions, part, log)
            targets.append(log)
        now_ms = self.clock.monotonic_ms()
        found = self._delayed_fetches.fetch(request, targets, now_ms, self._visibility.when_visible)
        if isinstance(found, Deferred):
            found.on_done(partial(self._fetch_done, context, request, self._access.version))
        else:
            self._note_positions(positions, request, found)
        return found

    def _fetch_done(
        self,
        context: RequestContext,
        request: FetchRequest,
        version: tuple[bool, int],
        done: Deferred[FetchResult],
    ) -> None:
        if done.error is None:
            self._withhold(context, request, version, done.result())
            self._note_positions(context.fetch_positions, request, done.result())

    def _withhold(
        self,
        context: RequestContext,
        request: FetchRequest,
        version: tuple[bool, int],
        found: FetchResult,
    ) -> None:
        """Remove the records of topics that the client may no longer read, because its permission
        was removed while the fetch waited. `version` is the version of the permissions when the
        fetch started. Kafka checks permissions only when the request arrives."""
        if self._access.version == version:
            return
        denials: dict[TopicRef, StrandlogError | None] = {}
        for number, part in enumerate(request.partitions):
            if not len(found[number].data):
                continue
            if part.topic not in denials:
                denials[part.topic] = self._fetch_denial(context, request, part.topic)
            if (denial := denials[part.topic]) is not None:
                found[number] = failed_fetch(part, denial)

    def _fetch_denial(
        self, context: RequestContext, request: FetchRequest, topic: TopicRef
    ) -> StrandlogError | None:
        """Return an error if the client may not read a topic. A broker needs CLUSTER_ACTION, but as
        in Kafka, the error is a `TopicAuthorizationError`."""
        if not request.is_from_broker:
            return self._denial(context, READ_TOPIC, topic)
        name = self._known_name(topic)
        if name == SECURITY_TOPIC:  # CLUSTER_ACTION does not give access to it
            return self._denial(context, READ_TOPIC, topic)
        denial = None
        if name is not None:
            denial = self._access.denial(context, CLUSTER_ACTION.on(CLUSTER))
        return None if denial is None else TopicAuthorizationError(str(denial))

    def _count_consumed(
        self, positions: dict[tuple[TopicRef, int], int], part: FetchPartition, log: PartitionLog
    ) -> None:
        """Count the records consumed since the last fetch, from the difference between the offsets.

        Counting the records of a response would require parsing each batch.
        """
        moved = min(part.offset, log.high_watermark) - positions.pop((part.topic, part.partition))
        self.metrics.fetched_records += max(0, moved)

    def _note_positions(
        self,
        positions: dict[tuple[TopicRef, int], int],
        request: FetchRequest,
        found: FetchResult,
    ) -> None:
        if len(positions) > MAX_COUNTED_POSITIONS:
            positions.clear()
        for part, data in zip(request.partitions, found, strict=True):
            if len(data.data):
                positions[part.topic, part.partition] = part.offset

    def cancel_fetch(self, result: Deferred[FetchResult]) -> None:
        """Cancel a waiting fetch whose client has disconnected."""
        self._delayed_fetches.cancel(result)

    def read(
        self, context: RequestContext, topic: str, partition: int, offset: int, max_bytes: int
    ) -> ReadBatches:
        """Read batches from an offset up to the last stable offset, without waiting for more. The
        caller skips the records of the aborted transactions.

        Unlike `fetch`, this flushes the partition in the calling thread if it would otherwise
        return no records, unless a flush is in flight or has failed. Only the first batch is
        verified: the caller verifies the batches that it decodes.
        """
        if self._access.is_on:
            self._access.require(context, READ_TOPIC, topic)
        log = self._catalog.log(topic, partition)
        high_watermark = log.high_watermark
        if high_watermark <= offset and high_watermark < log.log_end_offset:
            self._durability.try_flush(log)
        data = read(log, offset, max_bytes, committed=True)
        aborted: Sequence[tuple[int, int]] = ()
        if len(log.aborted):
            aborted = aborted_in_data(log, offset, data, aborted_in) or ()
        found = (data, log.last_stable_offset, log.log_end_offset, log.folder, aborted)
        return _new_tuple(ReadBatches, found)

    def file_position(
        self, context: RequestContext, topic: str, partition: int, offset: int
    ) -> tuple[str, int] | None:
        """Return the file path and position of the batch that contains an offset, or of the next
        batch that readers can see; None if there is none."""
        self._access.require(context, READ_TOPIC, topic)
        plan = read_plan(self._catalog.log(topic, partition), offset, max_bytes=0)
        found = plan.locate() if plan is not None else None
        return None if plan is None or found is None else (plan.path, found[0])

    def list_offset(
        self,
        context: RequestContext,
        topic: TopicRef,
        partition: int,
        timestamp: int,
        isolation: IsolationLevel,
        leader_epoch: int = -1,
    ) -> Work[TimestampOffset]:
        """Return the offset for a timestamp or for one of Kafka's special timestamps. A lookup by
        time may have to decode a large batch, so it runs in steps."""
        if (
            self._access.is_on
            and (denial := self._denial(context, DESCRIBE_TOPIC, topic)) is not None
        ):
            raise denial
        log = self._catalog.resolve(topic, partition)
        check_leader_epoch(leader_epoch)
        return (yield from offset_at(log, timestamp, isolation))

    def epoch_end_offset(
        self,
        context: RequestContext,
        topic: TopicRef,
        partition: int,
        epoch: int,
        current_epoch: int = -1,
    ) -> tuple[int, int]:
        """Return a leader epoch and its end offset; (-1, -1) for -1 and for later epochs than the
        current one."""
        if (denial := self._denial(context, FIND_EPOCHS, topic)) is not None:
            raise denial
        log = self._catalog.resolve(topic, partition)
        check_leader_epoch(current_epoch)
        return end_of_epoch(log, epoch)

    def make_visible(
        self,
        context: RequestContext,
        partitions: Iterable[tuple[TopicRef, int]] | None = None,
    ) -> Deferred[None]:
        """Return a result that completes when readers can see everything that was appended to these
        partitions (None: all partitions) before this call, or when the disk fails or takes too
        long. It reveals nothing, so it requires no permission."""
        result: Deferred[None] = Deferred()
        logs = (
            self._durability.unflushed()
            if partitions is None
            else self._catalog.existing(partitions)
        )
        self._visibility.when_visible(logs, lambda: _complete(result))
        return result

    # -- for threads that share the broker ---------------------------------------------------------

    def flush_wait(
        self, context: RequestContext, topic: str, partition: int, end_offset: int | None = None
    ) -> FlushWait:
        """Return a `FlushWait` for everything below an offset (None: all that was appended)."""
        log = self._catalog.log(topic, partition)
        end_offset = log.log_end_offset if end_offset is None else end_offset
        return FlushWait(self._catalog, self._durability, log, end_offset)

    def flush_waits(self, context: RequestContext) -> list[FlushWait]:
        """Return a `FlushWait` for each partition, for everything appended before this call.

        Internal topics get none: they are flushed here, while the caller holds the lock, so that a
        coordinator never finds its partition busy.
        """
        waits = []
        for name in self._catalog.names():
            for log in self._catalog.logs(name):
                if name in INTERNAL_TOPICS:
                    self._durability.try_flush(log)
                    if log.failure is not None:
                        raise StorageError(str(log.failure))
                else:
                    end_offset = log.log_end_offset
                    waits.append(FlushWait(self._catalog, self._durability, log, end_offset))
        return waits

    def is_flushing(self, context: RequestContext, topic: str | None = None) -> bool:
        """Return whether a flush of any partition, or of any partition of a topic, is in flight."""
        busy = self._durability.busy
        names = self._catalog.names() if topic is None else [topic]
        # `logs` reopens partitions after an interrupt; a reopened partition is not busy.
        return any(not busy.isdisjoint(self._catalog.logs(name)) for name in names)


def _complete(result: Deferred[None]) -> None:
    result.complete(None)
