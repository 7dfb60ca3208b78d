"""Transaction markers: their bytes, and what is refused."""

from __future__ import annotations

import pytest

from strandlog.errors import CorruptRecordError
from strandlog.record.batch import BatchView
from strandlog.record.builder import build_single
from strandlog.record.control import ControlMarker, ControlType, control_batch, read_control


@pytest.mark.parametrize("kind", list(ControlType))
def test_comes_back(kind: ControlType) -> None:
    view = BatchView(control_batch(kind, 77, 3, 1234, coordinator_epoch=9))
    view.check()
    assert read_control(view) == ControlMarker(kind, 9)
    header = view.header
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == (77, 3)
    assert header.base_sequence == header.last_sequence == -1
    assert (header.base_timestamp, header.max_timestamp) == (1234, 1234)
    assert (header.record_count, header.last_offset_delta) == (1, 0)


def test_bytes_of_the_marker() -> None:
    (record,) = BatchView(control_batch(ControlType.COMMIT, 1, 0, 5, 258)).records("t", 0)
    assert record.key == bytes.fromhex("0000 0001")
    assert record.value == bytes.fromhex("0000 00000102")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"\0\0\0\0\0\0"),
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\x02", b"\0\0\0\0\0\0"),
        (b"\0\0\0\x01", b"\0\0\0"),
        (b"\0\0\0\x01", None),
    ],
)
def test_other_content_is_refused(key: bytes | None, value: bytes | None) -> None:
    view = BatchView(build_single(5, value, key, is_control=True, base_offset=12))
    with pytest.raises(CorruptRecordError, match="control batch at offset 12"):
        read_control(view)


def test_later_versions_may_be_longer() -> None:
    batch = build_single(5, b"\0\1\0\0\0\x07more", b"\0\1\0\0more", is_control=True)
    assert read_control(BatchView(batch)) == ControlMarker(ControlType.ABORT, 7)


def test_data_batch_is_no_control_batch() -> None:
    with pytest.raises(CorruptRecordError, match="offset 3 is not a control batch"):
        read_control(BatchView(build_single(5, b"v", base_offset=3)))
