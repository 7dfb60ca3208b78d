"""What the read-only view of a folder reads, and how often."""

from __future__ import annotations

import pytest
from tests.support.log_builders import (
    DATA,
    FOLDER,
    START_MS,
    TP,
    batch,
    fill,
    new_log,
    reopen,
    small_settings,
)

from strandlog.errors import CorruptSegmentError, CorruptStateError
from strandlog.model import Buffer
from strandlog.record.batch_header import (
    HEADER_SIZE,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    read_header,
)
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.readonly.view import FolderView
from strandlog.storage.segment.scan import BUFFER_BYTES
from strandlog.storage.segment.time_index import ENTRY
from strandlog.testing import FakeClock, SimulatedFiles


class ReadCounter(SimulatedFiles):
    """Notes how many bytes of each file are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}

    def _note(self, path: str, data: Buffer) -> None:
        self.read_bytes[path] = self.read_bytes.get(path, 0) + len(data)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self._note(path, data)
        return data

    def read_at(self, path: str, position: int, length: int) -> bytes:
        data = SimulatedFiles.read(self, path)[position : position + length]
        self._note(path, data)
        return data


def test_reads_of_the_last_segment_do_not_load_its_whole_index_again() -> None:
    files = ReadCounter()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    fill(log, 40)
    log_dir.close()
    view = FolderView(files, DATA).view(TP)
    path = log.segments.active.stem + ".index"
    size = files.size(path)
    assert size > 0
    files.read_bytes.clear()
    for offset in range(40):
        assert view.read(offset, 1)
    assert files.read_bytes[path] == size, "once"


def test_an_index_that_grew_is_read_from_where_it_grew() -> None:
    files = ReadCounter()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    fill(log, 200)
    log.flush()
    view = FolderView(files, DATA).view(TP)
    assert view.read(199, 1)
    path = log.segments.active.stem + ".index"
    before = files.read_bytes.get(path, 0)
    fill(log, 200)
    log.flush()
    view.refresh()
    assert view.read(399, 1)
    assert files.read_bytes[path] == files.size(path) > before


def test_a_time_lookup_does_not_scan_segments_that_are_too_old() -> None:
    files = ReadCounter()
    clock = FakeClock(START_MS)
    log_dir, log = new_log(files, clock)
    for number in range(60):
        log.append(batch(b"v%d" % number, timestamp=START_MS + number))
    log_dir.close()
    old = [segment.log_path for segment in log.segments.sealed[:-1]]
    view = FolderView(files, DATA).view(TP)
    files.read_bytes.clear()
    found = view.find_timestamp(START_MS + 59)
    assert found is not None
    assert found.offset == 59
    assert len(old) > 3
    assert not any(files.read_bytes.get(path, 0) for path in old)
    assert [view.find_timestamp(START_MS + n) for n in range(60)] == [
        (START_MS + n, n) for n in range(60)
    ]


def cut_in_the_middle_of_an_append(files: SimulatedFiles, log: PartitionLog) -> None:
    """Leave what a writer leaves that is killed while it appends."""
    data = bytes(batch(b"never finished", timestamp=START_MS + 1000))
    files.append_to(log.segments.active.log_path, data[: len(data) // 2])


def test_a_time_lookup_beside_a_killed_writer_finds_nothing_instead_of_failing() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    for number in range(10):
        log.append(batch(b"v%d" % number, timestamp=START_MS + number))
    log.flush()
    cut_in_the_middle_of_an_append(files, log)
    view = FolderView(files, DATA).view(TP)
    assert view.find_timestamp(START_MS + 9) == (START_MS + 9, 9)
    assert view.find_timestamp(START_MS + 10) is None


def test_a_time_lookup_reads_only_the_part_of_a_segment_that_can_match() -> None:
    files = ReadCounter()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=200_000))
    for number in range(400):
        log.append(batch(bytes(1000), timestamp=START_MS + number))
    log_dir.close()
    assert len(log.segments) == 3
    view = FolderView(files, DATA).view(TP)
    for wanted in (150, 390):  # in a sealed segment and in the last one
        files.read_bytes.clear()
        assert view.find_timestamp(START_MS + wanted) == (START_MS + wanted, wanted)
        read_bytes = sum(n for path, n in files.read_bytes.items() if path.endswith(".log"))
        assert read_bytes <= 3 * BUFFER_BYTES, "not the whole segment"


@pytest.mark.parametrize("position", [MAGIC_POSITION, HEADER_SIZE + 3])
def test_a_time_lookup_names_the_file_wherever_a_batch_is_damaged(position: int) -> None:
    """A damaged record was a CorruptRecordError without the path, a damaged header was not."""
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    log.append(batch(b"v", timestamp=START_MS))
    log_dir.close()
    path = log.segments.active.log_path
    files.write_at(path, position, b"\x77")
    with pytest.raises(CorruptSegmentError) as caught:
        FolderView(files, DATA).view(TP).find_timestamp(START_MS)
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path, 0, -1)


def test_a_time_lookup_trusts_no_time_index_that_the_log_contradicts() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    for number in range(60):
        log.append(batch(b"v%d" % number, timestamp=START_MS + number))
    log_dir.close()
    path = log.segments.active.stem + ".timeindex"
    entries = bytearray(files.read(path))
    for position in range(0, len(entries), ENTRY.size):
        timestamp, offset = ENTRY.unpack_from(entries, position)
        ENTRY.pack_into(entries, position, timestamp - 5, offset)
    files.replace(path, entries)
    view = FolderView(files, DATA).view(TP)
    assert [view.find_timestamp(START_MS + n) for n in range(60)] == [
        (START_MS + n, n) for n in range(60)
    ]


@pytest.mark.parametrize("how", ["missing", "zeros"])
def test_a_lost_recovery_point_does_not_look_like_an_empty_partition(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 5)
    log_dir.close()
    path = f"{FOLDER}/recovery-point"
    size = files.size(path)
    files.remove(path)
    if how == "zeros":
        files.append_to(path, bytes(size))
    with pytest.raises(CorruptStateError, match="recovery-point"):
        FolderView(files, DATA).view(TP)


def test_a_partition_that_is_being_created_is_empty() -> None:
    files = SimulatedFiles()
    log_dir, _ = new_log(files)
    log_dir.close()
    files.remove(f"{FOLDER}/recovery-point")
    view = FolderView(files, DATA).view(TP)
    assert (view.start_offset, view.end_offset) == (0, 0)


def test_records_in_the_page_cache_are_visible_in_a_new_partition_before_its_first_flush() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, log_durability="page_cache")
    fill(log, 3)
    assert FolderView(files, DATA).view(TP).end_offset == log.high_watermark == 3
    assert FolderView(files, DATA, durable_only=True).view(TP).end_offset == 0


@pytest.mark.parametrize(("before", "after"), [("page_cache", "fsync"), ("fsync", "page_cache")])
def test_a_changed_durability_applies_to_readers_before_the_first_flush(
    before: str, after: str
) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, log_durability=before)
    fill(log, 3)
    log_dir.close()
    _, log = reopen(files, log_durability=after)
    fill(log, 2)
    assert FolderView(files, DATA).view(TP).end_offset == log.high_watermark


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_flipped_bit_in_a_timestamp_does_not_make_a_time_lookup_skip_a_record(
    is_sealed: bool,
) -> None:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock, small_settings(segment_bytes=10**6))
    fill(log, 5, advance_ms=10)
    size = log.segments.active.size_bytes // 5
    path = log.segments.active.log_path
    if is_sealed:
        log.roll()
        fill(log, 1)
    log_dir.close()
    assert FolderView(files, DATA).view(TP).find_timestamp(START_MS + 20) == (START_MS + 20, 2)
    position = 2 * size + MAX_TIMESTAMP_POSITION + 2  # its value becomes smaller
    files.write_at(path, position, bytes([files.read(path)[position] & ~1]))
    with pytest.raises(CorruptSegmentError):
        FolderView(files, DATA).view(TP).find_timestamp(START_MS + 20)


@pytest.mark.parametrize("position", [MAGIC_POSITION, HEADER_SIZE + 3])
@pytest.mark.parametrize("damaged", [0, 1, 2, 3])
def test_a_time_lookup_does_not_fail_for_damage_among_deleted_records(
    damaged: int, position: int
) -> None:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock, small_settings(segment_bytes=10**6))
    fill(log, 6, advance_ms=10)
    size = log.segments.active.size_bytes // 6
    path = log.segments.active.log_path
    log.flush()
    log.raise_log_start(3)
    log_dir.close()
    files.write_at(path, damaged * size + position, b"\x77")
    view = FolderView(files, DATA).view(TP)
    assert view.start_offset == 3
    if damaged < 3:
        assert view.find_timestamp(START_MS) == (START_MS + 30, 3)
    else:
        with pytest.raises(CorruptSegmentError):
            view.find_timestamp(START_MS)
    assert view.find_timestamp(START_MS + 50) == (START_MS + 50, 5)


@pytest.mark.parametrize("was_open", [True, False])
@pytest.mark.parametrize("cut", ["at a batch", "in a batch", "to nothing", "deleted"])
@pytest.mark.parametrize("durability", ["fsync", "page_cache"])
def test_an_active_segment_that_another_program_truncates_does_not_end_a_read_silently(
    durability: str, cut: str, was_open: bool
) -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=2000), log_durability=durability)
    fill(log, 40)
    log.flush()
    active = log.segments.active
    view = FolderView(files, DATA).view(TP) if was_open else None
    end_offset = log.log_end_offset
    assert end_offset - active.base_offset > 3
    [*_, last] = batches(files.read(active.log_path))
    match cut:
        case "at a batch":
            files.truncate(active.log_path, last)
        case "in a batch":
            files.truncate(active.log_path, last + 70)
        case "to nothing":
            files.truncate(active.log_path, 0)
        case "deleted":
            files.remove(active.log_path)
    kept = end_offset - 1 if cut in ("at a batch", "in a batch") else active.base_offset
    view = view or FolderView(files, DATA).view(TP)
    offset = 0
    with pytest.raises(CorruptSegmentError) as raised:
        while offset < end_offset:
            data = view.read(offset, 1)
            assert data, "the end is not reached"
            offset = read_header(data).next_offset
    assert offset == kept
    assert raised.value.resume_offset == end_offset


@pytest.mark.parametrize("change", ["torn tail", "lost end", "truncation", "compaction"])
def test_the_end_of_a_log_that_its_owner_changes_is_not_reported_as_lost(change: str) -> None:
    """A reader that knew the log before continues, whatever its offset was."""
    files = SimulatedFiles()
    settings = small_settings(
        segment_bytes=2000, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
    )
    log_dir, log = new_log(files, settings=settings)
    for _ in range(40):
        log.append(batch(b"value", keys=[b"k"]))
    log.flush()
    first_end = log.log_end_offset
    views = [FolderView(files, DATA).view(TP) for _ in range(first_end)]
    match change:
        case "torn tail":
            log.append(batch(b"torn", keys=[b"k"]))
            path = log.segments.active.log_path
            files.truncate(path, files.size(path) - 9)
            log_dir.abandon()
            reopen(files, settings=settings)
        case "lost end":
            path = log.segments.active.log_path
            files.truncate(path, batches(files.read(path))[-1])
            log_dir.abandon()
            reopen(files, settings=settings)
        case "truncation":
            log.truncate_to(first_end // 2)
        case "compaction":
            log.roll()
            log.flush()
            compact_now(log)
    for start, view in enumerate(views):
        offset = start
        while data := view.read(offset, 1):
            offset = read_header(data).next_offset


def batches(data: bytes) -> list[int]:
    """The positions of the batches of a log file."""
    positions = [0]
    while (end := positions[-1] + read_header(data, positions[-1]).size_bytes) < len(data):
        positions.append(end)
    return positions
