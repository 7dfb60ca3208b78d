"""The source: topics as DataFrames, in batches and as streams.

    driver    options ─▶ partitions and bounds ─▶ ranges ─▶ tasks      (planning.py, places.py)
    task      range ─▶ raw batches ─▶ Arrow columns ─▶ Spark           (access.py, decoding.py)

Spark keeps the offsets of each micro-batch in its checkpoint before it runs, and reads the same
ranges again after a crash: a log does not change, so neither does the answer.

Progress is committed to the group `groupId` when the next micro-batch is planned, and before that
by a listener where there is one (progress.py). Spark calls the reader's own `commit` later, and for
the last batch of a bounded run never.

Spark pickles readers and calls their methods in other processes. So a reader holds options only,
and opens what it needs where it needs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from strandlog.errors import DataLossError, OffsetOutOfRangeError, StrandlogError
from strandlog.model import TopicPartition
from strandlog.spark.access import Bounds, LogAccess
from strandlog.spark.decoding import Decoder
from strandlog.spark.offsets import Offsets, as_document, from_document
from strandlog.spark.opening import open_access
from strandlog.spark.options import Options
from strandlog.spark.places import ending, starting
from strandlog.spark.planning import Loss, OffsetRange, limited, lost, ranges_between, split
from strandlog.spark.telling import in_one_line
from strandlog.spark.worker_memory import settling

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task's part."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class RangeReader:
    """What reading a range takes, in batches and streams alike."""

    def __init__(self, options: Options, decoder: Decoder, cores: int) -> None:
        self.options = options
        self._decoder = decoder
        self._cores = cores

    def tasks(self, ranges: list[OffsetRange], access: LogAccess) -> list[InputPartition]:
        parts = split(
            ranges,
            min_tasks=self.options["minPartitions"],
            max_records=self.options["maxRecordsPerPartition"],
            cores=self._cores,
            cut=access.cut,
        )
        return [RangePartition(part) for part in parts]

    def read_partition(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The records of a task, as Arrow. Without any task Spark makes one that has no range."""
        if isinstance(partition, RangePartition):
            return self.read(partition.wanted)
        return iter(())

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, as Arrow."""
        with (
            in_one_line(),
            settling(),
            closing(open_access(self.options, in_task=True)) as access,
        ):
            yield from self._read(access, wanted)

    def _read(self, access: LogAccess, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        try:
            for piece in access.read(wanted):
                yield from self._decoder.decode(piece, wanted)
        except OffsetOutOfRangeError as error:
            # Deleted between planning and reading.
            loss = Loss(wanted.tp, wanted.start, min(wanted.end, error.start_offset))
            check_losses([loss], self.options)
            if error.start_offset < wanted.end:
                rest = wanted._replace(start=max(wanted.start, error.start_offset))
                yield from self._read(access, rest)


def check_losses(losses: list[Loss], options: Options) -> None:
    """Fail, or go on and say so, as the options ask."""
    if not losses:
        return
    told = "; ".join(map(str, losses))
    if options["failOnDataLoss"]:
        raise DataLossError(
            f"{told}. They were deleted before they were read: give the topic a longer retention, "
            f"or set failOnDataLoss=false to go on without them"
        )
    logger.warning("%s; going on without them (failOnDataLoss=false)", told)


class BatchReader(DataSourceReader):
    """A DataFrame of what there is now."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    @in_one_line()
    @settling()
    def partitions(self) -> list[InputPartition]:
        options = self._reader.options
        with closing(open_access(options)) as access:
            bounds = access.bounds()
            start, end = starting(options, access, bounds), ending(options, access, bounds)
            earliest = {tp: bound.earliest for tp, bound in bounds.items()}
            check_losses(lost(start, earliest), options)
            start = {tp: max(offset, earliest[tp]) for tp, offset in start.items()}
            return self._reader.tasks(ranges_between(start, end), access)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_partition(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A DataFrame that goes on."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._options = reader.options
        self._access: LogAccess | None = None
        self._frozen_end: Offsets | None = None  # where a bounded run ends
        self._waiting_since: float | None = None  # for minOffsetsPerTrigger
        self._seen: dict[TopicPartition, Bounds] = {}  # by the last look
        self._latest: Offsets = {}
        self._shown: Offsets = {}  # what the group was told last

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_access": None}

    def _opened(self) -> LogAccess:
        if self._access is None:
            self._access = open_access(self._options)
        return self._access

    def _bounds(self) -> dict[TopicPartition, Bounds]:
        self._seen = self._opened().bounds()
        return self._seen

    # -- where it stands -----------------------------------------------------------------------

    @in_one_line()
    def initialOffset(self) -> dict[str, Any]:
        return as_document(starting(self._options, self._opened(), self._bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options["maxOffsetsPerTrigger"] is not None:
            return ReadMaxRows(self._options["maxOffsetsPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            return ReadMaxBytes(self._options["maxBytesPerTrigger"])
        return ReadAllAvailable()

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen_end = {tp: bound.latest for tp, bound in self._bounds().items()}

    @in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_document(start)
        self._commit_progress(begin)
        bounds = self._bounds()
        check_losses(lost(begin, {tp: b.earliest for tp, b in bounds.items()}), self._options)
        self._latest = {tp: bound.latest for tp, bound in bounds.items()}
        end = dict(self._frozen_end or self._latest)
        # What a partition that is new to the query has is read from its beginning.
        begin = {tp: begin.get(tp, bounds[tp].earliest) for tp in end if tp in bounds}
        end = {tp: max(begin[tp], end[tp]) for tp in begin}
        if self._should_wait(begin, end):
            return start
        return as_document(self._within(begin, end, limit))

    def _should_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Whether there is too little for a micro-batch, and there is still time."""
        least = self._options["minOffsetsPerTrigger"]
        if least is None or self._frozen_end is not None:
            return False
        now = time.monotonic()
        available = sum(end[tp] - begin[tp] for tp in end)
        if self._waiting_since is None:
            self._waiting_since = now
        waited_ms = (now - self._waiting_since) * 1000
        if available < least and waited_ms < self._options["maxTriggerDelay"]:
            return True
        self._waiting_since = now
        return False

    def _within(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return limited(begin, end, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            sizes = self._opened().record_bytes({tp: self._seen[tp] for tp in end})
            total = sum(sizes[tp] * (end[tp] - begin[tp]) for tp in end)
            count = sum(end[tp] - begin[tp] for tp in end)
            if total > limit.max_bytes:
                return limited(begin, end, max(1, int(count * limit.max_bytes / total)))
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return as_document(self._latest) if self._latest else None

    # -- reading -------------------------------------------------------------------------------

    @in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, until = from_document(start), from_document(end)
        new = [tp for tp in until if tp not in begin]
        # After a restart a batch is planned again without a look at where everything ends.
        is_seen = until.keys() <= self._seen.keys()
        bounds = self._seen if is_seen else self._opened().bounds(until)
        begin |= {tp: bounds[tp].earliest for tp in new if tp in bounds}
        earliest = {tp: bound.earliest for tp, bound in bounds.items()}
        wanted = ranges_between(begin, until)
        check_losses(lost({each.tp: each.start for each in wanted}, earliest), self._options)
        readable = [
            each._replace(start=max(each.start, earliest[each.tp]))
            for each in wanted
            if each.tp in earliest and earliest[each.tp] < each.end
        ]
        return self._reader.tasks(readable, self._opened())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_partition(partition)

    def _commit_progress(self, done: Mapping[TopicPartition, int]) -> None:
        """Everything below these offsets was processed: show it to whoever looks at lag."""
        group = self._options["groupId"]
        if group is None or not done or done == self._shown:
            return  # an idle query asks many times a second
        try:
            self._opened().commit_offsets(group, done)
            self._shown = dict(done)
        except StrandlogError as error:
            logger.warning("progress could not be committed to group %r: %s", group, error)

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None


class RefusedStream(DataSourceStreamReader):
    """A stream whose options are wrong, and says so when it is asked where it begins."""

    def __init__(self, reason: StrandlogError) -> None:
        self._reason = reason

    @in_one_line()
    def initialOffset(self) -> dict[str, Any]:
        raise self._reason

    @in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        del start, limit
        raise self._reason

    @in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        del start, end
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        raise self._reason
