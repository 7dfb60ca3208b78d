"""Random work on a log and on a plain model of one, side by side.

The model is a dictionary of records, a log start, a high watermark and a log end. Whatever is done
to the log (appends, flushes, rolls, truncation, deletion, retention, compaction, clean stops,
kill -9, power cuts), readers see what the model says: from any offset, in reads of any size, and by
time.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.examples import examples
from tests.support.log_builders import (
    START_MS,
    TP,
    all_records,
    batch,
    iter_records,
    new_log,
    reopen,
    small_settings,
)

from strandlog.model import Record
from strandlog.record.batch_header import read_header
from strandlog.record.codecs import Codec
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.segment import offset_index, time_index
from strandlog.storage.segment.segment import ActiveSegment, Segment
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

RETENTION_MS = 40_000
DELETE_RETENTION_MS = 900
SETTINGS = small_settings(
    segment_bytes=420,
    index_interval_bytes=90,
    cleanup_policy=("delete", "compact"),
    retention_ms=RETENTION_MS,
    retention_bytes=6000,
    delete_retention_ms=DELETE_RETENTION_MS,
)


class Row(NamedTuple):
    """One record to be written."""

    key: bytes | None
    value: bytes | None
    age_ms: int


keys = st.sampled_from([None, b"", b"a", b"b", b"c"])
values = st.one_of(st.none(), st.sampled_from([b"", b"x", b"value " * 12]))
rows = st.builds(Row, keys, values, st.sampled_from([0, 0, 0, 5, 300]))
batches = st.lists(rows, min_size=1, max_size=4)
codecs = st.sampled_from(list(Codec))
fractions = st.integers(0, 100)


class LogModel(RuleBasedStateMachine):
    """The log, the model, and everything that can happen to both."""

    @initialize()
    def make(self) -> None:
        self.clock = FakeClock(START_MS)
        self.files = SimulatedFiles()
        self.log_dir, self.log = new_log(self.files, self.clock, SETTINGS)
        self.records: dict[int, Record] = {}
        self.first_compacted_ms: dict[int, int] = {}
        self.problems: list[str] = []  # only a power cut makes any
        self.start = self.flushed = self.end = 0
        self.sequence = 0
        self.producer_id = 1
        self.last_sent: tuple[int, bytes] | None = None

    # -- writing -------------------------------------------------------------------------------

    def note(self, rows: list[Row], base_offset: int) -> None:
        now_ms = self.clock.now_ms()
        for number, row in enumerate(rows):
            offset = base_offset + number
            timestamp = now_ms - row.age_ms
            self.records[offset] = Record(*TP, offset, timestamp, row.key, row.value)
        self.end = base_offset + len(rows)

    def made(
        self, rows: list[Row], codec: Codec, producer: tuple[int, int, int] | None = None
    ) -> bytes:
        times = [self.clock.now_ms() - row.age_ms for row in rows]
        return batch(
            *(row.value for row in rows),
            keys=[row.key for row in rows],
            timestamp=times[0],
            timestamps=times,
            codec=codec,
            producer=producer,
        )

    @rule(rows=batches, codec=codecs)
    def append(self, rows: list[Row], codec: Codec) -> None:
        result = self.log.append(self.made(rows, codec))
        assert (result.base_offset, result.last_offset) == (self.end, self.end + len(rows) - 1)
        self.note(rows, self.end)

    @rule(first=batches, second=batches, codec=codecs)
    def append_two_batches(self, first: list[Row], second: list[Row], codec: Codec) -> None:
        data = self.made(first, codec) + self.made(second, Codec.NONE)
        assert self.log.append(data).last_offset == self.end + len(first) + len(second) - 1
        self.note(first, self.end)
        self.note(second, self.end)

    @rule(rows=batches, codec=codecs, is_repeated=st.booleans())
    def append_with_sequence(self, rows: list[Row], codec: Codec, is_repeated: bool) -> None:
        data = self.made(rows, codec, (self.producer_id, 0, self.sequence))
        base = self.end
        assert not self.log.append(data).is_duplicate
        self.sequence += len(rows)
        self.note(rows, base)
        self.last_sent = (base, data)
        if is_repeated:
            self.repeat()

    @precondition(lambda self: self.last_sent is not None)
    @rule()
    def repeat(self) -> None:
        assert self.last_sent is not None
        base, data = self.last_sent
        result = self.log.append(data)
        assert (result.is_duplicate, result.base_offset) == (True, base)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule(rows=batches)
    def flush_late(self, rows: list[Row]) -> None:
        plan = self.log.flush_plan()
        end = self.end
        self.append(rows, Codec.NONE)
        self.log.roll()
        if plan is not None:
            plan.execute()
            self.log.flush_completed(plan)
            self.flushed = end

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(ms=st.sampled_from([1, 500, 5000]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        run_inline(self.log_dir.remover.remove(self.clock.now_ms()))

    # -- removing ------------------------------------------------------------------------------

    def place(self, fraction: int, low: int, high: int) -> int:
        return low + (high - low) * fraction // 100

    @rule(fraction=fractions)
    def raise_start(self, fraction: int) -> None:
        offset = self.place(fraction, self.start, self.flushed)
        self.log.raise_log_start(offset)
        run_inline(self.log_dir.write_log_starts())
        self.start = offset

    @rule(fraction=fractions)
    def truncate(self, fraction: int) -> None:
        offset = self.place(fraction, self.start, self.end)
        self.flush()
        # The batch that holds the offset goes as a whole, so the model asks where that begins.
        data = read(self.log, offset, 1)
        cut = min(offset, read_header(data).base_offset) if data else offset
        self.log.truncate_to(offset)
        self.records = {o: record for o, record in self.records.items() if o < cut}
        self.forget_producer()

    def forget_producer(self) -> None:
        self.producer_id += 1
        self.sequence = 0
        self.last_sent = None

    @rule(ms=st.sampled_from([0, RETENTION_MS // 2, RETENTION_MS + 1]))
    def retain(self, ms: int) -> None:
        self.clock.advance(ms)
        size_before, was_flushed = self.log.segments.size_bytes, self.flushed == self.end
        enforce_retention(self.log)
        start = self.log.log_start_offset
        assert self.start <= start <= self.flushed
        if self.log.flushed_offset != self.flushed:  # for a snapshot of what goes
            assert self.log.flushed_offset == self.end
            self.flushed = self.end
        gone = [r for o, r in self.records.items() if self.start <= o < start]
        newest = max((record.timestamp for record in gone), default=0)
        is_old = self.clock.now_ms() - newest > RETENTION_MS
        assert not gone or is_old or size_before > 6000
        if ms > RETENTION_MS and was_flushed:
            assert all_records(self.log) == [], "everything was old enough to go"
        self.start = start

    @rule(small_map=st.booleans())
    def compact(self, small_map: bool) -> None:
        compact_now(self.log, 24 if small_map else 10**6)
        self.flushed = self.end
        now_ms = self.clock.now_ms()
        left: dict[int, Record] = {}
        last_of = {r.key: o for o, r in sorted(self.records.items()) if r.key is not None}
        for offset, record in self.records.items():
            if offset < self.start:
                continue
            first_ms = self.first_compacted_ms.setdefault(offset, now_ms)
            is_over = first_ms + DELETE_RETENTION_MS <= now_ms and first_ms < now_ms
            is_tombstone = record.key is not None and record.value is None
            if record.key is not None and last_of[record.key] != offset:
                continue
            if not (is_tombstone and is_over):
                left[offset] = record
        self.records = left
        self.last_sent = None  # its records may be gone; its sequence is not

    # -- stopping ------------------------------------------------------------------------------

    @rule()
    def stop_cleanly(self) -> None:
        self.log_dir.close()
        self.log_dir, self.log = reopen(self.files, self.clock, SETTINGS)
        assert self.log_dir.was_clean
        assert self.log.last_report.is_clean
        assert self.log.last_report.scanned_bytes == 0
        self.problems = []
        self.flushed = self.end
        self.settle_start()

    @rule()
    def kill(self) -> None:
        self.files = self.files.after_kill()
        self.log_dir, self.log = reopen(self.files, self.clock, SETTINGS)
        assert self.log.log_end_offset == self.end, "what was written survives the process"
        assert self.log.last_report.torn_bytes == 0
        self.problems = []
        self.flushed = self.end
        self.settle_start()

    @rule(seed=st.integers(0, 10**6))
    def cut_power(self, seed: int) -> None:
        choice = self.files.random_crash(random.Random(seed))
        self.files = self.files.after_crash(choice)
        self.log_dir, self.log = reopen(self.files, self.clock, SETTINGS)
        end = self.log.log_end_offset
        assert self.flushed <= end <= self.end
        served = {record.offset for record in all_records(self.log)}
        loose = sorted(o for o in self.records if o >= max(self.flushed, self.start))
        kept = [o for o in loose if o in served]
        assert kept == loose[: len(kept)], "a gap in what was not flushed"
        lost = loose[len(kept) :]
        for offset in lost:
            del self.records[offset]
        if lost:
            self.forget_producer()
        self.end = self.flushed = end
        self.settle_start()
        self.problems = list(self.log.last_report.problems)

    def settle_start(self) -> None:
        """A start may move the log start over a gap, to the first segment that is there."""
        start = self.log.log_start_offset
        assert start >= self.start
        assert not [o for o in self.records if self.start <= o < start]
        self.start = start

    # -- looking -------------------------------------------------------------------------------

    def visible(self, start: int | None = None) -> list[Record]:
        first = self.start if start is None else start
        return [r for o, r in sorted(self.records.items()) if first <= o < self.flushed]

    @rule(fraction=fractions, max_bytes=st.sampled_from([1, 100, 250, 10_000]))
    def read_from_anywhere(self, fraction: int, max_bytes: int) -> None:
        offset = self.place(fraction, self.start, self.flushed)
        found = list(iter_records(self.log, offset, max_bytes=max_bytes))
        assert found == self.visible(offset)

    @rule()
    def read_what_is_not_flushed(self) -> None:
        found = all_records(self.log, unflushed=True)
        assert found == [r for o, r in sorted(self.records.items()) if o >= self.start]

    @rule(fraction=fractions, shift=st.sampled_from([-1, 0, 1]))
    def look_up_a_time(self, fraction: int, shift: int) -> None:
        visible = self.visible()
        times = [START_MS] + [record.timestamp for record in visible]
        wanted = times[(len(times) - 1) * fraction // 100] + shift
        expected = next((r for r in visible if r.timestamp >= wanted), None)
        found = run_inline(find_timestamp(self.log, wanted))
        assert found == (expected and (expected.timestamp, expected.offset))

    @invariant()
    def the_marks_are_right(self) -> None:
        log = self.log
        assert log.log_start_offset == self.start
        assert log.high_watermark == log.flushed_offset == self.flushed
        assert log.log_end_offset == self.end
        assert log.last_report.problems == self.problems
        bases = [segment.base_offset for segment in log.segments.all()]
        assert bases == sorted(set(bases))

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert all_records(self.log) == self.visible()
            for segment in self.log.segments.all():
                check_indexes(self.log, segment)


def check_indexes(log: PartitionLog, segment: Segment) -> None:
    """Every entry of both indexes tells the truth about the log."""
    data = log.context.files.read(segment.log_path) if segment.size_bytes else b""
    batches = []
    position = 0
    while position < segment.size_bytes:
        header = read_header(data, position)
        batches.append((position, header))
        position += header.size_bytes
    if isinstance(segment, ActiveSegment):
        offsets = [tuple(entry) for entry in segment.indexes.offsets.all_entries()]
        times = [tuple(entry) for entry in segment.indexes.times.all_entries()]
    else:
        maps = log.context.cache.get(segment)
        offsets = list(offset_index.ENTRY.iter_unpack(maps.index))
        times = list(time_index.ENTRY.iter_unpack(maps.time_index))
    ends = {at: header.last_offset - segment.base_offset for at, header in batches}
    assert all(ends[at] == offset for offset, at in offsets)
    assert offsets == sorted(set(offsets))
    assert times == sorted(set(times))
    for timestamp, offset in times:
        reached = [h for _, h in batches if h.max_timestamp >= timestamp]
        assert reached[0].last_offset == offset + segment.base_offset


TestLogModel = LogModel.TestCase
TestLogModel.settings = examples(
    stateful_step_count=40,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
