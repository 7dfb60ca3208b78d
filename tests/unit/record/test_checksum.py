"""CRC-32C against the published check value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandlog.record.batch_header import crc32c


def test_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.binary(), st.binary())
def test_continues_and_takes_every_buffer(head: bytes, tail: bytes) -> None:
    whole = crc32c(head + tail)
    assert crc32c(tail, crc32c(head)) == whole
    assert crc32c(bytearray(head + tail)) == whole
    assert crc32c(memoryview(b"x" + head + tail)[1:]) == whole
