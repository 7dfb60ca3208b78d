"""Reads for clients that check nothing: no damaged bytes, and a bound on what is checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import FOLDER, batch, fill, new_log, reopen, small_settings

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch import BatchView
from strandlog.storage.partition import read as partition_reads
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import CheckBudget, read
from strandlog.storage.segment import scan
from strandlog.testing import SimulatedFiles

COUNT = 40
WHOLE = 1_000_000


def stopped(**settings: object) -> SimulatedFiles:
    """A partition of `COUNT` batches over several segments, closed by its owner."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(**settings))
    fill(log, COUNT)
    log.flush()
    log_dir.close()
    return files


def batches_of(data: bytes) -> dict[int, bytes]:
    """Whole batches by their base offset, with no look at a checksum: as some clients read."""
    found, position = {}, 0
    while position + 61 <= len(data):
        header = BatchView(data, position).header
        end = position + header.size_bytes
        if header.size_bytes < 61 or end > len(data):
            break
        # The checksum does not cover the leader epoch, which means nothing with one node.
        found[header.base_offset] = data[position : position + 12] + data[position + 16 : end]
        position = end
    return found


def handed_out(log: PartitionLog, max_bytes: int = WHOLE) -> dict[int, bytes]:
    """What a client reads that continues after each batch, and after damage."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            data = bytes(read(log, offset, max_bytes, verify=CheckBudget()))
        except CorruptSegmentError as damage:
            assert damage.resume_offset is None or damage.resume_offset > offset
            offset = damage.resume_offset or log.high_watermark
            continue
        batches = batches_of(data)
        assert batches, f"a read at {offset} returns nothing"
        found |= batches
        offset = max(batches) + 1  # each holds one record
    return found


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), sealed=st.booleans())
def test_a_client_never_gets_a_damaged_batch_whichever_bit_is_flipped(
    place: float, bit: int, sealed: bool
) -> None:
    files = stopped(**({} if sealed else {"segment_bytes": 10_000_000}))
    log_dir, log = reopen(files)
    written = handed_out(log)
    assert len(written) == COUNT
    log_dir.close()
    path = f"{FOLDER}/{0:020d}.log"
    raw = bytearray(files.read(path))
    raw[int(place * len(raw))] ^= 1 << bit
    files.replace(path, bytes(raw))
    _, log = reopen(files)
    got = handed_out(log)
    assert got.items() <= written.items()
    assert len(got) >= COUNT - 2, "damage hides its own batch, and perhaps a neighbour"


@pytest.mark.parametrize("is_inherited", [False, True])
@pytest.mark.parametrize("kept_bytes", [0, 100, 250, 399])
def test_zeros_in_place_of_lost_bytes_reach_no_client(kept_bytes: int, is_inherited: bool) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    fill(log, COUNT)
    log.flush()
    if is_inherited:
        log_dir.close()
        log_dir, log = reopen(files)
    written = handed_out(log)
    log.context.cache.close()  # the simulated disk cannot truncate a mapped file
    files.truncate(f"{FOLDER}/{0:020d}.log", kept_bytes)
    got = handed_out(log)
    next_base = log.segments.sealed[1].base_offset
    assert set(got) >= set(range(next_base, COUNT))
    assert got.items() <= written.items()
    data = read(log, 0, WHOLE, verify=CheckBudget()) if 0 in got else b""
    assert len(data) <= kept_bytes


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the batches that are checked behind the first of a read."""
    seen: list[int] = []

    def counted(*args: object, **kwargs: object) -> object:
        for view in scan.batches_of_read(*args, **kwargs):  # type: ignore[arg-type]
            seen.append(view.header.base_offset)
            yield view

    monkeypatch.setattr(partition_reads, "batches_of_read", counted)
    return seen


def test_batches_of_an_earlier_process_are_checked_once(checks: list[int]) -> None:
    _, log = reopen(stopped())
    assert len(handed_out(log, 300)) == COUNT
    assert sorted(checks) == list(range(COUNT))
    assert len(handed_out(log, 300)) == COUNT
    assert len(checks) == COUNT


def test_batches_of_this_process_are_not_checked(checks: list[int]) -> None:
    _, log = new_log(SimulatedFiles())
    fill(log, COUNT)
    log.flush()
    assert len(handed_out(log)) == COUNT
    assert not checks


def test_batches_appended_after_a_restart_are_not_checked(checks: list[int]) -> None:
    _, log = reopen(stopped(segment_bytes=10_000_000), settings=small_settings())
    log.append(batch(b"new"))
    log.flush()
    assert read(log, COUNT, WHOLE, verify=CheckBudget())
    assert not checks


@pytest.mark.parametrize("limit", [("batches", 3), ("size_bytes", 210)])
def test_a_read_ends_where_its_check_budget_is_spent(
    checks: list[int], limit: tuple[str, int]
) -> None:
    _, log = reopen(stopped(segment_bytes=10_000_000))
    budget = CheckBudget()
    setattr(budget, *limit)
    data = read(log, 0, WHOLE, verify=budget)
    assert len(batches_of(bytes(data))) == 3
    assert len(data) < len(read(log, 0, WHOLE))
    kept = memoryview(memoryview(data).obj)
    assert kept.nbytes <= 2 * len(data), "the result keeps other bytes in memory"
    assert len(batches_of(bytes(read(log, 3, WHOLE, verify=budget)))) == 1, "none is left"
