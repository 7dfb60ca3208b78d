"""Which record has the largest timestamp of those that can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import (
    DATA,
    START_MS,
    TP,
    all_records,
    batch,
    new_log,
    reopen,
    small_settings,
)
from tests.support.undecodable_batches import raw_batch

from strandlog.model import TimestampOffset
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import find_latest, find_timestamp
from strandlog.storage.readonly.view import FolderView
from strandlog.storage.work import run_inline
from strandlog.testing import SimulatedFiles


def append(log: PartitionLog, *times: int, codec: Codec = Codec.NONE) -> None:
    stamps = [START_MS + time for time in times]
    log.append(batch(*[b"v"] * len(stamps), timestamps=stamps, codec=codec))


def latest(log: PartitionLog) -> tuple[int, int] | None:
    found = run_inline(find_latest(log))
    return None if found is None else (found.timestamp - START_MS, found.offset)


def test_the_first_of_several_records_with_the_largest_timestamp_is_found() -> None:
    _, log = new_log(SimulatedFiles())
    assert latest(log) is None
    append(log, 5, 40, 40, 7)
    append(log, 40)
    append(log, 3)
    log.flush()
    assert latest(log) == (40, 1)


def test_records_without_timestamps_have_no_latest() -> None:
    _, log = new_log(SimulatedFiles())
    log.append(batch(b"v", timestamp=-1))
    log.flush()
    assert latest(log) is None


def test_unflushed_records_do_not_hide_flushed_ones() -> None:
    """A producer that writes without pause always has unflushed records."""
    _, log = new_log(SimulatedFiles(), settings=small_settings(segment_bytes=10**6))
    for time in range(50):
        append(log, time)
    log.flush()
    append(log, 1000)
    assert latest(log) == (49, 49)
    log.flush()
    assert latest(log) == (1000, 50)


def test_an_unflushed_sealed_segment_does_not_hide_flushed_records() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(segment_bytes=10**6))
    append(log, 10)
    log.flush()
    append(log, 20)
    log.roll()
    append(log, 30)
    assert latest(log) == (10, 0)


def test_deleted_records_do_not_hide_the_others() -> None:
    _, log = new_log(SimulatedFiles(), settings=small_settings(segment_bytes=10**6))
    for time in (10, 900, 20, 30, 25):
        append(log, time)
    log.flush()
    assert latest(log) == (900, 1)
    log.raise_log_start(2)
    assert latest(log) == (30, 3)
    log.raise_log_start(5)
    assert latest(log) is None


def test_the_marker_of_a_transaction_can_have_the_largest_timestamp() -> None:
    """The marker is written last, so it nearly always has the largest timestamp."""
    _, log = new_log(SimulatedFiles())
    stamped = {"producer": (7, 0, 0), "transactional": True}
    log.append(batch(b"v", timestamp=START_MS + 5, **stamped))  # type: ignore[arg-type]
    marker = control_batch(ControlType.COMMIT, 7, 0, START_MS + 9)
    log.append(marker, is_control=True)
    log.flush()
    assert run_inline(find_latest(log)) == TimestampOffset(START_MS + 9, 1)


def test_a_search_by_time_finds_the_marker_of_a_transaction_as_kafka_does() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    for number in range(3):
        sent = batch(
            b"v", timestamp=START_MS + 10 * number, producer=(7, 0, number), transactional=True
        )
        log.append(sent)
        marker = control_batch(ControlType.COMMIT, 7, 0, START_MS + 10 * number + 5)
        log.append(marker, is_control=True)
    log.flush()
    times = range(START_MS, START_MS + 26)
    found = [run_inline(find_timestamp(log, time)) for time in times]
    assert found == [TimestampOffset(START_MS + at, at // 5) for at in map(_rounded_up, range(26))]
    view = FolderView(files, DATA).view(TP)
    assert [view.find_timestamp(time) for time in times] == found, "beside the owner, too"


def _rounded_up(after: int) -> int:
    return -(-after // 5) * 5


def test_the_timestamp_of_an_undecodable_batch_is_taken_from_its_header() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    append(log, 1, 2)
    log.append(raw_batch(b"no gzip at all", 3, Codec.GZIP, START_MS + 50))
    append(log, 3)
    log.flush()
    assert latest(log) == (50, 4), "the last offset of the batch"
    assert "batch at offset 2" in log.last_report.problems[0]
    found = run_inline(find_timestamp(log, START_MS + 3))
    assert found == TimestampOffset(START_MS + 3, 5), "what comes behind it is found"
    view = FolderView(files, DATA).view(TP)
    at = view.find_timestamp(START_MS + 3)
    assert at == TimestampOffset(START_MS + 50, 2), "who begins there gets the error"


def test_a_log_that_starts_inside_a_batch_finds_no_record_before_its_start() -> None:
    _, log = new_log(SimulatedFiles())
    append(log, 40, 5, 7)
    log.flush()
    log.raise_log_start(1)
    assert latest(log) == (40, 1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@given(data=st.data())
def test_the_latest_timestamp_equals_that_of_a_full_scan(codec: Codec, data: st.DataObject) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    starts = [0]
    for times in data.draw(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3))):
        append(log, *times, codec=codec)
        if data.draw(st.booleans()):
            log.flush()
            starts.append(log.log_end_offset)
    log.raise_log_start(data.draw(st.sampled_from(starts)))
    assert latest(log) == expected(log)
    log_dir.close()
    again = reopen(files)[1]
    assert latest(again) == expected(again)


def expected(log: PartitionLog) -> tuple[int, int] | None:
    """The same by looking at every record."""
    seen = [(record.timestamp - START_MS, -record.offset) for record in all_records(log)]
    time, offset = max(seen, default=(-1, 0))
    return (time, -offset) if seen else None
