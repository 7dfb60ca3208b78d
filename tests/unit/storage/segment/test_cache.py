"""The cache of mapped segments: bounded, least recently used first, and indexes are verified."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from tests.support.log_builders import (
    START_MS,
    TP,
    create_partition,
    fill,
    new_log,
    offsets,
    small_settings,
    uuids,
)

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import read_header
from strandlog.storage.file_remover import EVERYTHING_MS
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.segment.cache import SegmentCache
from strandlog.storage.segment.segment import Segment
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles


def sealed_log(files: SimulatedFiles, segment_bytes: int = 600, count: int = 40) -> PartitionLog:
    settings = small_settings(segment_bytes=segment_bytes)
    _, log = new_log(files, FakeClock(START_MS), settings)
    fill(log, count, advance_ms=1)
    log.roll()
    log.flush()
    return log


def unknown(segment: Segment) -> Segment:
    """The segment as a start sees it that has not looked at its files yet."""
    fresh = Segment(segment.stem, segment.base_offset, segment.size_bytes)
    fresh.end_offset = segment.end_offset
    return fresh


def test_the_least_recently_used_segment_goes_first() -> None:
    files, gone = SimulatedFiles(), list[str]()
    a, b, c, d, *_ = sealed_log(files).segments.sealed
    cache = SegmentCache(files, 2, on_evict=gone.append)
    for segment in (a, b, a, c):
        cache.get(segment)
    assert gone == [b.stem]
    cache.get(a)
    cache.get(d)
    assert gone == [b.stem, c.stem]
    assert (cache.hits, cache.misses, cache.evictions, len(cache)) == (2, 4, 2, 2)
    cache.drop(a.stem)
    cache.drop(a.stem)
    assert gone == [b.stem, c.stem, a.stem]
    cache.close()
    assert gone == [b.stem, c.stem, a.stem, d.stem]
    assert len(cache) == 0


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_the_bound_holds_while_a_whole_log_is_read(capacity: int) -> None:
    files = SimulatedFiles()
    log = sealed_log(files)
    assert len(log.segments.sealed) >= 5
    log_dir_cache = SegmentCache(files, capacity)
    log.context = log.context._replace(cache=log_dir_cache)
    for _ in range(2):
        assert offsets(log) == list(range(40))
        assert len(log_dir_cache) == capacity
    assert log_dir_cache.evictions == log_dir_cache.misses - capacity


def test_a_cache_without_room_is_an_error() -> None:
    with pytest.raises(AssertionError):
        SegmentCache(SimulatedFiles(), 0)


def test_a_slice_outlives_its_map(tmp_path: Path) -> None:
    clock = FakeClock(START_MS)
    log_dir = LogDir(str(tmp_path / "data"), DiskFiles(), clock, uuids())
    create_partition(log_dir, TP, "id", small_settings())
    log = log_dir.logs[TP]
    fill(log, 20)
    log.flush()
    data = read(log, 0, 10_000)
    before = bytes(data)
    log.truncate_to(0)
    log_dir.cache.close()
    assert run_inline(log_dir.remover.remove(EVERYTHING_MS)) > 0
    assert data == before
    assert read_header(data).base_offset == 0
    log_dir.close()


def test_a_missing_segment_is_damage_for_the_owner_and_file_not_found_for_readers() -> None:
    files = SimulatedFiles()
    segment = sealed_log(files).segments.sealed[0]
    files.remove(segment.log_path)
    with pytest.raises(CorruptSegmentError, match="the file is missing") as damage:
        SegmentCache(files).get(segment)
    assert damage.value.resume_offset == segment.end_offset
    cache = SegmentCache(files, owns_folder=False)
    with pytest.raises(FileNotFoundError):
        cache.get(segment)
    assert len(cache) == 0


def entries(segment: Segment, files: SimulatedFiles) -> tuple[bytes, bytes]:
    return files.read(segment.stem + ".index"), files.read(segment.stem + ".timeindex")


def damage(files: SimulatedFiles, segment: Segment, how: str) -> None:
    if how == "both missing":
        files.remove(segment.stem + ".index")
        files.remove(segment.stem + ".timeindex")
    elif how == "no time index":
        files.remove(segment.stem + ".timeindex")
    elif how == "half an entry":
        files.append_to(segment.stem + ".index", b"abc")
    elif how == "half a time entry":
        files.append_to(segment.stem + ".timeindex", b"abc")
    elif how == "beyond the log":
        files.append_to(segment.stem + ".index", struct.pack(">ii", 99, 10**6))
    elif how == "before the log":
        files.append_to(segment.stem + ".index", struct.pack(">ii", 99, -5))


DAMAGES = [
    "both missing",
    "no time index",
    "half an entry",
    "half a time entry",
    "beyond the log",
    "before the log",
]


def check_against_log(index: bytes, segment: Segment, log: bytes) -> int:
    """Every entry names a batch by its place and last offset; returns how many there are."""
    found = list(struct.iter_unpack(">ii", index))
    for relative, position in found:
        assert read_header(log, position).last_offset == segment.base_offset + relative
    return len(found)


@pytest.mark.parametrize("how", DAMAGES)
def test_the_owner_rebuilds_a_missing_or_wrong_index_on_disk(how: str) -> None:
    files = SimulatedFiles()
    segment = unknown(sealed_log(files, 20_000, 400).segments.sealed[0])
    damage(files, segment, how)
    maps = SegmentCache(files).get(segment)
    assert entries(segment, files) == (bytes(maps.index), bytes(maps.time_index))
    assert check_against_log(bytes(maps.index), segment, files.read(segment.log_path)) >= 3
    newest = struct.unpack(">qi", bytes(maps.time_index[-12:]))
    assert segment.largest == (newest[0], segment.base_offset + newest[1])
    entry = maps.lookup(segment, segment.base_offset + 100)
    assert entry is not None
    assert entry.offset <= segment.base_offset + 100


@pytest.mark.parametrize("how", DAMAGES)
def test_a_reader_rebuilds_a_missing_or_wrong_index_in_memory(how: str) -> None:
    files = SimulatedFiles()
    segment = unknown(sealed_log(files, 20_000, 400).segments.sealed[0])
    damage(files, segment, how)
    before, steps = files.contents(), len(files.trace)
    maps = SegmentCache(files, owns_folder=False).get(segment)
    assert files.contents() == before
    assert len(files.trace) == steps
    assert check_against_log(bytes(maps.index), segment, files.read(segment.log_path)) >= 3
    assert len(maps.time_index) % 12 == 0 < len(maps.time_index)


def test_a_missing_offset_index_is_rebuilt_if_the_time_index_exists() -> None:
    files = SimulatedFiles()
    segment = unknown(sealed_log(files, 20_000, 400).segments.sealed[0])
    files.remove(segment.stem + ".index")
    maps = SegmentCache(files).get(segment)
    assert check_against_log(bytes(maps.index), segment, files.read(segment.log_path)) >= 3


def test_right_indexes_are_left_alone() -> None:
    files = SimulatedFiles()
    log = sealed_log(files)
    steps = len(files.trace)
    cache = SegmentCache(files)
    for segment in log.segments.sealed:
        assert bytes(cache.get(unknown(segment)).index) == entries(segment, files)[0]
    assert len(files.trace) == steps


def test_an_index_that_a_read_finds_wrong_is_rebuilt() -> None:
    files = SimulatedFiles()
    log = sealed_log(files, 20_000, 400)
    segment = log.segments.sealed[0]
    index, _ = entries(segment, files)
    lie = struct.pack(">ii", 1, 90) + index[8:]  # plausible, but no batch begins there
    files.replace(segment.stem + ".index", lie)
    log.context.cache.drop(segment.stem)
    assert read_header(read(log, 3, 100)).base_offset == 3
    assert any("index" in problem for problem in log.last_report.problems)
    rebuilt, _ = entries(segment, files)
    assert rebuilt != lie
    assert check_against_log(rebuilt, segment, files.read(segment.log_path)) >= 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_segment_without_indexes_can_be_read_when_the_disk_rejects_writes(error: int) -> None:
    files = SimulatedFiles()
    log = sealed_log(files, segment_bytes=6000, count=100)
    segment = unknown(log.segments.sealed[0])
    for suffix in (".index", ".timeindex"):
        files.remove(segment.stem + suffix)
    files.fail_on("append", segment.stem, count=100, error=error)
    maps = SegmentCache(files).get(segment)
    assert maps.lookup(segment, segment.end_offset - 1) is not None
    assert segment.largest is not None
    files.clear_faults()
    maps = SegmentCache(files).get(segment)
    assert all(files.exists(segment.stem + suffix) for suffix in (".index", ".timeindex"))
    assert bytes(maps.time_index) == files.read(segment.stem + ".timeindex")
