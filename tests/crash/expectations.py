"""What must be true of a folder after a crash between two known states, whatever the crash left.

For each partition, with B the state before the operation that was cut off and A the state after it:

    served    only what is in B or A, with exactly what was handed in, ascending, nothing twice
              all that is in both and was flushed before (after kill -9: what is in both)
              of what was not flushed, a beginning: nothing after a gap
    end       at least what was ever flushed, at most what was ever given out
    start     what was deleted durably stays deleted
    keys      each key of the compacted topic has its last value, deleted ones none
    time      a lookup by time finds the first record
    producer  a retry of the last batch is known
    stable    open and aborted transactions are those that the batches tell
    goes on   takes records, flushes, closes, opens clean and shows them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.crash.workload import EXTRA, SETTINGS, TABLE, History, PartitionState, Recording
from tests.support.log_builders import START_MS, all_records, batch, open_dir

from strandlog.model import Record
from strandlog.record.batch import BatchView
from strandlog.record.control import ControlType, read_control
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read, read_batches
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.segment.scan import NEVER, batches_of_read
from strandlog.storage.segment.transaction_index import AbortedTransaction
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

LATER_MS = START_MS + 500_000_000


class BrokenPromiseError(AssertionError):
    """A crash left a folder that breaks a promise."""


def ensure(condition: bool, text: str) -> None:
    if not condition:
        raise BrokenPromiseError(text)


@dataclass(frozen=True)
class Moment:
    """Operation number `number` of a recorded life is under way."""

    recording: Recording
    number: int
    killed: bool = False  # kill -9: all that was written is there

    @property
    def name(self) -> str:
        names = self.recording.names
        return names[self.number] if self.number < len(names) else "the end"

    def states(self, topic_id: str) -> tuple[PartitionState | None, PartitionState | None]:
        """The partition before and after the operation; None where it does not exist."""
        states = self.recording.states
        after = states[min(self.number + 1, len(states) - 1)]
        return states[self.number].get(topic_id), after.get(topic_id)

    def topic_ids(self) -> set[str]:
        """Every topic that may be there."""
        return {topic_id for topic_id in self.recording.histories if any(self.states(topic_id))}


Served = dict[str, list[Record]]


def check_folder(disk: SimulatedFiles, moment: Moment, *, max_bytes: int = 300) -> Served:
    """Open the folder, hold everything against the moment, go on with it. Returns what it served
    after opening."""
    log_dir, opened = open_all(disk, moment)
    served: Served = {}
    for topic_id, log in opened.items():
        served[topic_id] = all_records(log, max_bytes=max_bytes)
        check = PartitionCheck(log, served[topic_id], moment, topic_id)
        check.run(moment.recording.histories[topic_id])
    _check_going_on(disk, log_dir, moment, opened, served)
    return served


def open_all(disk: SimulatedFiles, moment: Moment) -> tuple[LogDir, dict[str, PartitionLog]]:
    """Open what belongs to the recorded topics; what belongs to none is set aside."""
    log_dir = open_dir(disk, FakeClock(LATER_MS))
    opened: dict[str, PartitionLog] = {}
    possible = moment.topic_ids()
    for tp, topic_id in list(log_dir.partition_folders()):
        if topic_id in possible:
            opened[topic_id] = log_dir.open_partition(tp, SETTINGS[tp])
        else:
            ensure(topic_id == "" or tp == EXTRA, f"{tp} came back with the old id {topic_id}")
            log_dir.set_stray_aside(tp)
    for topic_id in possible:
        before, after = moment.states(topic_id)
        ensure(
            topic_id in opened or before is None or after is None,
            f"{before and before.tp} is gone",
        )
    return log_dir, opened


class PartitionCheck:
    """One partition after a crash."""

    def __init__(
        self, log: PartitionLog, records: list[Record], moment: Moment, topic_id: str
    ) -> None:
        self.log = log
        self.records = records
        self.served = {record.offset for record in records}
        self.killed = moment.killed
        before, after = moment.states(topic_id)
        known = [state for state in (before, after) if state is not None]
        self.possible = frozenset[int]().union(*(state.offsets for state in known))
        self.certain = known[0].offsets.intersection(*(state.offsets for state in known[1:]))
        self.flushed = before.flushed if before else 0
        self.durable_start = before.durable_start if before else 0
        self.lowest_end = before.end if before and self.killed else self.flushed
        self.highest_start = max(state.start for state in known)
        self.highest_end = max(state.end for state in known)

    def run(self, history: History) -> None:
        self._check_contents(history)
        self._check_completeness()
        self._check_ends()
        self._check_times()
        if self.log.tp == TABLE:
            self._check_keys(history)
        self._check_transactions()
        self._check_producers(history)

    def _check_transactions(self) -> None:
        log = self.log
        open_from, aborted = told_transactions(log)
        start = log.log_start_offset  # reads below the log start are rejected
        known = {entry.last_offset: entry for entry in log.aborted}
        for told in aborted:
            entry = known.pop(told.last_offset, None)
            ensure(
                entry is not None
                and entry.producer_id == told.producer_id
                and (entry.first_offset == told.first_offset or entry.first_offset < start),
                f"{told} was aborted, the index says {entry}",
            )
        # A transaction may have been compacted, or deleted up to its marker; then only the index
        # knows of it.
        may_be_gone = [] if log.settings.compacts else list(known.values())
        for entry in may_be_gone:
            ensure(entry.first_offset < start, f"{entry} was not aborted")
        believed = log.producers.open_transactions()
        for producer_id, first in open_from.items():
            found = believed.pop(producer_id, None)
            ensure(
                found == first or (found is not None and found < start),
                f"producer {producer_id} began at {first}, the log says {found}",
            )
        ensure(
            all(first < start for first in believed.values()),
            f"transactions {believed} are open and were not begun",
        )

    def _check_contents(self, history: History) -> None:
        last = -1
        for record in self.records:
            ensure(record.offset > last, f"offset {record.offset} comes after {last}")
            last = record.offset
            ensure(
                record.offset in self.possible,
                f"offset {record.offset} was removed and is back, or never was",
            )
            row = history.rows[record.offset]
            ensure(
                (record.timestamp, record.key, record.value) == row,
                f"offset {record.offset} reads {record[3:6]}, written was {row}",
            )

    def _check_completeness(self) -> None:
        must = {
            offset
            for offset in self.certain
            if offset >= self.highest_start and (self.killed or offset < self.flushed)
        }
        missing = sorted(must - self.served)
        ensure(not missing, f"offsets {missing[:5]} were acknowledged and are gone")
        loose = sorted(o for o in self.certain if o >= max(self.flushed, self.highest_start))
        flags = [offset in self.served for offset in loose]
        ensure(flags == sorted(flags, reverse=True), f"of {loose} only {flags} are there: a gap")

    def _check_ends(self) -> None:
        log = self.log
        ensure(
            log.log_end_offset >= self.lowest_end,
            f"the log ends at {log.log_end_offset}, acknowledged was {self.lowest_end}",
        )
        ensure(
            log.log_end_offset <= self.highest_end,
            f"the log ends at {log.log_end_offset}, only {self.highest_end} were given out",
        )
        ensure(
            log.log_start_offset >= self.durable_start,
            f"the log starts at {log.log_start_offset}, it was raised to {self.durable_start}",
        )
        ensure(
            log.log_start_offset <= log.high_watermark == log.log_end_offset,
            f"start {log.log_start_offset}, high watermark {log.high_watermark}, "
            f"end {log.log_end_offset}",
        )

    def _check_times(self) -> None:
        """A lookup by time finds the first record or transaction marker, as Kafka's does."""
        records = [(record.offset, record.timestamp) for record in self.records]
        times = sorted([*records, *marker_times(self.log)])
        for wanted in {timestamp + shift for _, timestamp in records[::5] for shift in (0, 1)}:
            expected = next(((ms, offset) for offset, ms in times if ms >= wanted), None)
            found = run_inline(find_timestamp(self.log, wanted))
            ensure(found == expected, f"the first record at {wanted} is {expected}, found {found}")

    def _check_keys(self, history: History) -> None:
        start = self.log.log_start_offset
        believed = {
            offset: row
            for offset, row in sorted(history.rows.items())
            if offset >= start and (offset < self.flushed or offset in self.served)
        }
        expected = last_values((row.key, row.value) for row in believed.values())
        found = last_values((record.key, record.value) for record in self.records)
        ensure(found == expected, f"keys are {found}, should be {expected}")

    def _check_producers(self, history: History) -> None:
        # What came after the end of the log was lost with it: the batch before that is the last.
        end = min(self.highest_end, self.log.log_end_offset)
        last_of = {sent.producer_id: sent for sent in history.sent if sent.last_offset < end}
        for sent in last_of.values():
            whole = all(o in self.served for o in range(sent.base_offset, sent.last_offset + 1))
            if not whole:
                continue
            result = self.log.append(sent.data)
            ensure(
                result.is_duplicate and result.base_offset == sent.base_offset,
                f"a retry of offset {sent.base_offset} was written again: {result}",
            )


def told_transactions(log: PartitionLog) -> tuple[dict[int, int], list[AbortedTransaction]]:
    """(first offsets of open transactions, aborted ones), as the batches themselves tell."""
    open_from: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = read(log, offset, 400, unflushed=True)
        if not data:
            break
        for view in batches_of_read(data, path=log.folder, offset=offset, end_offset=NEVER):
            header = view.header
            offset = header.next_offset
            if header.is_control:
                first = open_from.pop(header.producer_id, None)
                if read_control(view).kind is ControlType.ABORT and first is not None:
                    aborted.append(
                        AbortedTransaction(header.producer_id, first, header.base_offset, 0)
                    )
            elif header.is_transactional:
                open_from.setdefault(header.producer_id, header.base_offset)
    return open_from, aborted


def marker_times(log: PartitionLog) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each transaction marker."""
    for item in read_batches(log, log.log_start_offset, 400):
        ensure(isinstance(item, BatchView), str(item))
        if isinstance(item, BatchView) and item.header.is_control:
            yield item.header.base_offset, item.header.max_timestamp


def last_values(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes, bytes]:
    """What a table made of these records holds."""
    table: dict[bytes, bytes] = {}
    for key, value in pairs:
        if key is None:
            continue
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


def _check_going_on(
    disk: SimulatedFiles,
    log_dir: LogDir,
    moment: Moment,
    opened: dict[str, PartitionLog],
    served: Served,
) -> None:
    expected: Served = {}
    for topic_id, log in opened.items():
        end = log.log_end_offset
        result = log.append(batch(b"one", b"two", timestamp=LATER_MS))
        ensure(result.base_offset == end, f"the next record got {result}, the log ended at {end}")
        log.flush()
        added = [
            Record(*log.tp, end + number, LATER_MS, None, value)
            for number, value in enumerate((b"one", b"two"))
        ]
        expected[topic_id] = served[topic_id] + added
    log_dir.close()
    log_dir, opened = open_all(disk, moment)
    ensure(log_dir.was_clean, "the clean stop left no marker")
    for topic_id, log in opened.items():
        ensure(all_records(log) == expected[topic_id], "a clean stop changed the records")
        ensure(log.last_report.is_clean, f"after a clean stop: {log.last_report}")
        ensure(not log.last_report.scanned_bytes, f"after a clean stop: {log.last_report}")
    log_dir.close()
