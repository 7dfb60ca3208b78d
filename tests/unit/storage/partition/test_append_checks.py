"""Checks of batches before an append."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.log_builders import START_MS, TP, all_records, batch, new_log, small_settings

from strandlog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    StrandlogError,
)
from strandlog.record.batch_header import (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    CRC_POSITION,
    CRC_START,
    LAST_OFFSET_DELTA_POSITION,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    RECORD_COUNT_POSITION,
    read_header,
)
from strandlog.record.checksum import crc32c
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.partition.append_checks import check_batch, split_batches
from strandlog.storage.partition.record_checks import check_records
from strandlog.testing import FakeClock, SimulatedFiles

WHOLE = batch(b"one", b"two", b"three")


def changed(position: int, layout: str, value: int, data: bytes = WHOLE) -> bytes:
    """A batch with one field changed and a checksum that matches again."""
    new = bytearray(data)
    struct.pack_into(layout, new, position, value)
    struct.pack_into(">I", new, CRC_POSITION, crc32c(bytes(new[CRC_START:])))
    return bytes(new)


def check(data: bytes, *, is_control: bool = False, **changes: object) -> None:
    header = read_header(data)
    settings = small_settings(**changes)
    view = memoryview(data)
    check_batch(header, view, settings, START_MS, is_control=is_control)
    if settings.checks_records:
        check_records(TP, header, view, settings, START_MS, 2**20)


def test_good_batches_pass() -> None:
    for codec in Codec:
        check(batch(b"one", b"two", codec=codec))
    check(batch(None, producer=(5, 0, 0)))
    check(bytes(control_batch(ControlType.ABORT, 5, 0, START_MS)), is_control=True)


def test_transaction_markers_are_exempt_from_the_timestamp_window() -> None:
    late = bytes(control_batch(ControlType.ABORT, 5, 0, START_MS - 1))
    check(late, is_control=True, message_timestamp_before_max_ms=0)


def test_every_flipped_bit_that_the_checksum_covers_is_rejected() -> None:
    for bit in range(8 * MAGIC_POSITION, 8 * len(WHOLE)):
        damaged = bytearray(WHOLE)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            check(bytes(damaged))


BAD: dict[str, tuple[bytes, type[StrandlogError], str]] = {
    "no records": (changed(RECORD_COUNT_POSITION, ">i", 0), InvalidRecordError, "0 records"),
    "fewer records": (changed(RECORD_COUNT_POSITION, ">i", 2), InvalidRecordError, "2 records"),
    "more offsets": (changed(LAST_OFFSET_DELTA_POSITION, ">i", 3), InvalidRecordError, "4 offsets"),
    "one offset": (changed(LAST_OFFSET_DELTA_POSITION, ">i", 0), InvalidRecordError, "1 offset$"),
    "negative delta": (changed(LAST_OFFSET_DELTA_POSITION, ">i", -1), InvalidRecordError, "0 off"),
    "codec 5": (changed(ATTRIBUTES_POSITION, ">h", 5), InvalidRecordError, "codec 5"),
    "codec 7": (changed(ATTRIBUTES_POSITION, ">h", 7), InvalidRecordError, "codec 7"),
    "control": (changed(ATTRIBUTES_POSITION, ">h", 32), InvalidRecordError, "control"),
    "append time": (changed(ATTRIBUTES_POSITION, ">h", 8), InvalidTimestampError, "LogAppendTime"),
    "no sequence": (changed(PRODUCER_ID_POSITION, ">q", 4), InvalidRecordError, "sequence"),
    "magic 1": (changed(MAGIC_POSITION, ">b", 1), CorruptRecordError, "magic"),
}


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_in_the_format_before_batches_gets_an_error_that_is_not_retried(
    magic: int,
) -> None:
    """Producers repeat what was damaged on its way; this is whole, and will not be taken."""
    timestamp = struct.pack(">q", START_MS) if magic else b""
    body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">ii", -1, 1) + b"v"
    message = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    with pytest.raises(InvalidRecordError, match=f"magic {magic} "):
        split_batches(message)
    with pytest.raises(InvalidRecordError, match=f"magic {magic} "):
        split_batches(message + message)
    with pytest.raises(CorruptRecordError):
        split_batches(message[:-1] + b"w")


@pytest.mark.parametrize("why", BAD)
def test_inconsistent_headers_are_rejected(why: str) -> None:
    data, error, text = BAD[why]
    with pytest.raises(error, match=text):
        check(data)


def test_control_batches_are_accepted_only_from_the_coordinator() -> None:
    marker = bytes(control_batch(ControlType.COMMIT, 5, 0, START_MS))
    with pytest.raises(InvalidRecordError, match="control"):
        check(marker)
    with pytest.raises(InvalidRecordError, match="control"):
        check(WHOLE, is_control=True)


def test_a_sequence_number_without_a_producer_id_is_ignored() -> None:
    check(changed(BASE_SEQUENCE_POSITION, ">i", 17))


def test_a_batch_may_be_as_large_as_the_setting_says() -> None:
    check(WHOLE, max_message_bytes=len(WHOLE))
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes") as caught:
        check(WHOLE, max_message_bytes=len(WHOLE) - 1)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (len(WHOLE), len(WHOLE) - 1)


@pytest.mark.parametrize(
    ("timestamp", "is_fine"),
    [
        (START_MS + 100, True),
        (START_MS + 101, False),
        (START_MS - 200, True),
        (START_MS - 201, False),
        (-1, True),
        (0, False),
    ],
)
def test_timestamps_outside_the_window_of_the_topic_are_rejected(
    timestamp: int, is_fine: bool
) -> None:
    window: dict[str, Any] = {
        "message_timestamp_after_max_ms": 100,
        "message_timestamp_before_max_ms": 200,
    }
    data = batch(b"v", timestamp=timestamp)
    if is_fine:
        check(data, **window)
    else:
        with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.(after|before)"):
            check(data, **window)
    # A log that stamps its own times does not ask.
    check(data, **window, message_timestamp_type="LogAppendTime")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("place", range(3))
def test_a_record_that_is_too_old_is_found_among_newer_ones(codec: Codec, place: int) -> None:
    times = [START_MS, START_MS - 200, -1]
    limit = before(200)
    check(batch(b"1", b"2", b"3", timestamps=times, codec=codec), **limit)
    times[place] = START_MS - 201
    data = batch(b"1", b"2", b"3", timestamps=times, codec=codec)
    with pytest.raises(InvalidTimestampError, match="201 ms behind"):
        check(data, **limit)
    check(data)  # a topic without a limit does not ask
    check(data, **limit, message_timestamp_type="LogAppendTime")


def before(limit_ms: int) -> dict[str, Any]:
    return {"message_timestamp_before_max_ms": limit_ms}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_concatenated_batches_are_split(count: int) -> None:
    pieces = [batch(*[b"v"] * (n + 1)) for n in range(count)]
    for data in (b"".join(pieces), bytearray().join(pieces), memoryview(b"".join(pieces))):
        found = split_batches(data)
        assert [bytes(view) for _, view in found] == pieces
        assert [header.record_count for header, _ in found] == list(range(1, count + 1))


PIECES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "less than a header": lambda: WHOLE[:60],
    "a header only": lambda: WHOLE[:61],
    "cut": lambda: WHOLE[:-1],
    "one byte more": lambda: WHOLE + b"\0",
    "zeros behind": lambda: WHOLE + bytes(100),
    "the second is cut": lambda: WHOLE + WHOLE[:-1],
    "a length too small": lambda: changed(8, ">i", 48),
    "a negative length": lambda: changed(8, ">i", -12),
    "a huge length": lambda: changed(8, ">i", 2**31 - 1),
}


@pytest.mark.parametrize("what", PIECES)
def test_incomplete_batches_are_rejected(what: str) -> None:
    with pytest.raises(CorruptRecordError):
        split_batches(PIECES[what]())


@pytest.mark.parametrize("why", BAD)
def test_an_append_with_one_bad_batch_writes_nothing(why: str) -> None:
    files = SimulatedFiles()
    _, log = new_log(files, FakeClock(START_MS))
    log.append(WHOLE)
    log.flush()
    before, end = files.contents(), log.log_end_offset
    with pytest.raises(StrandlogError):
        log.append(WHOLE + BAD[why][0])
    assert (files.contents(), log.log_end_offset) == (before, end)
    assert [record.offset for record in all_records(log)] == [0, 1, 2]


def test_several_batches_with_a_producer_id_in_one_append_are_rejected() -> None:
    _, log = new_log(SimulatedFiles())
    with pytest.raises(InvalidRecordError, match="one at a time"):
        log.append(batch(b"v", producer=(7, 0, 0)) + batch(b"v", producer=(7, 0, 1)))
    assert log.log_end_offset == 0
