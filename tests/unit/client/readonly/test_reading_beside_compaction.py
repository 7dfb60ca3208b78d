"""A reader beside an owner that swaps compacted segments in, at every moment of either.

The disk is simulated, so the owner's whole swap (or its first steps, after which the owner dies)
happens between any two file operations of the reader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, cast

import pytest
from tests.support.interrupted_reader import Interrupting
from tests.support.log_builders import DATA, START_MS, TP, batch, new_log, small_settings

from strandlog.client.readonly.log import ReadOnlyLog
from strandlog.client.record_source import decode_records
from strandlog.errors import StorageError
from strandlog.model import Record
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.cleaning.compaction import plan_compaction
from strandlog.storage.files import Files
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles, Step

pytestmark = pytest.mark.slow

SETTINGS = small_settings(cleanup_policy=("compact",), segment_bytes=500, file_delete_delay_ms=0)
KEYS = 2
RECORDS = 24
MERGING, ONE_BY_ONE = 1500, 500  # with the first, compaction makes one segment out of several
LAST = list(range(RECORDS - KEYS, RECORDS))  # what compaction keeps


def busy_folder() -> tuple[SimulatedFiles, PartitionLog]:
    """Two keys over and over, with aborted transactions between them, in many segments."""
    files = SimulatedFiles()
    _, log = new_log(files, FakeClock(START_MS), SETTINGS)
    for number in range(RECORDS):
        data = batch(b"%03d" % number * 10, keys=[b"k%d" % (number % KEYS)], timestamp=number)
        log.append(data)
        if number % 3 == 0:
            producer = (7, 0, number // 3)
            log.append(batch(b"x", keys=[b"x"], producer=producer, transactional=True, timestamp=0))
            log.append(control_batch(ControlType.ABORT, 7, 0, 0), is_control=True)
    log.request_snapshot(log.log_end_offset)  # with it, the index of the last segment is written
    log.flush()
    assert log.segments.active.size_bytes > 2 * SETTINGS.index_interval_bytes
    return files, log


def compact(log: PartitionLog, segment_bytes: int = MERGING) -> None:
    """Compact everything, also what was the last segment."""
    log.roll()
    log.flush()
    log.settings = replace(SETTINGS, segment_bytes=segment_bytes)
    plan = plan_compaction(log, 0, log.log_end_offset)
    assert plan is not None
    plan.execute()
    assert (len(plan.cleaned) < len(plan.segments)) is (segment_bytes == MERGING)
    run_inline(plan.complete())


def read_everything(log: ReadOnlyLog) -> list[Record]:
    consumer = log.consumer(["events"])
    found: list[Record] = []
    empty = 0
    while empty < 2:
        polled = consumer.poll(5)
        found += polled
        empty = 0 if polled else empty + 1
    assert not [record for record in found if record.key == b"x"], "aborted"
    return found


def check_read(log: ReadOnlyLog) -> None:
    """The last value of each key is there, in order, and nothing that was never written."""
    found = read_everything(log)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    values = [int(cast("bytes", record.value)[:3]) for record in found]
    assert values == sorted(set(values))
    assert values[-KEYS:] == LAST


def check_last_record(log: ReadOnlyLog) -> None:
    """A read that begins in the middle of the last segment."""
    offset = log.source.readable_end(TP) - 1
    while not (found := log.source.fetch(TP, offset, decode_records).records):
        pass
    assert [record.offset for record in found] == [offset]


def check_stable_view(log: ReadOnlyLog) -> None:
    found = log.source.committed_view(TP)  # type: ignore[attr-defined]
    if found is not None:  # else the owner was busy
        assert len(found.aborted) == RECORDS / 3


def check_timestamp(log: ReadOnlyLog) -> None:
    found = log.source.find_timestamp(TP, RECORDS - KEYS)
    assert found is not None
    assert found.timestamp == RECORDS - KEYS


def check_range(log: ReadOnlyLog) -> None:
    start, end = log.source.offset_range(TP)
    assert start == 0
    assert end > RECORDS


def check_cuts(log: ReadOnlyLog) -> None:
    cuts = log.source.split_offsets(TP, 0, RECORDS, 3)  # type: ignore[attr-defined]
    assert cuts == sorted(cuts)


CHECKS = [
    check_read,
    check_last_record,
    check_stable_view,
    check_timestamp,
    check_range,
    check_cuts,
]


def opened(files: object) -> ReadOnlyLog:
    return ReadOnlyLog(DATA, clock=FakeClock(START_MS), files=cast("Files", files))


@pytest.mark.parametrize("segment_bytes", [MERGING, ONE_BY_ONE])
@pytest.mark.parametrize("check", CHECKS)
def test_no_false_corruption_when_segments_are_swapped_under_a_reader(
    check: Callable[[ReadOnlyLog], None], segment_bytes: int
) -> None:
    moment = 0
    while True:
        moment += 1
        files, log = busy_folder()
        disk = Interrupting(files, moment, partial(compact, log, segment_bytes))
        check(opened(disk))
        if disk.operations < moment:
            assert moment > 5
            break


def check_prefix(log: ReadOnlyLog) -> None:
    """Whatever the reader got so far, it skipped nothing that the swap keeps."""
    values = [int(cast("bytes", record.value)[:3]) for record in read_everything(log)]
    assert values == sorted(set(values))
    kept = [value for value in values if value in LAST]
    assert kept == LAST[: len(kept)]


def check_that_it_may_wait(check: Callable[[ReadOnlyLog], None]) -> Callable[[ReadOnlyLog], None]:
    """The same while the owner is paused in the middle of a swap: some reads must wait."""
    if check in (check_read, check_last_record):
        return check_prefix

    def checked(log: ReadOnlyLog) -> None:
        with contextlib.suppress(StorageError):
            check(log)

    return checked


@pytest.mark.parametrize("check", CHECKS)
def test_a_reader_that_opens_in_the_middle_of_a_swap_loses_nothing(
    check: Callable[[ReadOnlyLog], None],
) -> None:
    files, log = busy_folder()
    steps = 0

    def look(_step: Step) -> None:
        nonlocal steps
        steps += 1
        files.watch(None)
        check_that_it_may_wait(check)(opened(files))
        files.watch(look)

    files.watch(look)
    compact(log)
    files.watch(None)
    assert steps > 20
    check(opened(files))


class OwnerDiedError(Exception):
    """Raised inside the owner."""


def test_a_reader_beside_an_owner_that_dies_in_the_middle_of_a_swap_reports_no_corruption() -> None:
    survived, death = False, 0
    while not survived:
        death += 2
        for moment in (3, 9):
            files, log = busy_folder()
            left = count(death, -1)

            def die(_step: Step, left: Iterator[int] = left) -> None:
                if next(left) == 0:
                    raise OwnerDiedError

            def compact_and_die(
                files: SimulatedFiles = files,
                log: PartitionLog = log,
                die: Callable[[Step], None] = die,
            ) -> None:
                nonlocal survived
                files.watch(die)
                with contextlib.suppress(OwnerDiedError):
                    compact(log)
                    survived = True
                files.watch(None)

            check_prefix(opened(Interrupting(files, moment, compact_and_die)))
    assert death > 20


class Swapping:
    """The disk as the reader has it: in its listing number `moment` the last log file is just being
    swapped. The listings before and after it look alike, for the size of that file may change."""

    def __init__(self, files: SimulatedFiles, moment: int) -> None:
        self._files = files
        self._moment = moment
        self.listings = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def list_dir(self, path: str) -> dict[str, int]:
        found = self._files.list_dir(path)
        logs = [name for name in found if name.endswith(".log")]
        if logs:
            self.listings += 1
            if self.listings == self._moment:
                found[max(logs) + ".swap"] = found.pop(max(logs))
        return found


def test_no_record_is_skipped_while_the_last_segment_is_swapped() -> None:
    files, log = busy_folder()

    def fetch(disk: Swapping, offset: int) -> tuple[list[int], int]:
        with ReadOnlyLog(DATA, files=cast(Files, disk)) as reader:
            fetched = reader.source.fetch(TP, offset, decode_records)
        return [record.offset for record in fetched.records], fetched.next_offset

    for offset in range(log.segments.active.base_offset, log.log_end_offset):
        undisturbed = Swapping(files, -1)
        expected = fetch(undisturbed, offset)
        for moment in range(1, undisturbed.listings + 3):
            assert fetch(Swapping(files, moment), offset) == expected, (offset, moment)
