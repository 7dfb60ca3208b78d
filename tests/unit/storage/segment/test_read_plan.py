"""Which bytes answer a read, whatever the index says and wherever the damage is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import batch, fill, new_log, offsets

from strandlog.errors import CorruptSegmentError, OffsetOutOfRangeError
from strandlog.record.batch_header import read_header, stamp
from strandlog.storage.partition.read import read
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.read_plan import ReadPlan
from strandlog.storage.segment.scan import NEVER, view_source
from strandlog.testing import SimulatedFiles

Layout = list[tuple[int, int]]  # base offset and number of records of each batch

DENSE: Layout = [(100, 2), (102, 1), (103, 4), (107, 1)]
GAPS: Layout = [(103, 2), (110, 1), (111, 3), (120, 1)]


def segment(layout: Layout) -> tuple[bytes, list[int]]:
    """The bytes of these batches, and where each begins."""
    data, starts = bytearray(), list[int]()
    for base_offset, count in layout:
        one = bytearray(batch(*[b"value %d" % (base_offset + n) for n in range(count)]))
        stamp(one, base_offset, 0)
        starts.append(len(data))
        data += one
    return bytes(data), starts


def plan(
    data: bytes,
    offset: int,
    max_bytes: int = 1,
    *,
    entry: IndexEntry | None = None,
    end_offset: int = NEVER,
    end_position: int | None = None,
) -> ReadPlan:
    return ReadPlan(
        view_source(memoryview(data)),
        "a.log",
        100,
        entry,
        len(data) if end_position is None else end_position,
        offset,
        max_bytes,
        end_offset=end_offset,
    )


def number_of(layout: Layout, offset: int) -> int | None:
    """Which batch answers: the first that ends at or after the offset."""
    ends = [base + count - 1 for base, count in layout]
    return next((n for n, end in enumerate(ends) if end >= offset), None)


@pytest.mark.parametrize("layout", [DENSE, GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("offset", range(98, 123))
def test_a_read_begins_with_the_batch_that_holds_the_offset_or_the_next(
    layout: Layout, offset: int
) -> None:
    data, starts = segment(layout)
    number = number_of(layout, offset)
    bounds = [*starts, len(data)]
    entries = [IndexEntry(b + c - 1, s) for (b, c), s in zip(layout, starts, strict=True)]
    for entry in [None, *(entry for entry in entries if entry.offset <= offset)]:
        one = plan(data, offset, entry=entry)
        expected = b"" if number is None else data[bounds[number] : bounds[number + 1]]
        assert one.execute() == expected
        assert not one.index_is_wrong


@given(max_bytes=st.integers(0, 1000), offset=st.integers(100, 107))
def test_a_read_returns_the_whole_first_batch_and_at_most_max_bytes(
    max_bytes: int, offset: int
) -> None:
    data, starts = segment(DENSE)
    number = number_of(DENSE, offset)
    assert number is not None
    start, first_size = starts[number], [*starts, len(data)][number + 1] - starts[number]
    found = plan(data, offset, max_bytes).execute()
    assert found == data[start : start + max(first_size, max_bytes)]


def test_bytes_after_the_end_position_are_not_returned() -> None:
    data, starts = segment(DENSE)
    assert plan(data, 100, 10**6, end_position=starts[2]).execute() == data[: starts[2]]
    assert plan(data, 103, 10**6, end_position=starts[2]).execute() == b""
    assert plan(data, 100, end_position=0).execute() == b""


@pytest.mark.parametrize(
    "entry",
    [
        IndexEntry(102, 5),
        IndexEntry(102, -3),
        IndexEntry(102, 10**6),
        IndexEntry(103, 0),
        IndexEntry(100, 0),
        IndexEntry(101, 70),
    ],
)
def test_an_index_entry_that_contradicts_the_log_is_skipped_and_reported(entry: IndexEntry) -> None:
    data, starts = segment(DENSE)
    one = plan(data, 104, entry=entry)
    assert one.execute() == data[starts[2] : starts[3]]
    assert one.index_is_wrong


@pytest.mark.parametrize("layout", [DENSE, GAPS], ids=["dense", "gaps"])
@pytest.mark.parametrize("damaged", range(4))
def test_damage_hides_its_batch_and_the_error_has_a_resume_offset(
    layout: Layout, damaged: int
) -> None:
    whole, starts = segment(layout)
    bounds = [*starts, len(whole)]
    data = bytearray(whole)
    data[bounds[damaged + 1] - 1] ^= 1
    after = layout[damaged + 1][0] if damaged < 3 else 130
    for offset in range(100, layout[-1][0] + layout[-1][1]):
        number = number_of(layout, offset)
        assert number is not None
        # A gap behind damage may have been a part of it.
        if number != damaged and not layout[damaged][0] <= offset < after:
            one = plan(bytes(data), offset, end_offset=130)
            assert one.execute() == whole[bounds[number] : bounds[number + 1]]
            continue
        with pytest.raises(CorruptSegmentError, match="checksum") as caught:
            plan(bytes(data), offset, end_offset=130).execute()
        assert caught.value.position == starts[damaged]
        assert caught.value.resume_offset == after


def test_damage_in_the_last_batch_has_no_resume_offset_if_the_end_is_unknown() -> None:
    whole, _ = segment(DENSE)
    data = bytearray(whole)
    data[-1] ^= 1
    with pytest.raises(CorruptSegmentError) as caught:
        plan(bytes(data), 107).execute()
    assert caught.value.resume_offset is None


# -- through an open log -----------------------------------------------------------------------


def test_reads_outside_the_log_are_refused_and_at_its_end_empty() -> None:
    _, log = new_log(SimulatedFiles())
    fill(log, 20)
    log.flush()
    log.raise_log_start(4)
    for offset in (-1, 3, 21):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            read(log, offset, 100)
        assert (caught.value.start_offset, caught.value.end_offset) == (4, 20)
    assert read(log, 20, 100) == b""


@pytest.mark.parametrize("max_bytes", [0, 1, 70, 71, 200, 10**6])
def test_every_read_returns_at_least_one_batch(max_bytes: int) -> None:
    _, log = new_log(SimulatedFiles())
    fill(log, 40)
    log.flush()
    offset, seen = 0, list[int]()
    while offset < 40:
        data = read(log, offset, max_bytes)
        header = read_header(data)
        assert header.base_offset == offset
        assert len(data) >= header.size_bytes
        seen.append(header.base_offset)
        offset = header.next_offset
    assert seen == list(range(40)) == offsets(log)
