"""Compaction keeps the last value of each key, at its old offset, and nothing that it replaces."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.log_builders import (
    FOLDER,
    START_MS,
    all_records,
    batch,
    new_log,
    offsets,
    reopen,
    small_settings,
)

from strandlog.errors import CorruptSegmentError
from strandlog.model import Buffer, Headers
from strandlog.record import batch as batch_module
from strandlog.record.batch_header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    CRC_START,
    read_header,
)
from strandlog.record.builder import build_batch
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.cleaning.compaction import compact_now, plan_compaction, plan_due_compaction
from strandlog.storage.cleaning.policy import need_for_compaction
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.files import MappedFile
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.segment import scan
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_LOST

COMPACT = small_settings(cleanup_policy=("compact",), delete_retention_ms=1000)
NO_ROOM = 0  # the smallest map: fourteen keys

Pair = tuple[bytes | None, bytes | None]


def compacted_log(
    files: SimulatedFiles | None = None, clock: FakeClock | None = None, **changes: object
) -> PartitionLog:
    changed = small_settings(
        **({"cleanup_policy": ("compact",), "delete_retention_ms": 1000} | changes)
    )
    return new_log(files or SimulatedFiles(), clock or FakeClock(START_MS), changed)[1]


def put(log: PartitionLog, *pairs: Pair, codec: Codec = Codec.NONE) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    log.append(batch(*values, keys=keys, timestamp=log.context.clock.now_ms(), codec=codec))


def headers(log: PartitionLog) -> list[tuple[int, int, int]]:
    """(base offset, last offset, records) of each batch on disk."""
    found = []
    for segment in log.segments.all():
        data = log.context.files.read(segment.log_path) if segment.size_bytes else b""
        position = 0
        while position < len(data):
            header = read_header(data, position)
            found.append((header.base_offset, header.last_offset, header.record_count))
            position += header.size_bytes
    return found


def test_records_without_a_key_stay_and_offsets_do_not_change() -> None:
    log = compacted_log()
    put(log, (b"a", b"1"), (None, b"x"), (b"b", b"1"), (b"a", b"2"))
    put(log, (None, None), (b"a", b"3"))
    report = compact_now(log)
    left = [(r.offset, r.key, r.value) for r in all_records(log)]
    assert left == [(1, None, b"x"), (2, b"b", b"1"), (4, None, None), (5, b"a", b"3")]
    assert (report.records_removed, report.records_retained) == (2, 4)
    assert report.bytes_after == log.segments.size_bytes < report.bytes_before
    assert headers(log) == [(0, 3, 2), (4, 5, 2)], "a batch answers for the offsets it had"
    assert log.append(batch(b"next")).base_offset == 6


pairs = st.tuples(
    st.sampled_from([None, b"", b"a", b"b", b"c"]) | st.integers(0, 30).map(lambda n: b"k%d" % n),
    st.sampled_from([b"", b"value", b"longer value " * 5]),
)
scripts = st.lists(
    st.one_of(
        st.lists(pairs, min_size=1, max_size=5),
        st.sampled_from(["compact", "compact in passes", "kill", "power cut"]),
    ),
    min_size=1,
    max_size=25,
)


@examples(0.3)
@given(script=scripts, codecs=st.lists(st.sampled_from(list(Codec)), min_size=1, max_size=3))
def test_the_log_is_a_dict_of_last_values(
    script: list[list[Pair] | str], codecs: list[Codec]
) -> None:
    files = SimulatedFiles()
    log = compacted_log(files)
    written: list[tuple[int, bytes | None, bytes | None]] = []
    for number, step in enumerate([*script, "compact"]):
        if isinstance(step, list):
            base = log.log_end_offset
            put(log, *step, codec=codecs[number % len(codecs)])
            written += [(base + n, key, value) for n, (key, value) in enumerate(step)]
            log.flush()
        elif step in ("kill", "power cut"):
            files = files.after_kill() if step == "kill" else files.after_crash(ALL_LOST)
            log = reopen(files, settings=COMPACT)[1]
            assert log.last_report.problems == []
        else:
            compact_now(log, **({} if step == "compact" else {"map_bytes": NO_ROOM}))
            last = {key: offset for offset, key, _ in written}
            written = [row for row in written if row[1] is None or last[row[1]] == row[0]]
        assert [(r.offset, r.key, r.value) for r in all_records(log)] == written


def test_a_small_offset_map_takes_several_passes_to_the_same_result() -> None:
    logs = [compacted_log(), compacted_log()]
    for log in logs:
        for number in range(120):
            put(log, (b"key %d" % (number * 7 % 45), b"value %d" % number))
        log.roll()
        log.flush()
    few = plan_compaction(logs[0], 0, 120, NO_ROOM)
    assert few is not None
    few.execute()
    report = run_inline(few.complete())
    assert 0 < report.next_dirty_offset < 120
    ends = [report.next_dirty_offset]
    assert len(all_records(logs[0])) > 45
    while ends[-1] < 120:
        plan = plan_compaction(logs[0], ends[-1], 120, NO_ROOM)
        assert plan is not None
        plan.execute()
        ends.append(run_inline(plan.complete()).next_dirty_offset)
    assert len(ends) > 2
    assert ends == sorted(set(ends))
    compact_now(logs[1])
    assert all_records(logs[0]) == all_records(logs[1])
    assert len(all_records(logs[0])) == 45


# -- tombstones --------------------------------------------------------------------------------


def test_a_tombstone_stays_until_its_horizon_which_the_first_compaction_sets() -> None:
    clock = FakeClock(START_MS)
    log = compacted_log(clock=clock)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), (b"c", b"1"))
    clock.advance(5000)  # however old the record is
    compact_now(log)
    assert [(r.offset, r.value) for r in all_records(log)] == [(1, b"1"), (2, None), (3, b"1")]
    assert [r.timestamp for r in all_records(log)] == [START_MS] * 3
    clock.advance(999)
    compact_now(log)
    assert offsets(log) == [1, 2, 3], "a second compaction does not set a new horizon"
    clock.advance(1)
    compact_now(log)
    assert offsets(log) == [1, 3]
    assert [r.timestamp for r in all_records(log)] == [START_MS] * 2


def test_a_tombstone_that_the_offset_map_has_no_room_for_stays() -> None:
    clock = FakeClock(START_MS)
    log = compacted_log(clock=clock, segment_bytes=100_000)
    put(log, *((b"key %d" % n, b"1") for n in range(40)))
    put(log, (b"key 39", None))
    log.roll()
    log.flush()
    for _ in range(2):
        plan = plan_compaction(log, 0, 41, NO_ROOM)
        assert plan is not None
        plan.execute()
        run_inline(plan.complete())
        clock.advance(10_000)
        assert all_records(log)[-1].value is None, "what it deletes is still there"
    for _ in range(2):
        compact_now(log)
        clock.advance(10_000)
    assert offsets(log) == list(range(39))


def test_a_key_that_comes_back_after_its_tombstone_stays() -> None:
    clock = FakeClock(START_MS)
    log = compacted_log(clock=clock)
    for value in (b"1", None, b"2"):
        put(log, (b"a", value))
        compact_now(log)
        clock.advance(10_000)
    compact_now(log)
    assert [(r.offset, r.value) for r in all_records(log)] == [(2, b"2")]


# -- when and how far --------------------------------------------------------------------------


def dirty_log(clock: FakeClock, **changes: object) -> PartitionLog:
    log = compacted_log(None, clock, **changes)
    for number in range(30):
        put(log, (b"k", b"v%d" % number))
        clock.advance(10)
    log.flush()
    return log


def test_a_due_compaction_leaves_the_active_segment_alone() -> None:
    log = dirty_log(FakeClock(START_MS))
    active = log.segments.active.base_offset
    plan = plan_due_compaction(log, 0)
    assert plan is not None
    plan.execute()
    assert run_inline(plan.complete()).next_dirty_offset == active
    assert offsets(log) == [active - 1, *range(active, 30)]
    assert plan_due_compaction(log, active) is None


def test_young_records_wait_for_min_compaction_lag() -> None:
    clock = FakeClock(START_MS)
    log = dirty_log(clock, min_compaction_lag_ms=1000)
    assert plan_due_compaction(log, 0) is None
    clock.advance(1000 - 299 + 70)  # now the first seven or so are old enough
    plan = plan_due_compaction(log, 0)
    assert plan is not None
    assert plan.end_offset == log.segments.sealed[0].end_offset
    plan.execute()
    run_inline(plan.complete())
    assert offsets(log) == list(range(plan.end_offset - 1, 30))


def test_a_log_below_the_dirty_ratio_is_compacted_after_max_compaction_lag() -> None:
    clock = FakeClock(START_MS)
    log = dirty_log(clock, min_cleanable_dirty_ratio=0.9, max_compaction_lag_ms=5000)
    first_dirty = log.segments.sealed[0].end_offset
    assert plan_due_compaction(log, first_dirty) is None
    clock.advance(5000)
    assert plan_due_compaction(log, first_dirty) is not None


def test_unflushed_records_are_not_compacted() -> None:
    log = compacted_log()
    for number in range(30):
        put(log, (b"k", b"v%d" % number))
    assert len(log.segments) > 3
    assert need_for_compaction(log, 0).end_offset == 0
    assert plan_due_compaction(log, 0) is None
    log.flush()
    assert plan_due_compaction(log, 0) is not None


# -- batches that stay -------------------------------------------------------------------------


def test_the_last_batch_of_a_producer_stays_emptied_until_it_writes_again() -> None:
    files = SimulatedFiles()
    log = compacted_log(files)
    sent = batch(b"1", b"2", keys=[b"a", b"b"], producer=(7, 0, 10))
    log.append(sent)
    put(log, (b"a", b"x"), (b"b", b"x"))
    compact_now(log)
    assert (headers(log), offsets(log)) == ([(0, 1, 0), (2, 3, 2)], [2, 3])
    for name in files.list_dir(FOLDER):
        if name.endswith((".snapshot", "recovery-point")):
            files.remove(f"{FOLDER}/{name}")
    _, log = reopen(files.after_kill(), settings=COMPACT)
    result = log.append(sent)
    assert (result.is_duplicate, result.base_offset, result.last_offset) == (True, 0, 1)
    log.append(batch(b"3", keys=[b"c"], producer=(7, 0, 12)))
    compact_now(log)
    assert (headers(log), offsets(log)) == ([(2, 3, 2), (4, 4, 1)], [2, 3, 4])


def test_control_batches_stay() -> None:
    log = compacted_log()
    put(log, (b"a", b"1"))
    marker = control_batch(ControlType.COMMIT, 9, 0, START_MS, coordinator_epoch=1)
    log.append(marker, is_control=True)
    put(log, (b"a", b"2"))
    compact_now(log)
    assert (headers(log), offsets(log)) == ([(1, 1, 1), (2, 2, 1)], [2])


def test_an_intact_batch_that_cannot_be_decoded_stays_as_it_is() -> None:
    log = compacted_log()
    put(log, (b"a", b"1"))
    lying = bytearray(batch(b"not gzip", keys=[b"a"]))
    struct.pack_into(">h", lying, ATTRIBUTES_POSITION, Codec.GZIP)
    struct.pack_into(">I", lying, CRC_POSITION, crc32c(bytes(lying[CRC_START:])))
    log.append(bytes(lying))
    put(log, (b"a", b"2"))
    compact_now(log)
    assert headers(log) == [(1, 1, 1), (2, 2, 1)]
    assert bytes(lying[16:]) in log.context.files.read(log.segments.sealed[0].log_path)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_its_codec_times_and_headers(codec: Codec) -> None:
    log = compacted_log(segment_bytes=100_000)
    times = [START_MS + 5, START_MS + 2, START_MS + 9]
    extras: list[Headers] = [(("h", b"1"), ("h", None)), (), (("gone", b""),)]
    keys = [b"a", b"b", b"c"]
    log.append(build_batch(0, [b"1", b"2", b"3"], keys, extras, codec=codec, timestamps=times))
    put(log, (b"c", b"4"))
    compact_now(log)
    data = log.context.files.read(log.segments.sealed[0].log_path)
    header = read_header(data)
    assert (header.codec, header.record_count, header.last_offset) == (codec, 2, 2)
    assert header.max_timestamp == START_MS + 5, "of the records that are left"
    left = all_records(log)
    assert [r.timestamp for r in left] == [START_MS + 5, START_MS + 2, START_MS]
    assert [r.headers for r in left] == [*extras[:2], ()]


def test_time_lookups_work_in_a_compacted_log_and_after_a_restart() -> None:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log = compacted_log(files, clock)
    for number in range(60):
        put(log, (b"k%d" % (number * number % 23), b"v"))
        clock.advance(7)
    compact_now(log)
    for look in (log, reopen(files.after_kill(), clock, COMPACT)[1]):
        left = all_records(look)
        for timestamp in range(START_MS, START_MS + 430, 5):
            first = next(((r.timestamp, r.offset) for r in left if r.timestamp >= timestamp), None)
            assert run_inline(find_timestamp(look, timestamp)) == first


# -- trouble -----------------------------------------------------------------------------------


def test_damage_ends_the_compaction_and_leaves_every_original() -> None:
    log = dirty_log(FakeClock(START_MS))
    files = log.context.files
    assert isinstance(files, SimulatedFiles)
    segment = log.segments.sealed[1]
    files.flip_bit(segment.log_path, 8 * (segment.size_bytes - 3))
    before = {path: data for path, data in files.contents().items() if path.endswith(".log")}
    plan = plan_due_compaction(log, 0)
    assert plan is not None
    with pytest.raises(CorruptSegmentError, match=r"\.log is damaged"):
        plan.execute()
    after = {path: data for path, data in files.contents().items() if path.endswith(".log")}
    assert after == before


def test_retention_may_drop_segments_while_they_are_compacted() -> None:
    log = dirty_log(FakeClock(START_MS))
    plan = plan_due_compaction(log, 0)
    assert plan is not None
    plan.execute()
    run_inline(drop_oldest(log, 2))
    left = offsets(log)
    run_inline(plan.complete())
    assert offsets(log)[-1] == 29
    assert set(offsets(log)) <= set(left)
    assert not [n for n in log.context.files.list_dir(FOLDER) if n.endswith((".cleaned", ".swap"))]


def test_files_of_an_unfinished_compaction_are_removed_at_the_start() -> None:
    log = dirty_log(FakeClock(START_MS))
    plan = plan_due_compaction(log, 0)
    assert plan is not None
    plan.execute()
    files = log.context.files
    assert isinstance(files, SimulatedFiles)
    disk = files.after_kill()
    assert any(name.endswith(".cleaned") for name in disk.list_dir(FOLDER))
    _, log = reopen(disk, settings=COMPACT)
    assert offsets(log) == list(range(30))
    assert not any(name.endswith(".cleaned") for name in disk.list_dir(FOLDER))


class MapCounter(SimulatedFiles):
    """Notes which files are mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped: list[str] = []

    def map(self, path: str) -> MappedFile:
        self.mapped.append(path)
        return super().map(path)


def test_a_second_compaction_does_not_read_clean_segments_for_its_map() -> None:
    files = MapCounter()
    log = compacted_log(files)
    for number in range(40):
        put(log, (b"k%d" % (number % 10), b"v%d" % number))
    clean_end = compact_now(log).next_dirty_offset
    for number in range(20):
        put(log, (b"new%d" % number, b"v"))
    log.roll()
    log.flush()
    plan = plan_compaction(log, clean_end, log.last_stable_offset)
    assert plan is not None
    clean = {s.log_path for s in plan.segments if s.end_offset <= clean_end}
    files.mapped.clear()
    last_offsets, _ = plan._build_map()
    assert clean
    assert not clean & set(files.mapped)
    assert len(last_offsets) == 20


def test_a_compaction_verifies_each_batch_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    log = compacted_log()
    for number in range(10):
        put(log, (b"k%d" % number, b"v"))
    log.roll()
    log.flush()
    plan = plan_compaction(log, 0, log.last_stable_offset)
    assert plan is not None
    checked: list[int] = []

    def counted(data: Buffer) -> int:
        checked.append(len(data))
        return crc32c(data)

    monkeypatch.setattr(scan, "crc32c", counted)
    monkeypatch.setattr(batch_module, "crc32c", counted)
    plan.execute()
    assert len(checked) <= 2 * 10


def test_compaction_unpacks_no_more_than_decompressed_max_bytes() -> None:
    _, log = new_log(SimulatedFiles(), settings=COMPACT, decompressed_max_bytes=10_000)
    log.append(batch(bytes(20_000), keys=[b"k"], codec=Codec.ZSTD))
    log.append(batch(b"newer", keys=[b"k"]))
    log.roll()
    log.flush()
    plan = plan_compaction(log, 0, log.log_end_offset)
    assert plan is not None
    plan.execute()
    report = run_inline(plan.complete())
    assert report.records_removed == 0
    assert "10000" in report.undecodable[0]
