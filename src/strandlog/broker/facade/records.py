"""Requests about records: produce, fetch, offsets by time and by epoch.

`Broker` inherits these methods. Permission and quota checks belong at the top of each method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.durability import Durability
from strandlog.broker.fetch import (
    DelayedFetches,
    FetchPartition,
    FetchRequest,
    FetchResult,
    Target,
)
from strandlog.broker.metrics import Metrics
from strandlog.broker.offset_lookup import check_leader_epoch, end_of_epoch, offset_at
from strandlog.broker.produce import NOTHING_CHECKED, Checked, ProduceResult, RecordAppender
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.visibility import Visibility
from strandlog.clock import Clock
from strandlog.errors import StrandlogError
from strandlog.model import IsolationLevel, PartitionRecords, TimestampOffset, TopicRef
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work

MAX_COUNTED_POSITIONS = 10_000  # per client


class RecordRequests:
    """The record requests of a `Broker`."""

    catalog: TopicCatalog
    clock: Clock
    metrics: Metrics
    durability: Durability
    delayed_fetches: DelayedFetches
    appender: RecordAppender
    visibility: Visibility

    def produce(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to each partition independently; the result completes as `acks` requires."""
        return self.appender.produce(partitions, acks, checked)

    def produce_work(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
    ) -> Work[list[ProduceResult] | Deferred[list[ProduceResult]]]:
        """Do the same as `produce`, in steps, for a request with many partitions."""
        return self.appender.produce_work(partitions, acks, checked)

    def record_checks(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        is_abandoned: Callable[[], bool] = lambda: False,
    ) -> Work[Checked] | None:
        """Return work that decodes and checks the records of a request, if their topics require it,
        before they are produced; None if `produce` can do so quickly itself."""
        return self.appender.record_checks(partitions, is_abandoned)

    def produce_all(
        self,
        context: RequestContext,
        partitions: Sequence[PartitionRecords],
        acks: int,
        checked: Checked = NOTHING_CHECKED,
    ) -> list[ProduceResult] | Deferred[list[ProduceResult]]:
        """Append to all partitions, or raise and append nothing."""
        return self.appender.produce_all(partitions, acks, checked)

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResult | Deferred[FetchResult]:
        """Read batches; the result may wait for `min_bytes`, an error or the deadline."""
        targets: list[Target] = []
        positions = context.fetch_positions
        for part in request.partitions:
            try:
                log = self.catalog.resolve(part.topic, part.partition)
                if not -1 <= part.leader_epoch <= 0:  # -1: unknown; 0: the only epoch
                    check_leader_epoch(part.leader_epoch)
            except StrandlogError as error:
                targets.append(error)
                continue
            if positions and (part.topic, part.partition) in positions:
                self._count_consumed(positions, part, log)
            targets.append(log)
        now_ms = self.clock.monotonic_ms()
        found = self.delayed_fetches.fetch(request, targets, now_ms, self.visibility.when_visible)
        if isinstance(found, Deferred):
            found.on_done(lambda done: self._note_positions(positions, request, done.result()))
        else:
            self._note_positions(positions, request, found)
        return found

    def _count_consumed(
        self, positions: dict[tuple[TopicRef, int], int], part: FetchPartition, log: PartitionLog
    ) -> None:
        """Count the records consumed since the last fetch, from the difference of the offsets.

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
        """Cancel a waiting fetch, because its client has disconnected."""
        self.delayed_fetches.cancel(result)

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
        log = self.catalog.resolve(topic, partition)
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
        """Return (epoch, end offset) of the last leader epoch up to `epoch`."""
        log = self.catalog.resolve(topic, partition)
        check_leader_epoch(current_epoch)
        return end_of_epoch(log, epoch)

    def make_visible(
        self,
        context: RequestContext,
        partitions: Iterable[tuple[TopicRef, int]] | None = None,
    ) -> Deferred[None]:
        """Return a result that completes when readers can see everything that was appended to these
        partitions (None: all partitions) before this call, or when the disk fails or takes too
        long."""
        result: Deferred[None] = Deferred()
        logs = (
            self.durability.unflushed() if partitions is None else self.catalog.existing(partitions)
        )
        self.visibility.when_visible(logs, lambda: _complete(result))
        return result


def _complete(result: Deferred[None]) -> None:
    result.complete(None)
