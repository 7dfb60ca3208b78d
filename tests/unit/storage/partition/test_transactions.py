"""What readers of committed records see of a partition, whatever happens to it."""

from __future__ import annotations

import pytest
from tests.support.log_builders import (
    FOLDER,
    START_MS,
    all_records,
    batch,
    fill,
    new_log,
    reopen,
    small_settings,
    values,
)

from strandlog.errors import OffsetOutOfRangeError
from strandlog.record.builder import build_batch
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in, read
from strandlog.storage.segment.scan import batches_of_read
from strandlog.storage.segment.transaction_index import ENTRY, AbortedTransaction
from strandlog.testing import SimulatedFiles

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def write(log: PartitionLog, producer_id: int, sequence: int, *texts: bytes) -> int:
    """Append records in a transaction; returns the first offset."""
    data = batch(*texts, producer=(producer_id, 0, sequence), transactional=True)
    return log.append(data).base_offset


def end(log: PartitionLog, producer_id: int, kind: ControlType, epoch: int = 0) -> int:
    """Write a marker; returns its offset."""
    marker = control_batch(kind, producer_id, epoch, START_MS)
    return log.append(marker, is_control=True).base_offset


def committed(log: PartitionLog) -> list[bytes | None]:
    """The values that a reader of committed records gets, by the rule that clients follow."""
    offset, found = log.log_start_offset, []
    while offset < log.last_stable_offset:
        data = read(log, offset, 200, committed=True)
        if not data:
            break
        aborted = aborted_in(log, offset, log.last_stable_offset)
        for view in batches_of_read(data, path="", offset=offset, end_offset=log.log_end_offset):
            header = view.header
            offset = header.next_offset
            is_aborted = header.is_transactional and any(
                entry.producer_id == header.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            if not header.is_control and not is_aborted:
                found += [record.value for record in view.records(*log.tp)]
    return found


def test_an_open_transaction_holds_readers_back() -> None:
    _, log = new_log(SimulatedFiles())
    fill(log, 2)
    first = write(log, 7, 0, b"a")
    fill(log, 1)
    log.flush()
    assert (log.last_stable_offset, log.high_watermark) == (first, 4)
    assert committed(log) == [b"v0", b"v1"]
    assert read(log, 3, 100, committed=True) == b""  # behind the open one, and no error
    with pytest.raises(OffsetOutOfRangeError):
        read(log, 5, 100, committed=True)
    end(log, 7, COMMIT)
    log.flush()
    assert log.last_stable_offset == log.high_watermark == 5
    assert committed(log) == [b"v0", b"v1", b"a", b"v3"]


def test_the_oldest_open_transaction_counts() -> None:
    _, log = new_log(SimulatedFiles())
    first = write(log, 7, 0, b"a")
    second = write(log, 8, 0, b"b")
    write(log, 7, 1, b"c")
    end(log, 7, COMMIT)
    log.flush()
    assert (first, log.last_stable_offset) == (0, second)
    end(log, 8, ABORT)
    log.flush()
    assert log.last_stable_offset == 5
    assert committed(log) == [b"a", b"c"]


def test_aborted_transactions_come_in_the_order_of_their_first_records() -> None:
    _, log = new_log(SimulatedFiles())
    write(log, 7, 0, b"a")
    write(log, 8, 0, b"b")
    end(log, 8, ABORT)
    write(log, 8, 1, b"c")
    end(log, 7, ABORT)
    end(log, 8, COMMIT)
    log.flush()
    found = aborted_in(log, 0, log.last_stable_offset)
    assert [(entry.producer_id, *entry[1:3]) for entry in found] == [(7, 0, 4), (8, 1, 2)]
    assert committed(log) == [b"c"]


def test_only_aborted_transactions_that_overlap_the_read_are_returned() -> None:
    _, log = new_log(SimulatedFiles())
    for number in range(5):  # offsets 0, 1 | 2, 3 | ...
        write(log, 7, number, b"a")
        end(log, 7, ABORT)
    log.flush()
    assert [entry.first_offset for entry in aborted_in(log, 3, 6)] == [2, 4]
    assert [entry.first_offset for entry in aborted_in(log, 4, 5)] == [4]
    assert aborted_in(log, 10, 20) == []


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_open_and_aborted_transactions_survive_a_restart(stop: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    for number in range(12):  # several segments
        write(log, 7, number, b"x" * 60)
        end(log, 7, ABORT if number % 3 else COMMIT)
        if number % 4 == 0:
            log.flush()
    write(log, 8, 0, b"open")
    fill(log, 1)
    log.flush()
    before = (list(log.aborted), log.last_stable_offset, committed(log))
    assert len(log.segments) > 3
    log_dir.close() if stop == "close" else log_dir.abandon()
    log_dir, log = reopen(files)
    assert log.last_report.is_clean
    assert (list(log.aborted), log.last_stable_offset, committed(log)) == before
    end(log, 8, ABORT)
    write(log, 7, 12, b"after")
    end(log, 7, COMMIT)
    log_dir.close()
    _, log = reopen(files)
    assert committed(log) == [*before[2], b"v25", b"after"]


def test_a_marker_with_a_newer_epoch_fences_the_old_producer() -> None:
    _, log = new_log(SimulatedFiles())
    write(log, 7, 0, b"a")
    end(log, 7, ABORT, epoch=1)
    with pytest.raises(Exception, match="is too old"):
        write(log, 7, 1, b"b")


def test_the_coordinator_appends_for_a_producer_without_a_sequence_number() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    data = build_batch(
        START_MS, [b"offset"], [b"k"], producer_id=7, producer_epoch=0, is_transactional=True
    )
    first = log.append(data, from_coordinator=True).base_offset
    write(log, 7, 0, b"its own")
    log.flush()
    assert log.last_stable_offset == first
    log_dir.abandon()
    _, log = reopen(files)
    assert log.last_stable_offset == first
    end(log, 7, COMMIT)
    log.flush()
    assert committed(log) == [b"offset", b"its own"]


def test_compaction_drops_aborted_records_and_keeps_the_older_value_of_their_key() -> None:
    files = SimulatedFiles()
    settings = small_settings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    log_dir, log = new_log(files, settings=settings)
    log.append(batch(b"old", keys=[b"k"]))
    aborted = batch(b"never", keys=[b"k"], producer=(7, 0, 0), transactional=True)
    log.append(aborted)
    end(log, 7, ABORT)
    log.append(batch(b"second", keys=[b"k2"], producer=(7, 0, 1), transactional=True))
    end(log, 7, COMMIT)
    compact_now(log)
    assert [record.value for record in all_records(log)] == [b"old", b"second"]
    assert committed(log) == [b"old", b"second"]
    log_dir.close()
    _, log = reopen(files, settings=settings)
    assert committed(log) == [b"old", b"second"]
    assert len(log.aborted) == 1


def test_compaction_stops_before_an_open_transaction() -> None:
    settings = small_settings(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    _, log = new_log(SimulatedFiles(), settings=settings)
    log.append(batch(b"old", keys=[b"k"]))
    log.roll()
    log.append(batch(b"new", keys=[b"k"], producer=(7, 0, 0), transactional=True))
    compact_now(log)
    assert values(log) == [b"old", b"new"]


def test_retention_removes_aborted_transactions_with_their_segments() -> None:
    settings = small_settings(retention_bytes=300)
    _, log = new_log(SimulatedFiles(), settings=settings)
    for number in range(20):
        write(log, 7, number, b"x" * 60)
        end(log, 7, ABORT)
    log.flush()
    enforce_retention(log)
    assert log.log_start_offset > 0
    assert all(entry.last_offset >= log.log_start_offset for entry in log.aborted)
    assert committed(log) == []


def _sealed_with_aborts(files: SimulatedFiles) -> list[AbortedTransaction]:
    log_dir, log = new_log(files)
    for number in range(4):
        write(log, 7, number, b"x" * 60)
        end(log, 7, ABORT)
    log.roll()
    write(log, 7, 4, b"kept")
    end(log, 7, COMMIT)
    entries = list(log.aborted)
    log_dir.close()
    return entries


@pytest.mark.parametrize("damage", ["cut", "producer", "first offset", "last offset", "version"])
def test_a_damaged_transaction_index_is_rebuilt(damage: str) -> None:
    files = SimulatedFiles()
    entries = _sealed_with_aborts(files)
    path = f"{FOLDER}/{0:020d}.txnindex"
    data = bytearray(files.read(path))
    if damage == "cut":
        data = data[: ENTRY.size + 5]
    else:
        place = {"version": 1, "producer": 9, "first offset": 17, "last offset": 25}[damage]
        data[ENTRY.size + place] ^= 1
    files.replace(path, bytes(data))
    _, log = reopen(files)
    assert committed(log) == [b"kept"]
    assert list(log.aborted) == entries
    assert any("index" in problem for problem in log.last_report.problems)


def test_the_index_file_has_kafkas_format() -> None:
    files = SimulatedFiles()
    _sealed_with_aborts(files)
    data = files.read(f"{FOLDER}/{0:020d}.txnindex")
    assert [ENTRY.unpack_from(data, at) for at in range(0, len(data), 34)] == [
        (0, 7, 0, 1, 2),
        (0, 7, 2, 3, 4),
    ]
