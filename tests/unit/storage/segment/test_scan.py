"""The scanner over randomly damaged logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import batch

from strandlog.record.batch_header import read_header, stamp
from strandlog.storage.segment.scan import Batch, Damage, scan, view_source


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


def test_the_search_behind_damage_ends_where_the_file_has_shrunk() -> None:
    data = at(0) + at(1)
    source = view_source(memoryview(data[:70]))
    (damage,) = scan(source, len(at(0)), len(data), next_offset=1)
    assert isinstance(damage, Damage)
    assert damage.end_offset is None
