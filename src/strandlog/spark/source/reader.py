"""Batch and stream readers, which plan tasks on the driver and read records in the tasks.

    driver    options ─▶ partitions and bounds ─▶ ranges ─▶ tasks      (offsets.py, planning.py)
    task      range ─▶ raw batches ─▶ Arrow columns ─▶ Spark           (access.py, decoder.py)
    task      files of a table ─▶ Arrow columns ─▶ Spark               (table_history.py)

Spark stores the offsets of each micro-batch in its checkpoint before running it, and reads the same
ranges again after a crash. Records in a log do not change, so the rows are the same.

Records that were deleted before they were read, and topics that were recreated, cause an error or a
warning (continuity.py). Tasks also check for both, because a topic can be deleted between planning
and reading.

Progress is committed to `groupId` when the next micro-batch is planned, or earlier by the query
listener if there is one (progress.py). `StreamReader` does not implement `commit`, because Spark
calls it later, and never for the last batch of a bounded run.

`BatchReader` does not implement `pushFilters`. Spark 4.1 to 4.3 keeps the plan of the last scan
that pushed filters in the DataFrame (PythonDataSourceV2.setReadInfo), and every other scan of that
DataFrame uses it, regardless of its own filters. A reader that plans less because of a filter
therefore loses rows in `frame.where(a).union(frame.where(b))`, and in `frame.count()` after
`frame.where(a)`. Returning the filters to Spark does not help: it evaluates them on the wrong rows.

Spark pickles readers and calls their methods in other processes. Readers therefore carry only
options and planning state, and open the log where they need it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
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

from strandlog.errors import (
    DataLossError,
    OffsetOutOfRangeError,
    StrandlogError,
    TopicNotFoundError,
    UndecodableBatchError,
)
from strandlog.model import TopicPartition
from strandlog.spark.offsets import (
    TOPIC_IDS,
    Offsets,
    StreamOffset,
    as_document,
    check_order,
    ending,
    starting,
    stream_offset,
)
from strandlog.spark.options import Options
from strandlog.spark.source.access import LogAccess, open_access
from strandlog.spark.source.continuity import (
    Bounds,
    Loss,
    Plan,
    beyond_end,
    blocked,
    continued,
    deleted,
    is_other_topic,
    past_latest,
    planned,
    recreated,
    trimmed,
)
from strandlog.spark.source.decoder import Decoder
from strandlog.spark.source.history import with_history
from strandlog.spark.source.planning import OffsetRange, limited, split
from strandlog.spark.worker import freeze_imports, hide_traceback

if TYPE_CHECKING:
    import pyarrow as pa

    from strandlog.spark.source.table_history import TableFiles, TableHistory

logger = logging.getLogger(__name__)

COMMIT_RETRY_SECONDS = 10.0


class RangePartition(InputPartition):
    """The range of one task, and the id that its topic had when the task was planned."""

    def __init__(self, wanted: OffsetRange, topic_id: str | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id


class TablePartition(InputPartition):
    """The files of a lake table that one task reads."""

    def __init__(self, wanted: TableFiles) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class RangeReader:
    """Plans tasks and reads ranges, for batches and streams. Can be pickled."""

    def __init__(self, options: Options, decoder: Decoder, cores: int) -> None:
        self.options = options
        self._decoder = decoder
        self._cores = cores

    def tasks(
        self,
        ranges: list[OffsetRange],
        access: LogAccess,
        bounds: Mapping[TopicPartition, Bounds],
        history: TableHistory | None = None,
    ) -> list[InputPartition]:
        """Return the tasks that read ranges. `bounds` are those of the log alone, even if `history`
        provides older records."""
        tasks: list[InputPartition] = []
        if history is not None:
            found = history.divide(ranges, {tp: bound.earliest for tp, bound in bounds.items()})
            check_losses(found.losses, self.options)
            count = self.options["minPartitions"] or self._cores
            tasks += [TablePartition(each) for each in history.tasks(found.table, count)]
            ranges = found.log
        parts = split(
            ranges,
            min_tasks=self.options["minPartitions"],
            max_records=self.options["maxRecordsPerPartition"],
            cores=self._cores,
            cut=access.cut,
        )
        return tasks + [RangePartition(part, bounds[part.tp].topic_id) for part in parts]

    def history(
        self, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]
    ) -> TableHistory | None:
        """Return the table that the option `history` selects, or None if it is not set."""
        if self.options["history"] is None:
            return None
        from strandlog.spark.source.table_history import TableHistory  # noqa: PLC0415

        return TableHistory(self.options, access, bounds, self._decoder)

    def read_partition(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the records of a task, or none for the empty task that Spark may add."""
        if isinstance(partition, RangePartition):
            return self.read(partition.wanted, partition.topic_id)
        if isinstance(partition, TablePartition):
            return self._read_table(partition.wanted)
        return iter(())

    def read(self, wanted: OffsetRange, topic_id: str | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, checking that the topic still has the id `topic_id`."""
        with (
            hide_traceback(),
            freeze_imports(),
            closing(open_access(self.options, in_task=True)) as access,
        ):
            try:
                # Fetch requests use the topic's name. Comparing its id before and after ensures
                # that the records are from the topic for which the task was planned.
                if not self._is_topic(access, wanted, topic_id):
                    return
                yield from self._read(access, wanted)
                self._is_topic(access, wanted, topic_id)
            except TopicNotFoundError:
                check_losses([deleted(wanted.tp, wanted.start)], self.options)

    def _read_table(self, wanted: TableFiles) -> Iterator[pa.RecordBatch]:
        from strandlog.spark.source.table_history import read_table_files  # noqa: PLC0415

        with hide_traceback(), freeze_imports():
            yield from read_table_files(wanted, self._decoder)

    def _is_topic(self, access: LogAccess, wanted: OffsetRange, topic_id: str | None) -> bool:
        if topic_id is None or not is_other_topic(topic_id, access.topic_id(wanted.tp)):
            return True
        check_losses([recreated(wanted.tp, wanted.start)], self.options)
        return False

    def _leave_out(self, error: UndecodableBatchError) -> None:
        """Raise an error for a batch that cannot be decoded, or log a warning and skip it."""
        if self.options["failOnDataLoss"]:
            raise DataLossError(
                f"{error}. Set failOnDataLoss=false to skip these records"
            ) from error
        logger.warning("%s; skipping these records (failOnDataLoss=false)", error)

    def _read(self, access: LogAccess, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        left = wanted
        while left.size > 0:
            try:
                for chunk in access.read(left):
                    yield from self._decoder.decode(chunk, left, self._leave_out)
                return
            except OffsetOutOfRangeError as error:
                # Deleted between planning and reading; the records before error.offset were read.
                if error.offset < error.start_offset:
                    end = min(error.start_offset, left.end)
                    loss = trimmed(left.tp, max(left.start, error.offset), end)
                else:
                    end = left.end
                    loss = beyond_end(left.tp, error.offset, error.end_offset)
                check_losses([loss], self.options)
                left = left._replace(start=end)


def check_losses(losses: list[Loss], options: Options) -> None:
    """Raise an error or log a warning about lost records, depending on `failOnDataLoss`."""
    if not losses:
        return
    text = "; ".join(map(str, losses))
    if options["failOnDataLoss"]:
        raise DataLossError(
            f"{text}. Records were deleted before they were read: use a longer retention, or set "
            f"failOnDataLoss=false to skip them"
        )
    logger.warning("%s; skipping these records (failOnDataLoss=false)", text)


def check_blocked(losses: list[Loss], options: Options) -> None:
    """Raise an error or log a warning about partitions that cannot be read further because of
    damage, depending on `failOnDataLoss`."""
    if not losses:
        return
    text = "; ".join(map(str, losses))
    if options["failOnDataLoss"]:
        raise DataLossError(f"{text}. Set failOnDataLoss=false to read the records before that")
    logger.warning("%s; reading only the records before that (failOnDataLoss=false)", text)


def ends_of(access: LogAccess, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of partitions; send no request if the list is empty."""
    return access.ends(partitions) if partitions else {}


def plan(
    access: LogAccess,
    done: StreamOffset,
    until: StreamOffset,
    bounds: Mapping[TopicPartition, Bounds],
) -> Plan:
    """Return the ranges that can be read between two sets of offsets, and the losses there.

    The actual end of a partition is looked up only if an offset is beyond its bounds.
    """
    doubtful = {*past_latest(done.offsets, bounds), *past_latest(until.offsets, bounds)}
    return planned(done, until, bounds, ends_of(access, sorted(doubtful)))


class BatchReader(DataSourceReader):
    """Reads the records that exist at planning time as a DataFrame."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    @hide_traceback()
    @freeze_imports()
    def partitions(self) -> list[InputPartition]:
        options = self._reader.options
        with closing(open_access(options)) as access:
            bounds = access.bounds()
            history = self._reader.history(access, bounds)
            whole = bounds if history is None else with_history(bounds, history.progress)
            start, end = starting(options, access, whole), ending(options, access, whole)
            check_order(options, start, end)
            found = plan(access, StreamOffset(start, {}), StreamOffset(end, {}), whole)
            check_losses(found.losses, options)
            check_blocked(blocked(end, whole), options)
            return self._reader.tasks(found.ranges, access, bounds, history)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_partition(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a streaming DataFrame."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._options = reader.options
        self._access: LogAccess | None = None
        self._frozen_end: Offsets | None = None  # where an availableNow run ends
        self._triggered_at: float | None = None  # when `_should_wait` last let a micro-batch run
        self._history: TableHistory | None = None
        self._log: dict[TopicPartition, Bounds] = {}  # the log's bounds at the last lookup
        self._seen: dict[TopicPartition, Bounds] = {}  # bounds of the log and the table together
        self._latest: Offsets = {}
        self._blocked: list[Loss] = []  # the partitions last reported as unreadable
        self._committed: Offsets = {}  # the last offsets committed to the group
        self._commit_after = 0.0  # time before which a failed commit is not retried

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_access": None, "_history": None}

    def _opened(self) -> LogAccess:
        if self._access is None:
            self._access = open_access(self._options)
        return self._access

    def _bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]:
        self._log = self._seen = self._opened().bounds(partitions)
        if self._options["history"] is not None:
            if self._history is None or not self._log.keys() <= self._history.partitions:
                self._history = self._reader.history(self._opened(), self._log)
            assert self._history is not None, "the option is set"
            self._seen = with_history(self._log, self._history.progress)
        return self._seen

    # -- offsets -------------------------------------------------------------------------------

    @hide_traceback()
    def initialOffset(self) -> dict[str, Any]:
        bounds = self._bounds()
        start = starting(self._options, self._opened(), bounds)
        ends = ends_of(self._opened(), past_latest(start, bounds))
        check_losses(continued(StreamOffset(start, {}), bounds, ends).losses, self._options)
        return self._document(start)

    def _document(self, offsets: Offsets) -> dict[str, Any]:
        """Return the object that Spark stores: offsets, and topic ids from the last lookup."""
        ids = {tp.topic: self._seen[tp].topic_id for tp in offsets if tp in self._seen}
        return as_document(offsets, {name: at for name, at in ids.items() if at is not None})

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options["maxOffsetsPerTrigger"] is not None:
            return ReadMaxRows(self._options["maxOffsetsPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            return ReadMaxBytes(self._options["maxBytesPerTrigger"])
        return ReadAllAvailable()

    @hide_traceback()
    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen_end = {tp: bound.latest for tp, bound in self._bounds().items()}

    @hide_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = stream_offset(start)
        self._commit_progress(done.offsets)
        bounds = self._bounds()
        ends = ends_of(self._opened(), past_latest(done.offsets, bounds))
        begin, losses = continued(done, bounds, ends)
        check_losses(losses, self._options)
        self._check_blocked(blocked(begin, bounds))
        self._latest = {tp: bound.latest for tp, bound in bounds.items()}
        target = self._latest
        if self._frozen_end is not None:
            begin = {tp: at for tp, at in begin.items() if tp in self._frozen_end}
            target = {tp: min(self._frozen_end[tp], self._latest[tp]) for tp in begin}
        end = {tp: max(at, target[tp]) for tp, at in begin.items()}
        # After a loss, run a micro-batch now, so that the loss is not reported at every call.
        if self._should_wait(begin, end) and not losses:
            return start
        end = self._within(begin, end, limit)
        document = self._document(end)
        if end == done.offsets and done.topic_ids.items() <= document.get(TOPIC_IDS, {}).items():
            return start  # the identical object, or Spark would run an empty micro-batch
        return document

    def _check_blocked(self, losses: list[Loss]) -> None:
        """Report partitions that cannot be read further because of damage. Repeat a warning only
        if they change, because Spark calls `latestOffset` many times a second."""
        if losses != self._blocked:
            check_blocked(losses, self._options)
        self._blocked = losses

    def _should_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Return whether to wait for more records before running a micro-batch.

        The first micro-batch runs immediately, as in Spark's Kafka source: waiting would not delay
        it but make it empty.
        """
        least = self._options["minOffsetsPerTrigger"]
        if least is None or self._frozen_end is not None:
            return False
        now, last = time.monotonic(), self._triggered_at
        available = sum(end[tp] - begin[tp] for tp in end)
        is_in_time = last is not None and (now - last) * 1000 < self._options["maxTriggerDelay"]
        if available < least and is_in_time:
            return True
        self._triggered_at = now
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

    @hide_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        done, until = stream_offset(start), stream_offset(end)
        # After a restart, Spark plans a batch again without calling latestOffset first.
        is_seen = until.offsets.keys() <= self._seen.keys()
        bounds = self._seen if is_seen else self._bounds(until.offsets)
        found = plan(self._opened(), done, until, bounds)
        check_losses(found.losses, self._options)
        return self._reader.tasks(found.ranges, self._opened(), self._log, self._history)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_partition(partition)

    def _commit_progress(self, done: Mapping[TopicPartition, int]) -> None:
        """Commit the query's progress to its group, if it has one, to make the lag visible."""
        group = self._options["groupId"]
        if (
            group is None
            or not done
            or done == self._committed
            or time.monotonic() < self._commit_after
        ):
            return  # skip the request: an idle query calls this many times a second
        try:
            self._opened().commit_offsets(group, done)
            self._committed = dict(done)
        except StrandlogError as error:
            self._commit_after = time.monotonic() + COMMIT_RETRY_SECONDS
            logger.warning("cannot commit progress to group %r: %s", group, error)

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None


class InvalidStream(DataSourceStreamReader):
    """A stream that cannot be read, for example because of an invalid option; raises the error at
    the first call."""

    def __init__(self, reason: StrandlogError) -> None:
        self._reason = reason

    @hide_traceback()
    def initialOffset(self) -> dict[str, Any]:
        raise self._reason

    @hide_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        del start, limit
        raise self._reason

    @hide_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        del start, end
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        raise self._reason
