"""Checks of a topic with `record.validation=records`, and those of every topic."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import pytest
from tests.support.log_builders import START_MS, TP, batch, small_settings
from tests.support.undecodable_batches import BAD_COUNTS, BAD_RECORDS, MOST, POISON, raw_batch

from strandlog.config.tables.topic import LogSettings, log_settings
from strandlog.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    StrandlogError,
    TooManyRecordsError,
)
from strandlog.model import Record
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import read_header
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec, compress
from strandlog.storage.partition.append_checks import check_batch
from strandlog.storage.partition.record_checks import QUICK_RECORDS, check_records, is_quick

INVALID_RECORD, MESSAGE_TOO_LARGE = 87, 10
MIB = 1024 * 1024


def check(data: bytes, settings: LogSettings, limit_bytes: int = MIB) -> None:
    header, view = read_header(data), memoryview(data)
    check_batch(header, view, settings, START_MS, is_control=False)
    if settings.checks_records:
        check_records(TP, header, view, settings, START_MS, limit_bytes)


@pytest.mark.parametrize("why", BAD_COUNTS)
def test_every_topic_rejects_an_impossible_record_count(why: str) -> None:
    with pytest.raises(StrandlogError) as caught:
        check(BAD_COUNTS[why], small_settings())
    assert caught.value.kafka_code in (INVALID_RECORD, MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("why", BAD_RECORDS)
def test_a_topic_that_validates_records_rejects_undecodable_batches(why: str) -> None:
    """Not as a damaged message: a producer would send the same bytes again and again."""
    with pytest.raises(InvalidRecordError, match="cannot be decoded") as caught:
        check(BAD_RECORDS[why], small_settings(record_validation="records"))
    assert caught.value.kafka_code == INVALID_RECORD
    with pytest.raises(InvalidRecordError):
        check(BAD_RECORDS[why], small_settings(cleanup_policy=("compact",)))


@pytest.mark.parametrize("codec", Codec)
def test_a_topic_that_validates_records_takes_good_ones(codec: Codec) -> None:
    values = [b"v" * (number % 90) for number in range(3 * QUICK_RECORDS)]
    check(batch(*values, codec=codec), small_settings(record_validation="records"))
    check(batch(b"v", codec=codec), small_settings(record_validation="records"))


def test_records_that_fail_the_check_cannot_be_decoded() -> None:
    for why, data in BAD_RECORDS.items():
        with pytest.raises(StrandlogError):
            BatchView(data).records(*TP)
            raise AssertionError(why)


def test_records_are_decoded_only_if_a_setting_of_the_topic_requires_it() -> None:
    assert not log_settings().checks_records
    assert log_settings({"record.validation": "records"}).checks_records
    assert log_settings({"cleanup.policy": ("compact",)}).checks_records
    old = dataclasses.replace(log_settings(), message_timestamp_before_max_ms=1000)
    assert old.checks_records
    assert not dataclasses.replace(old, message_timestamp_type="LogAppendTime").checks_records


def test_a_batch_of_too_many_records_is_refused_by_its_header() -> None:
    data = batch(*[b""] * 11, codec=Codec.ZSTD)
    header, view = read_header(data), memoryview(data)
    check_batch(header, view, small_settings(), START_MS, 11, is_control=False)
    with pytest.raises(TooManyRecordsError, match=r"11 records.*limit of 10.*batch\.max\.records"):
        check_batch(header, view, small_settings(), START_MS, 10, is_control=False)


def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    data = batch(bytes(MIB), keys=[b"k"], codec=Codec.ZSTD)
    with pytest.raises(DecompressedTooLargeError):
        check(data, small_settings(record_validation="records"), MIB)
    check(data, small_settings(record_validation="records"), 2 * MIB)


def test_the_timestamp_check_unpacks_no_more_than_decompressed_max_bytes() -> None:
    data = batch(bytes(MIB), codec=Codec.ZSTD)
    settings = small_settings(message_timestamp_before_max_ms=1000)
    with pytest.raises(DecompressedTooLargeError):
        check(data, settings, MIB)
    check(data, settings, 2 * MIB)


def test_the_error_lists_the_indexes_of_records_without_a_key() -> None:
    keys: list[bytes | None] = [b"k"] * 9000
    keys[5000] = keys[5001] = None
    with pytest.raises(InvalidRecordError, match="record 5000") as caught:
        check(batch(*[b"v"] * 9000, keys=keys), small_settings(cleanup_policy=("compact",)))
    assert caught.value.records == [5000, 5001]


def test_an_old_record_at_the_end_of_a_batch_is_found() -> None:
    times = [START_MS] * 9000
    times[8999] = START_MS - 201
    settings = small_settings(message_timestamp_before_max_ms=200)
    with pytest.raises(InvalidTimestampError, match="201 ms behind"):
        check(batch(*[b"v"] * 9000, timestamps=times), settings)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("count", [1, 100])
def test_the_check_of_a_large_batch_copies_no_values(codec: Codec, count: int) -> None:
    """Copying 100 MB stopped all threads for a tenth of a second, in whichever thread it ran."""
    values = [random.Random(1).randbytes(4 * MIB // count)] * count
    headers = [(("name", values[0]),)] * count
    data = bytes(build_batch(START_MS, values, values, headers, codec=codec))
    settings = small_settings(
        cleanup_policy=("compact",), message_timestamp_before_max_ms=1000, max_message_bytes=1 << 30
    )
    unpacked_bytes = 0 if codec is Codec.NONE else 12 * MIB
    tracemalloc.start()
    try:
        check(data, settings, 1 << 30)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < unpacked_bytes + MIB


def test_the_schema_ids_of_a_large_batch_are_checked() -> None:
    values: list[bytes | None] = [b"\0\0\0\0\7" + bytes(MIB), None]
    seen: list[object] = []

    def also(records: list[Record], number: int) -> None:
        for record in records:
            data = record.value
            seen.append(None if data is None else (number, data[0], int.from_bytes(data[1:5])))

    data = batch(*values, keys=[b"a", b"b"])
    settings = small_settings(max_message_bytes=1 << 30)
    check_records(TP, read_header(data), memoryview(data), settings, START_MS, 1 << 30, also)
    assert seen == [(0, 0, 7), None]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (batch(*[b"v"] * QUICK_RECORDS), True),
        (batch(*[b"v"] * (QUICK_RECORDS + 1)), False),
        (batch(b"small", codec=Codec.LZ4), True),
        (batch(bytes(MIB), codec=Codec.ZSTD), False),
        (batch(bytes(MIB), codec=Codec.GZIP), False),
        (raw_batch(compress(Codec.ZSTD, b"x"), MOST, Codec.ZSTD), False),
        (POISON["garbage inside gzip"], True),
    ],
)
def test_the_header_tells_whether_a_check_is_quick(data: bytes, expected: bool) -> None:
    assert is_quick(read_header(data), memoryview(data)) is expected
