"""The header: positions, stamping in place, and what the checksum covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import CorruptRecordError, InvalidRecordError, UnsupportedCodecError
from strandlog.model import TimestampType
from strandlog.record import batch_header as layout
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import (
    HEADER_SIZE,
    PREFIX_SIZE,
    BatchHeader,
    read_header,
    seal,
    stamp,
    stamp_append_time,
    stamped_prefix,
)
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec

BLANK = BatchHeader(0, 49, -1, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
WIDTHS = {
    "base_offset": (layout.BASE_OFFSET_POSITION, 8),
    "batch_length": (layout.BATCH_LENGTH_POSITION, 4),
    "leader_epoch": (layout.LEADER_EPOCH_POSITION, 4),
    "magic": (layout.MAGIC_POSITION, 1),
    "crc": (layout.CRC_POSITION, 4),
    "attributes": (layout.ATTRIBUTES_POSITION, 2),
    "last_offset_delta": (layout.LAST_OFFSET_DELTA_POSITION, 4),
    "base_timestamp": (layout.BASE_TIMESTAMP_POSITION, 8),
    "max_timestamp": (layout.MAX_TIMESTAMP_POSITION, 8),
    "producer_id": (layout.PRODUCER_ID_POSITION, 8),
    "producer_epoch": (layout.PRODUCER_EPOCH_POSITION, 2),
    "base_sequence": (layout.BASE_SEQUENCE_POSITION, 4),
    "record_count": (layout.RECORD_COUNT_POSITION, 4),
}


def test_fields_are_contiguous_in_wire_order() -> None:
    assert tuple(WIDTHS) == BatchHeader._fields
    position = 0
    for start, width in WIDTHS.values():
        assert start == position
        position += width
    assert position == HEADER_SIZE == 61
    assert layout.CRC_START == layout.ATTRIBUTES_POSITION == 21
    assert layout.LOG_OVERHEAD == layout.LEADER_EPOCH_POSITION == 12
    assert PREFIX_SIZE == layout.MAGIC_POSITION == 16


@given(st.binary(min_size=61, max_size=61), st.binary(max_size=5))
def test_reads_every_field_big_endian(raw: bytes, before: bytes) -> None:
    header = read_header(before + raw, len(before))
    for name, (start, width) in WIDTHS.items():
        expected = int.from_bytes(raw[start : start + width], "big", signed=name != "crc")
        assert getattr(header, name) == expected


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="takes 61 bytes, but only 60 are left"):
        read_header(bytes(70), 10)
    with pytest.raises(CorruptRecordError, match="0 are left"):
        read_header(b"", 0)


def test_derived_numbers() -> None:
    header = BLANK._replace(base_offset=100, last_offset_delta=9, batch_length=200)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (212, 109, 110)


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(-1, 5, -1), (0, 0, 0), (7, 3, 10), (2**31 - 1, 0, 2**31 - 1), (2**31 - 2, 3, 1)],
)
def test_sequences_wrap_to_zero(base: int, delta: int, last: int) -> None:
    assert BLANK._replace(base_sequence=base, last_offset_delta=delta).last_sequence == last


def test_attribute_bits() -> None:
    assert [BLANK._replace(attributes=bits).codec for bits in range(5)] == list(Codec)
    for bits in (5, 6, 7):
        with pytest.raises(UnsupportedCodecError, match=f"codec {bits}"):
            _ = BLANK._replace(attributes=bits).codec
    assert BLANK.timestamp_type is TimestampType.CREATE_TIME
    assert BLANK._replace(attributes=8).timestamp_type is TimestampType.LOG_APPEND_TIME
    for bit, name in ((16, "is_transactional"), (32, "is_control"), (64, "has_delete_horizon")):
        assert getattr(BLANK._replace(attributes=bit), name) is True
        assert getattr(BLANK._replace(attributes=0x7F ^ bit), name) is False


@pytest.mark.parametrize("padding", [0, 7])
def test_stamping_keeps_the_checksum(padding: int) -> None:
    batch = bytearray(padding) + build_batch(1000, [b"one", b"two"]) + bytearray(padding)
    before = read_header(batch, padding)
    stamp(batch, 1 << 40, 77, padding)
    after = read_header(batch, padding)
    assert after == before._replace(base_offset=1 << 40, leader_epoch=77)
    BatchView(batch, padding).check()
    assert batch[:padding] == batch[-padding or len(batch) :] == bytes(padding)
    prefix = stamped_prefix(1 << 40, before.batch_length, 77)
    assert prefix == batch[padding : padding + PREFIX_SIZE]


@pytest.mark.parametrize("padding", [0, 7])
def test_stamping_the_append_time_updates_the_checksum(padding: int) -> None:
    batch = bytearray(padding) + build_batch(1000, [b"one", b"two"], timestamps=[1000, 1005])
    batch += b"next"
    stamp_append_time(memoryview(batch), 5555, padding)
    view = BatchView(batch, padding)
    view.check()
    assert view.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (view.header.base_timestamp, view.header.max_timestamp) == (1000, 5555)
    assert [record.timestamp for record in view.records("t", 0)] == [5555, 5555]
    assert batch[-4:] == b"next"


def test_field_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="out of range"):
        seal(bytearray(61), 0, 0, 0, 0, 1 << 63, 0, 0, 0, 0, 1)
