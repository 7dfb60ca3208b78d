"""A read-only log agrees with the owner on what is committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import (
    DATA,
    FOLDER,
    START_MS,
    TP,
    batch,
    new_log,
    reopen,
    small_settings,
)

from strandlog.record.batch_header import HEADER_SIZE, MAGIC_POSITION
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.readonly.committed import CommittedView, committed_view
from strandlog.storage.readonly.view import FolderView
from strandlog.testing import SimulatedFiles

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "plain", "commit", "abort", "flush", "roll", "reopen"]),
        st.integers(1, 3),
    ),
    max_size=40,
)


def seen_by_reader(files: SimulatedFiles) -> CommittedView:
    return committed_view(files, FolderView(files, DATA).view(TP))


def told(log: PartitionLog) -> list[tuple[int, int, int]]:
    return sorted(entry[:3] for entry in log.aborted if entry.last_offset < log.high_watermark)


@given(ACTIONS)
def test_a_reader_agrees_with_the_owner(actions: list[tuple[str, int]]) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=400))
    sequences = dict.fromkeys((1, 2, 3), 0)
    for action, producer in actions:
        if action == "write":
            numbered = (producer, 0, sequences[producer])
            log.append(batch(b"x" * 40, producer=numbered, transactional=True))
            sequences[producer] += 1
        elif action == "plain":
            log.append(batch(b"y" * 40))
        elif action in ("commit", "abort"):
            kind = ControlType.COMMIT if action == "commit" else ControlType.ABORT
            log.append(control_batch(kind, producer, 0, START_MS), is_control=True)
        elif action == "flush":
            log.flush()
        elif action == "roll":
            log.roll()
        else:
            log_dir.close()
            log_dir, log = reopen(files, settings=small_settings(segment_bytes=400))
    log.flush()
    seen = seen_by_reader(files)
    assert seen.last_stable_offset == log.last_stable_offset
    assert sorted(entry[:3] for entry in seen.aborted) == told(log)


def test_what_is_not_on_disk_is_not_shown() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    log.append(batch(b"a"))
    log.flush()
    log.append(batch(b"b", producer=(7, 0, 0), transactional=True))
    assert seen_by_reader(files).last_stable_offset == 1


def test_damage_does_not_make_an_open_transaction_look_committed() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    log.append(batch(b"before"))
    position = log.segments.active.size_bytes
    log.append(batch(b"damaged"))
    log.append(batch(b"open", producer=(7, 0, 0), transactional=True))
    log.flush()
    for name in [name for name in files.list_dir(FOLDER) if name.endswith(".snapshot")]:
        files.remove(f"{FOLDER}/{name}")
    assert log.last_stable_offset == 2
    files.write_at(log.segments.active.log_path, position + MAGIC_POSITION, b"\xff")
    assert seen_by_reader(files).last_stable_offset == 2


def test_damage_in_a_sealed_segment_does_not_prevent_reading_committed_records() -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    log.append(batch(b"before"))
    sealed, position = log.segments.active, log.segments.active.size_bytes
    log.append(batch(b"damaged"))
    log.append(batch(b"open", producer=(7, 0, 0), transactional=True))
    log.roll()
    log.append(batch(b"after"))
    log.flush()
    for name in [name for name in files.list_dir(FOLDER) if name.endswith(".snapshot")]:
        files.remove(f"{FOLDER}/{name}")
    files.write_at(sealed.log_path, position + MAGIC_POSITION, b"\xff")
    assert seen_by_reader(files).last_stable_offset == log.last_stable_offset == 2


@pytest.mark.parametrize(
    ("byte", "value"),
    [(MAGIC_POSITION, b"\xff"), (HEADER_SIZE + 8, b"\x01")],
    ids=["magic", "type"],
)
def test_a_damaged_abort_marker_does_not_make_aborted_records_look_committed(
    byte: int, value: bytes
) -> None:
    files = SimulatedFiles()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    log.append(batch(b"before"))
    log.append(batch(b"aborted", producer=(7, 0, 0), transactional=True))
    position = log.segments.active.size_bytes
    for kind, sequence in ((ControlType.ABORT, 1), (ControlType.COMMIT, 2)):
        marker = control_batch(kind, 7, 0, START_MS)
        log.append(marker, is_control=True, from_coordinator=True)
        log.append(batch(b"committed", producer=(7, 0, sequence), transactional=True))
    log.flush()
    for name in [name for name in files.list_dir(FOLDER) if name.endswith(".snapshot")]:
        files.remove(f"{FOLDER}/{name}")
    files.write_at(log.segments.active.log_path, position + byte, value)
    assert seen_by_reader(files).last_stable_offset == 1
