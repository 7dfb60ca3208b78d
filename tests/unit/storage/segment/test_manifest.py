"""A segment that disappears is reported: at the next start, and by `log verify`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import FOLDER, START_MS, batch, fill, new_log, offsets, reopen
from tests.support.log_builders import small_settings as settings

from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.readonly.verify import look_at_partition
from strandlog.storage.segment import manifest
from strandlog.storage.segment.manifest import (
    ENTRY_SIZE,
    NOTHING,
    SPARE_ENTRIES,
    Claim,
    SegmentManifest,
    read_manifest,
)
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

MANIFEST = f"{FOLDER}/segments"


def lose(files: SimulatedFiles, path: str, how: str) -> None:
    if how == "deleted":
        files.remove(path)
    else:
        files.truncate(path, 0)


def filled(*, compacted: bool = False, clean: bool = True) -> tuple[SimulatedFiles, PartitionLog]:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock)
    if compacted:
        for number in range(60):
            log.append(batch(b"v%d" % number, keys=[b"k%d" % (number % 25)]))
        log.flush()
        compact_now(log)
    else:
        fill(log, 60)
        log.flush()
    if clean:
        log_dir.close()
        return files, log
    return files.after_kill(), log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_lost_segment_is_reported_and_its_offsets_are_not_reused(
    how: str, compacted: bool, clean: bool
) -> None:
    files, log = filled(compacted=compacted, clean=clean)
    lost = [s for s in log.segments.all() if s.size_bytes]
    assert len(lost) > 2
    for segment in lost:
        damaged = files.after_kill()
        lose(damaged, segment.log_path, how)
        report = look_at_partition(damaged, FOLDER)
        assert report.is_damaged, f"verify does not miss {segment.log_path}"
        for attempt in range(3):  # the loss stays known, and offsets stay used
            _, again = reopen(damaged)
            gone = range(segment.base_offset, min(segment.end_offset, 60))
            assert not set(offsets(again)) & set(gone)
            assert again.log_end_offset == 60 + attempt
            assert attempt or again.last_report.problems
            again.append(batch(b"new", keys=[b"new"]))
            again.flush()
            damaged = damaged.after_kill()


def test_a_sealed_segment_that_is_too_long_is_not_reported_as_lost() -> None:
    files, log = filled()
    path = log.segments.sealed[1].log_path
    size = files.size(path)
    files.append_to(path, bytes(70))
    expected = f"{path} has {size + 70} bytes instead of {size}: 70 were added after the segment"
    assert any(expected in found.text for found in look_at_partition(files, FOLDER).findings)
    _, log = reopen(files)
    (problem,) = log.last_report.problems
    assert problem.startswith(expected)
    assert "lost" not in problem


def test_the_loss_of_the_only_segment_is_reported() -> None:
    for clean in (True, False):
        files = SimulatedFiles()
        log_dir, log = new_log(files)
        log.append(batch(b"v"))
        log.flush()
        path = log.segments.active.log_path
        if clean:
            log_dir.close()
        files = files.after_kill()
        files.remove(path)
        assert look_at_partition(files, FOLDER).is_damaged
        _, log = reopen(files)
        assert log.log_end_offset == 1
        assert any("were durable and are lost" in p for p in log.last_report.problems)


def test_retention_truncation_and_compaction_are_not_reported_as_losses() -> None:
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock)
    fill(log, 100)
    log.flush()
    run_inline(drop_oldest(log, 2))
    compact_now(log)
    log.truncate_to(80)
    fill(log, 20)
    log_dir.close()
    for _ in range(2):
        assert not look_at_partition(files, FOLDER).is_damaged
        log_dir, log = reopen(files, clock)
        assert log.last_report.problems == []
        log_dir.close()


@pytest.mark.parametrize("cut", [1, ENTRY_SIZE - 1])
def test_a_torn_entry_is_written_over_and_a_flipped_one_reported(cut: int) -> None:
    files, log = filled()
    count = len(read_manifest(files, FOLDER).claims)
    assert count == len(log.segments.sealed)
    files.truncate(MANIFEST, files.size(MANIFEST) - cut)
    log_dir, log = reopen(files)
    assert log.last_report.is_clean
    assert len(read_manifest(files, FOLDER).claims) == count
    log_dir.close()
    files.flip_bit(MANIFEST, 40)
    log_dir, log = reopen(files)
    problem = "entries in data/events-0/segments that fail their checksum: 1"
    assert problem in log.last_report.problems
    log_dir.close()
    assert reopen(files)[1].last_report.is_clean


def test_the_manifest_stays_small() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, None, settings(segment_bytes=200))
    for _ in range(5):
        fill(log, SPARE_ENTRIES // 2)
        log.flush()
        run_inline(drop_oldest(log, len(log.segments.sealed)))
    assert files.size(MANIFEST) <= ENTRY_SIZE * 2 * SPARE_ENTRIES


def test_reading_a_manifest_does_not_compare_each_entry_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, count, compared = SimulatedFiles(), 300, list[Claim]()

    def overlaps(old: Claim, new: Claim) -> bool:
        compared.append(old)
        return old.base_offset < new.end_offset and new.base_offset < old.end_offset

    monkeypatch.setattr(manifest, "_overlaps", overlaps)
    files.make_dir(FOLDER)
    claims = [Claim(10 * number, 10 * number + 10, 100) for number in range(count)]
    SegmentManifest(files, FOLDER, NOTHING).claim(claims)
    assert read_manifest(files, FOLDER).claims == claims
    assert len(compared) <= 4 * count


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()), max_size=25),
)
def test_an_entry_replaces_every_earlier_entry_that_overlaps_it(
    changes: list[tuple[int, int, bool]],
) -> None:
    files = SimulatedFiles()
    files.make_dir(FOLDER)
    written = SegmentManifest(files, FOLDER, NOTHING)
    expected: list[Claim] = []
    for size_bytes, (base, size, is_claim) in enumerate(changes):
        end = base + size
        expected = [c for c in expected if c.end_offset <= base or end <= c.base_offset]
        if is_claim:
            expected.append(Claim(base, end, size_bytes))
            written.claim(expected[-1:])
        else:
            written.withdraw(base, end)
    assert read_manifest(files, FOLDER).claims == sorted(expected)
