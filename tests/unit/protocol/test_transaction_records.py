"""`__transaction_state`, byte for byte.

The golden bytes were put together by hand from the layout, field by field, not by our code.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.transaction_records import (
    NOT_STARTED,
    TransactionState,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

NOW_MS = 1_700_000_000_000
PARTITIONS = frozenset(
    [TopicPartition("orders", 2), TopicPartition("a", 0), TopicPartition("orders", 1)]
)
ONGOING = TransactionValue(
    4711, 3, 60_000, TransactionState.ONGOING, PARTITIONS, NOW_MS + 5, NOW_MS
)
# version · producer id · epoch · time-out · state
ONGOING_HEAD = "0000 0000000000001267 0003 0000ea60 01"
# two topics by name, each with its partitions in order
ONGOING_TOPICS = "00000002 000161 00000001 00000000 00066f7264657273 00000002 00000001 00000002"
# last update · start
ONGOING_TIMES = "0000018bcfe56805 0000018bcfe56800"

EMPTY = TransactionValue(0, 0, 1, TransactionState.EMPTY, frozenset(), NOW_MS, NOT_STARTED)
EMPTY_BYTES = "0000 0000000000000000 0000 00000001 00 00000000 0000018bcfe56800 ffffffffffffffff"

# Compact lengths are one more than they are; each topic, and the value, ends with tagged fields.
FLEXIBLE_TOPICS = "03 0261 02 00000000 00 076f7264657273 03 00000001 00000002 00"
# tag 0, the producer id before; tag 1, the one that follows
FLEXIBLE_TAGS = "02 00 08 0000000000001266 01 08 ffffffffffffffff"


def test_keys() -> None:
    golden = bytes.fromhex("0000 0005 74782dc3a9")
    assert encode_key("tx-é") == golden
    assert decode_key(golden) == "tx-é"
    assert decode_key(bytes.fromhex("0001 0005 74782dc3a9")) is None  # some other kind of record


def test_values_have_exactly_these_bytes() -> None:
    golden = bytes.fromhex(ONGOING_HEAD + ONGOING_TOPICS + ONGOING_TIMES)
    assert encode_value(ONGOING) == golden
    assert decode_value(golden) == ONGOING
    assert encode_value(EMPTY) == bytes.fromhex(EMPTY_BYTES)
    assert decode_value(bytes.fromhex(EMPTY_BYTES)) == EMPTY


def test_null_partitions_are_decoded_as_none() -> None:
    null = EMPTY_BYTES.replace("00 00000000 0000018b", "00 ffffffff 0000018b")
    assert null != EMPTY_BYTES
    assert decode_value(bytes.fromhex(null)) == EMPTY


@pytest.mark.parametrize("tags", ["00", FLEXIBLE_TAGS])
def test_the_flexible_version_can_be_read(tags: str) -> None:
    head = ONGOING_HEAD.replace("0000", "0001", 1)
    golden = bytes.fromhex(head + FLEXIBLE_TOPICS + ONGOING_TIMES + tags)
    assert decode_value(golden) == ONGOING
    null = bytes.fromhex("0001 0000000000000000 0000 00000001 00 00") + bytes.fromhex(
        "0000018bcfe56800 ffffffffffffffff" + tags
    )
    assert decode_value(null) == EMPTY


@pytest.mark.parametrize("version", [0, 1])
def test_a_truncated_value_is_rejected(version: int) -> None:
    whole = {
        0: bytes.fromhex(ONGOING_HEAD + ONGOING_TOPICS + ONGOING_TIMES),
        1: bytes.fromhex(
            ONGOING_HEAD.replace("0000", "0001", 1)
            + FLEXIBLE_TOPICS
            + ONGOING_TIMES
            + FLEXIBLE_TAGS
        ),
    }[version]
    assert decode_value(whole) == ONGOING
    for size in range(len(whole)):
        with pytest.raises(DataError):
            decode_value(whole[:size])


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "ffff" + EMPTY_BYTES[4:],  # a version that never was
        "0002" + EMPTY_BYTES[4:],  # one that is not yet
        EMPTY_BYTES.replace("00000001 00 ", "00000001 08 "),  # a state that does not exist
        EMPTY_BYTES.replace("00000001 00 ", "00000001 ff "),
        EMPTY_BYTES.replace("00 00000000 0", "00 7fffffff 0"),  # more topics than bytes
        ONGOING_HEAD + "00000001 ffff 00000000" + ONGOING_TIMES,  # a topic without a name
        ONGOING_HEAD + "00000001 0002 c328 00000000" + ONGOING_TIMES,  # a name that is no text
    ],
)
def test_a_garbage_value_is_rejected(garbage: str) -> None:
    with pytest.raises(DataError):
        decode_value(bytes.fromhex(garbage))


@pytest.mark.parametrize("garbage", ["", "00", "0000", "0000 ffff", "0000 0005 61", "0000 0001 ff"])
def test_a_garbage_key_is_rejected(garbage: str) -> None:
    with pytest.raises(DataError):
        decode_key(bytes.fromhex(garbage))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.builds(
    TransactionValue,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from(TransactionState),
    st.frozensets(st.builds(TopicPartition, TEXTS, st.integers(0, 2**31 - 1)), max_size=8),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
)


@given(VALUES)
def test_values_round_trip(value: TransactionValue) -> None:
    assert decode_value(encode_value(value)) == value


@given(TEXTS)
def test_keys_round_trip(name: str) -> None:
    assert decode_key(encode_key(name)) == name


@given(st.binary(max_size=80), st.sampled_from([b"", b"\0\0", b"\0\1"]))
def test_random_bytes_are_decoded_or_rejected(noise: bytes, version: bytes) -> None:
    try:
        found = decode_value(version + noise)
    except DataError:
        return
    assert encode_value(found)  # whatever is taken in can be kept


@pytest.mark.parametrize("change", [{"epoch": 2**15}, {"timeout_ms": 2**31}])
def test_numbers_out_of_range_are_rejected(change: dict[str, int]) -> None:
    with pytest.raises(DataError):
        encode_value(ONGOING._replace(**change))  # type: ignore[arg-type]
