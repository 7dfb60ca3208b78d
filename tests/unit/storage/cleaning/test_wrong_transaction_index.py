"""Compaction of a log whose transaction indexes have no checksum and are wrong."""

from __future__ import annotations

from itertools import count

import pytest
from tests.support.log_builders import (
    FOLDER,
    batch,
    new_log,
    remove_index_checksums,
    reopen,
    small_settings,
)
from tests.unit.storage.partition.test_transactions import ABORT, COMMIT, committed, end

from strandlog.storage.cleaning.compaction import compact_now, plan_compaction
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.segment.transaction_index import ENTRY, VERSION
from strandlog.storage.work import Step, Work, run_inline
from strandlog.testing import SimulatedFiles

SETTINGS = small_settings(
    segment_bytes=10**6, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0
)
INDEX = f"{FOLDER}/{0:020d}.txnindex"
SHOWN = [b"old", b"kept", b"last"]


def write(log: PartitionLog, key: bytes, value: bytes, sequence: int) -> None:
    log.append(batch(value, keys=[key], producer=(7, 0, sequence), transactional=True))


def older_folder(*, marker_in: int) -> SimulatedFiles:
    """A partition whose manifest has no checksums of the transaction indexes. An aborted record has
    the key of a committed one. The aborting marker at offset 4 is in the first or in the second
    segment."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=SETTINGS)
    log.append(batch(b"old", keys=[b"k"]))
    write(log, b"k2", b"kept", 0)
    end(log, 7, COMMIT)  # at offset 2
    write(log, b"k", b"aborted", 1)
    if marker_in:
        log.roll()
    end(log, 7, ABORT)
    log.append(batch(b"last", keys=[b"k3"]))
    log.roll()
    log_dir.close()
    remove_index_checksums(files, FOLDER)
    return files


def replace_index(files: SimulatedFiles, *entries: tuple[int, int, int, int]) -> None:
    for name in files.list_dir(FOLDER):
        if name.endswith(".txnindex"):
            files.remove(f"{FOLDER}/{name}")
    if entries:
        files.append_to(INDEX, b"".join(ENTRY.pack(VERSION, *entry) for entry in entries))


WRONG = {
    "missing": [],
    "of a committed transaction": [(7, 1, 2, 3), (7, 3, 4, 5)],
    "that begins too early": [(7, 1, 4, 5)],
    "of another producer": [(8, 3, 4, 5)],
}


@pytest.mark.parametrize("kind", WRONG)
def test_compaction_removes_no_committed_record_because_of_an_index_entry(kind: str) -> None:
    files = older_folder(marker_in=0)
    replace_index(files, *WRONG[kind])
    log_dir, log = reopen(files, settings=SETTINGS)
    assert log.last_report.problems == []
    compact_now(log)
    assert committed(log) == SHOWN
    (problem,) = log.last_report.problems
    assert "a transaction index was wrong and was rebuilt" in problem
    log_dir.close()
    log = reopen(files, settings=SETTINGS)[1]
    assert (committed(log), log.last_report.problems) == (SHOWN, [])


def test_compaction_reads_on_to_the_marker_of_a_transaction_in_a_later_segment() -> None:
    files = older_folder(marker_in=1)
    replace_index(files)
    _, log = reopen(files, settings=SETTINGS)
    plan = plan_compaction(log, 0, log.segments.sealed[0].end_offset)
    assert plan is not None
    plan.execute()
    assert plan.cleaned == []
    run_inline(plan.complete())
    assert [entry[:3] for entry in log.aborted] == [(7, 3, 4)]
    compact_now(log)
    assert committed(log) == SHOWN


def test_compaction_of_a_log_with_correct_indexes_rebuilds_nothing() -> None:
    for marker_in in (0, 1):
        log = reopen(older_folder(marker_in=marker_in), settings=SETTINGS)[1]
        assert compact_now(log).records_removed == 1
        assert (committed(log), log.last_report.problems) == (SHOWN, [])


@pytest.mark.parametrize("kind", ["of a committed transaction", "of another producer"])
def test_a_committed_transaction_that_an_index_lists_as_aborted_is_shown(kind: str) -> None:
    files = older_folder(marker_in=0)
    replace_index(files, *WRONG[kind])
    _, log = reopen(files, settings=SETTINGS)
    assert committed(log) == SHOWN
    assert len(log.last_report.problems) == 1


@pytest.mark.parametrize("marker_in", [0, 1])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_index_is_reported_at_the_start_without_a_manifest(
    kind: str, marker_in: int
) -> None:
    files = older_folder(marker_in=marker_in)
    files.remove(f"{FOLDER}/segments")
    replace_index(files, *WRONG[kind])
    log_dir, log = reopen(files, settings=SETTINGS)
    assert log.last_report.problems
    assert all("rebuilt from the log" in problem for problem in log.last_report.problems)
    assert [entry[:3] for entry in log.aborted] == [(7, 3, 4)]
    assert committed(log) == SHOWN
    log_dir.close()
    log = reopen(files, settings=SETTINGS)[1]
    assert (committed(log), log.last_report.problems) == (SHOWN, [])
    compact_now(log)
    assert (committed(log), log.last_report.problems) == (SHOWN, [])


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("marker_in", [0, 1])
def test_a_correct_index_is_not_reported_at_the_start_without_a_manifest(
    marker_in: int, compacted: bool
) -> None:
    """The compaction removes the records of the aborted transaction, but not its marker."""
    files = older_folder(marker_in=marker_in)
    if compacted:
        log_dir, log = reopen(files, settings=SETTINGS)
        compact_now(log)
        log_dir.close()
    files.remove(f"{FOLDER}/segments")
    log = reopen(files, settings=SETTINGS)[1]
    assert (committed(log), log.last_report.problems) == (SHOWN, [])


def run_rest(work: Work[None], step: Step) -> int:
    """Execute the remaining steps; return how many there were."""
    for number in count(1):
        try:
            step()
        except FileNotFoundError as error:
            step = work.throw(error)
            continue
        try:
            step = next(work)
        except StopIteration:
            return number
    raise AssertionError


@pytest.mark.parametrize("change", ["nothing", "abort", "roll", "compaction", "retention"])
def test_the_log_may_change_between_the_steps_of_a_rebuild(change: str) -> None:
    """The log is read in the steps, which other threads execute, and not between them."""
    files = older_folder(marker_in=1)
    replace_index(files)
    _, log = reopen(files, settings=SETTINGS)
    if change == "compaction":
        run_inline(log.rebuild_aborted())
    expected = [(7, 3, 4)]
    files.fail_on("map", FOLDER, count=99)
    work = log.rebuild_aborted()
    step = next(work)
    files.clear_faults()
    step()
    step = next(work)
    if change in ("abort", "roll"):
        write(log, b"k4", b"also aborted", 2)
        if change == "roll":
            log.roll()
        end(log, 7, ABORT)
        expected.append((7, 6, 7))
    elif change == "compaction":
        compact_now(log)
    elif change == "retention":
        run_inline(drop_oldest(log, 1))
    steps = run_rest(work, step)
    log.flush()
    assert [entry[:3] for entry in log.aborted] == expected
    assert (steps == 2) is (change != "compaction"), "only then it starts again"
    again = reopen(files.after_kill(), settings=SETTINGS)[1]
    assert [entry[:3] for entry in again.aborted] == expected
    assert again.last_report.problems == []
