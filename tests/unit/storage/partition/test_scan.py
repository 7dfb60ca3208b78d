"""The scanner over randomly damaged logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.log_builders import batch

from strandlog.errors import CorruptSegmentError
from strandlog.record.batch_header import read_header, stamp
from strandlog.storage.segment.batch_walk import next_intact, walk
from strandlog.storage.segment.scan import NEVER, Batch, Damage, buffered, scan, view_source


def at(base_offset: int, count: int = 1, filler: bytes = b"") -> bytes:
    data = bytearray(batch(*[b"value %d" % (base_offset + n) + filler for n in range(count)]))
    stamp(data, base_offset, 0)
    return bytes(data)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int, bool]:
    """Log bytes, the offset after them, and whether offsets are missing on purpose."""
    has_gaps = draw(st.booleans())
    offset, pieces = 0, []
    for _ in range(draw(st.integers(0, 6))):
        offset += draw(st.integers(0, 3)) if has_gaps else 0
        count = draw(st.integers(1, 3))
        # A value that holds a batch itself must not be taken for a batch of the log.
        filler = at(draw(st.integers(0, 20))) if draw(st.booleans()) else b""
        pieces.append(at(offset, count, filler))
        offset += count
    return b"".join(pieces), offset, has_gaps


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[bytes, int, bool]:
    data, end_offset, has_gaps = draw(logs())
    log = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        if not log:
            break
        position = draw(st.integers(0, len(log) - 1))
        kind = draw(st.sampled_from(["flip", "zero", "cut", "remove", "repeat"]))
        size = draw(st.integers(1, 120))
        if kind == "flip":
            log[position] ^= 1 << draw(st.integers(0, 7))
        elif kind == "zero":
            log[position : position + size] = bytes(len(log[position : position + size]))
        elif kind == "cut":
            del log[position:]
        elif kind == "remove":
            del log[position : position + size]
        else:
            log[position:position] = log[position : position + size]
    return bytes(log), end_offset, has_gaps


Found = list[tuple[object, ...]]


def old_walk(data: bytes, crc_from: int, end_offset: int, has_gaps: bool) -> Found:
    source, found, position, next_offset = view_source(memoryview(data)), Found(), 0, 0
    while position < len(data):
        try:
            for at_position, header in walk(
                source,
                position,
                len(data),
                path="",
                next_offset=next_offset,
                crc_from_offset=crc_from,
                end_offset=end_offset,
                has_gaps=has_gaps,
            ):
                found.append((at_position, header))
                next_offset = header.next_offset
            break
        except CorruptSegmentError as error:
            intact = next_intact(source, error.position, len(data), next_offset)
            end = intact[0] if intact else len(data)
            found.append((error.position, end, next_offset, error.reason))
            if intact is None:
                break
            position, next_offset = end, intact[1].base_offset
    return found


def new_scan(data: bytes, crc_from: int, end_offset: int, has_gaps: bool) -> Found:
    return [
        (item.position, item.end_position, item.start_offset, item.reason)
        if isinstance(item, Damage)
        else (item.position, item.header)
        for item in scan(
            buffered(view_source(memoryview(data))),
            0,
            len(data),
            next_offset=0,
            crc_from_offset=crc_from,
            end_offset=end_offset,
            has_gaps=has_gaps,
        )
    ]


@given(damaged_logs(), st.booleans(), st.booleans())
def test_the_scanner_finds_what_the_old_walk_found(
    log: tuple[bytes, int, bool], checks_crc: bool, knows_end: bool
) -> None:
    data, end, has_gaps = log
    crc_from, end_offset = 0 if checks_crc else NEVER, end if knows_end else NEVER
    expected = old_walk(data, crc_from, end_offset, has_gaps)
    assert new_scan(data, crc_from, end_offset, has_gaps) == expected


@given(damaged_logs())
def test_a_scan_with_checksums_covers_every_byte_and_yields_only_intact_batches(
    log: tuple[bytes, int, bool],
) -> None:
    data, _, _ = log
    position, next_offset = 0, 0
    for item in scan(view_source(memoryview(data)), 0, len(data), next_offset=0, crc_from_offset=0):
        assert item.position == position
        if isinstance(item, Batch):
            assert item.header == read_header(data, position)
            assert item.header.base_offset >= next_offset
            position, next_offset = position + item.header.size_bytes, item.header.next_offset
        else:
            assert item.end_position > position
            position = item.end_position
            next_offset = item.end_offset or next_offset
    assert position == len(data)


@given(logs())
def test_an_undamaged_log_has_no_damage(log: tuple[bytes, int, bool]) -> None:
    data, end_offset, has_gaps = log
    source = view_source(memoryview(data))
    items = list(scan(source, 0, len(data), next_offset=0, crc_from_offset=0, has_gaps=has_gaps))
    assert all(isinstance(item, Batch) for item in items)
    if items and isinstance(items[-1], Batch):
        assert items[-1].header.next_offset == end_offset
