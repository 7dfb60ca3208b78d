"""Splits of an offset range at batches in the index, by bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.log_builders import DATA, FOLDER, TP, batch, new_log, small_settings

from strandlog.storage.readonly.view import FolderView, PartitionView
from strandlog.testing import SimulatedFiles

INTERVAL_BYTES = 100
SEGMENT_BYTES = 4000
# How many records of how many bytes a batch has.
BATCHES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), min_size=1, max_size=60)
SKEWED = [(5, 0)] * 50 + [(1, 300)] * 50  # most records at first, most bytes behind


def written(sizes: list[tuple[int, int]]) -> tuple[SimulatedFiles, dict[int, int]]:
    """A partition of such batches, and how many bytes lie before each offset that begins one."""
    files = SimulatedFiles()
    chosen = small_settings(segment_bytes=SEGMENT_BYTES, index_interval_bytes=INTERVAL_BYTES)
    _, log = new_log(files, settings=chosen)
    bytes_before: dict[int, int] = {}
    total = 0
    for count, value_bytes in sizes:
        data = batch(*[b"x" * value_bytes] * count)
        bytes_before[log.log_end_offset] = total
        total += len(data)
        log.append(data)
    log.flush()
    bytes_before[log.log_end_offset] = total
    return files, bytes_before


def view(files: SimulatedFiles) -> PartitionView:
    return FolderView(files, DATA).view(TP)


@given(BATCHES, st.integers(2, 8), st.floats(0, 1), st.floats(0, 1))
@example(SKEWED, 2, 0.0, 1.0)
@example(SKEWED, 5, 0.0, 1.0)
def test_pieces_start_at_batches_and_are_about_equal_in_bytes(
    sizes: list[tuple[int, int]], pieces: int, from_: float, to: float
) -> None:
    files, bytes_before = written(sizes)
    starts = sorted(bytes_before)
    edges = sorted((int(from_ * (len(starts) - 1)), int(to * (len(starts) - 1))))
    start, end = starts[edges[0]], starts[edges[1]]
    cuts = view(files).split_offsets(start, end, pieces)
    assert cuts == sorted(set(cuts))
    assert all(start < cut < end and cut in bytes_before for cut in cuts)
    assert len(cuts) < pieces
    largest = max(b - a for a, b in pairwise(bytes_before.values()))
    fair = (bytes_before[end] - bytes_before[start]) / pieces
    for first, last in pairwise([start, *cuts, end]):
        size = bytes_before[last] - bytes_before[first]
        assert size <= fair + 2 * (largest + INTERVAL_BYTES)


def test_pieces_are_split_by_bytes_and_not_by_records() -> None:
    files, bytes_before = written(SKEWED * 4)
    start, *_, end = bytes_before
    total = bytes_before[end]
    [cut] = view(files).split_offsets(start, end, 2)
    assert abs(bytes_before[cut] - total / 2) < total / 20


def test_a_missing_or_wrong_index_gives_offsets_within_the_range() -> None:
    files, bytes_before = written(SKEWED)
    start, *_, end = bytes_before
    right = view(files).split_offsets(start, end, 4)
    for name in files.list_dir(FOLDER):
        if name.endswith(".index"):
            files.replace(f"{FOLDER}/{name}", b"\x7f" * 64)
    wrong = view(files).split_offsets(start, end, 4)
    assert all(start < cut < end for cut in wrong)
    for name in files.list_dir(FOLDER):
        if name.endswith(".index"):
            files.remove(f"{FOLDER}/{name}")
    rebuilt = view(files).split_offsets(start, end, 4)
    assert len(right) == len(rebuilt) == 3
    assert all(cut in bytes_before for cut in rebuilt)
