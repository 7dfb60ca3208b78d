"""Storage defects of other logs, as tests that ours must pass.

The defects were seen in PyLogStreams (restart), LogBroker (segments, indexes, keys) and the
partitioned log of a DDIA exercise (compaction and retention).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.log_builders import (
    FOLDER,
    TP,
    all_records,
    batch,
    fill,
    new_log,
    offsets,
    open_dir,
    reopen,
    small_settings,
    values,
)

from strandlog.record.batch_header import HEADER_SIZE
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.partition.log import PartitionLog
from strandlog.testing import FakeClock, SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_LOST

COMPACT = small_settings(cleanup_policy=("compact",))

Stop = Callable[[SimulatedFiles], SimulatedFiles]
STOPS: dict[str, Stop] = {
    "kill": lambda files: files.after_kill(),
    "power cut": lambda files: files.after_crash(ALL_LOST),
}


def log_names(files: SimulatedFiles) -> list[str]:
    return [name for name in files.list_dir(FOLDER) if name.endswith(".log")]


def put(log: PartitionLog, *keys: bytes | None) -> None:
    """One batch per key; the value is the offset."""
    for key in keys:
        log.append(batch(b"%d" % log.log_end_offset, keys=[key]))
    log.flush()


# -- PyLogStreams ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", *STOPS])
def test_the_log_end_does_not_go_back_when_many_segments_are_listed_unsorted(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 60)
    log.flush()
    if how == "close":
        log_dir.close()
    disk = files if how == "close" else STOPS[how](files)
    assert len(log_names(disk)) >= 3
    assert log_names(disk) != sorted(log_names(disk)), "the listing helps by being sorted"
    newest = max(log_names(disk))
    before = {name: disk.size(f"{FOLDER}/{name}") for name in log_names(disk)}
    _, log = reopen(disk)
    assert (log.log_start_offset, log.log_end_offset) == (0, 60)
    assert log.segments.active.log_path == f"{FOLDER}/{newest}"
    assert log.append(batch(b"v60")).base_offset == 60
    log.flush()
    assert values(log) == [b"v%d" % number for number in range(61)]
    older = {name for name in before if name != newest}
    assert all(disk.size(f"{FOLDER}/{name}") == before[name] for name in older)


def test_records_may_hold_any_bytes() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    odd = [b"two words", b"\xff\xfe not text", b"line\nline\r\n", b"\0", bytes(range(256))]
    for one in odd:
        log.append(batch(one, keys=[one]))
    log_dir.close()
    assert [(r.key, r.value) for r in all_records(reopen(files)[1])] == [(o, o) for o in odd]


# -- LogBroker ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", *STOPS])
def test_an_empty_partition_begins_at_zero_after_a_restart(how: str) -> None:
    files = SimulatedFiles()
    log_dir, _ = new_log(files)
    if how == "close":
        log_dir.close()
    _, log = reopen(files if how == "close" else STOPS[how](files))
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, 0, 0)
    assert log.append(batch(b"first")).base_offset == 0


@pytest.mark.parametrize("how", ["close", *STOPS])
def test_an_empty_active_segment_does_not_change_the_next_offset(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 7)
    log.flush()
    log.roll()
    log.begin_active_file()
    assert log.segments.active.size_bytes == 0
    if how == "close":
        log_dir.close()
    disk = files if how == "close" else STOPS[how](files)
    assert disk.size(f"{FOLDER}/{7:020d}.log") == 0
    _, log = reopen(disk)
    assert log.log_end_offset == 7
    assert log.append(batch(b"v7")).base_offset == 7
    log.flush()
    assert offsets(log) == list(range(8))


@pytest.mark.parametrize("cut", [1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 3])
def test_a_torn_tail_is_cut_off_and_the_next_record_takes_its_place(cut: int) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 3)
    log.flush()
    whole = files.size(log.segments.active.log_path)
    fill(log, 1)
    disk = files.after_kill()
    path = log.segments.active.log_path
    disk.truncate(path, whole + cut)
    _, log = reopen(disk)
    assert disk.size(path) == whole
    assert (log.last_report.torn_bytes, log.log_end_offset) == (cut, 3)
    assert log.append(batch(b"again")).base_offset == 3
    log.flush()
    assert values(log) == [b"v0", b"v1", b"v2", b"again"]
    assert values(reopen(disk.after_kill())[1]) == [b"v0", b"v1", b"v2", b"again"]


def test_rebuilding_an_index_does_not_append_to_the_old_one() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, 40)
    log_dir.close()
    whole = {name: data for name, data in files.contents().items() if name.endswith("index")}
    assert sum(map(len, whole.values())) > 0
    for _ in range(3):  # each start walks everything and makes all indexes again
        files.remove(f"{FOLDER}/recovery-point")
        log_dir, log = reopen(files)
        assert log.last_report.scanned_bytes == log.segments.size_bytes
        assert offsets(log) == list(range(40))
        log_dir.close()
        again = {name: data for name, data in files.contents().items() if name.endswith("index")}
        assert again == whole


def test_null_and_empty_keys_and_values_stay_distinct() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=COMPACT)
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (None, b"x"), (b"", b"x"), (None, b""), (b"", None), (None, None), (b"", b"")
    ]  # fmt: skip
    for key, value in pairs:
        log.append(batch(value, keys=[key]))
    log_dir.close()
    log_dir, log = reopen(files, settings=COMPACT)
    assert [(r.key, r.value) for r in all_records(log)] == pairs
    compact_now(log)
    assert offsets(log) == [0, 2, 4, 5], "no key stays, an empty key is a key"


def test_a_record_larger_than_a_segment_gets_its_own() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    sent: list[bytes | None] = [b"small", b"x" * 5000, b"y" * 601, b"small too"]
    for value in sent:
        log.append(batch(value))
    log.flush()
    assert [segment.base_offset for segment in log.segments.all()] == [0, 1, 2, 3]
    assert values(log) == sent
    log_dir.close()
    assert values(reopen(files)[1]) == sent


def test_flushing_an_empty_partition_is_fine_at_any_time() -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    log.flush()
    fill(log, 2)
    log.flush()
    log.truncate_to(0)
    log.flush()
    log.flush()
    log_dir.close()
    _, log = reopen(files)
    log.flush()
    assert (offsets(log), log.log_end_offset) == ([], 2)


# -- DDIA's partitioned log --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", *STOPS])
def test_records_removed_by_compaction_do_not_return_after_a_restart(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=COMPACT)
    put(log, b"a", b"a", None, b"b", b"a")
    compact_now(log)
    assert offsets(log) == [2, 3, 4]
    if how == "close":
        log_dir.close()
    _, log = reopen(files if how == "close" else STOPS[how](files), settings=COMPACT)
    assert offsets(log) == [2, 3, 4]
    assert log.append(batch(b"next")).base_offset == 5


@pytest.mark.parametrize("how", ["close", *STOPS])
def test_records_removed_by_retention_do_not_return_after_a_restart(how: str) -> None:
    files, clock = SimulatedFiles(), FakeClock()
    settings = small_settings(retention_ms=100)
    log_dir, log = new_log(files, clock, settings)
    fill(log, 30, advance_ms=10)
    log.flush()
    assert enforce_retention(log) > 0
    left = offsets(log)
    assert left == list(range(log.log_start_offset, 30))
    assert 0 < left[0] < 29
    if how == "close":
        log_dir.close()
    _, log = reopen(files if how == "close" else STOPS[how](files), clock, settings)
    assert (offsets(log), log.log_end_offset) == (left, 30)


def test_the_earliest_offset_is_right_after_retention_of_a_log_with_gaps() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    settings = small_settings(cleanup_policy=("compact", "delete"), retention_ms=150)
    log_dir, log = new_log(files, clock, settings)
    for keys in ([b"a", b"b", b"b", b"b"], [b"c", b"c", b"c"], [b"d", b"e"]):
        for key in keys:
            log.append(batch(b"v" * 100, keys=[key], timestamp=clock.now_ms()))
        log.roll()
        clock.advance(60)
    compact_now(log)
    assert offsets(log) == [0, 3, 6, 7, 8]
    assert enforce_retention(log) > 0
    assert offsets(log) == [6, 7, 8]
    assert 3 < log.log_start_offset <= 6
    log_dir.close()
    log = open_dir(files, clock).open_partition(TP, settings)
    assert (offsets(log), log.log_end_offset) == ([6, 7, 8], 9)
    assert 3 < log.log_start_offset <= 6


@pytest.mark.parametrize("how", ["go on", "close", *STOPS])
def test_no_offset_is_used_twice_after_compacting_and_truncating_everything(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=COMPACT)
    put(log, b"a", b"b", b"b", b"b")
    compact_now(log)
    assert offsets(log) == [0, 3]
    log.truncate_to(0)
    assert (offsets(log), log.log_end_offset) == ([], 4)
    if how == "close":
        log_dir.close()
    if how != "go on":
        _, log = reopen(files if how == "close" else STOPS[how](files), settings=COMPACT)
    assert log.log_end_offset == 4
    assert log.append(batch(b"new")).base_offset == 4
    log.flush()
    assert offsets(log) == [4]


@pytest.mark.parametrize("how", STOPS)
def test_truncating_everything_leaves_the_next_offset_on_disk(how: str) -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 4)
    log.truncate_to(0)
    _, log = reopen(STOPS[how](files))
    assert (offsets(log), log.append(batch(b"new")).base_offset) == ([], 4)


@pytest.mark.parametrize("how", STOPS)
def test_compacting_the_last_record_away_leaves_the_next_offset_on_disk(how: str) -> None:
    files, clock = SimulatedFiles(), FakeClock()
    _, log = new_log(files, clock, COMPACT)
    log.append(batch(None, keys=[b"a"]))
    for _ in range(2):
        compact_now(log)
        clock.advance(COMPACT.delete_retention_ms)
    assert offsets(log) == []
    _, log = reopen(STOPS[how](files), clock, COMPACT)
    assert log.append(batch(b"new")).base_offset == 1
