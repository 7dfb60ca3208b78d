"""`__consumer_offsets`, byte for byte.

The golden bytes were made by kafka-python's schema codec from the schema files of Apache Kafka,
not by our code.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError
from strandlog.model import OffsetAndMetadata
from strandlog.protocol.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)

OFFSET = OffsetAndMetadata(42, 3, "mé", 1_700_000_000_000)
OFFSETS = {
    0: "0000 000000000000002a 00036dc3a9 0000018bcfe56800",
    1: "0001 000000000000002a 00036dc3a9 0000018bcfe56800 0000018bcfe56be8",
    2: "0002 000000000000002a 00036dc3a9 0000018bcfe56800",
    3: "0003 000000000000002a 00000003 00036dc3a9 0000018bcfe56800",
    4: "0004 000000000000002a 00000003 046dc3a9 0000018bcfe56800 00",
}
GROUP = GroupValue(
    "consumer",
    7,
    "range",
    "c-1",
    1_700_000_000_000,
    (MemberValue("c-1", "i", "c", "/h", 60_000, 10_000, b"\x01\x02", b"\x03"),),
)
GROUPS = {
    0: "0000 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 00000001"
    "0003632d31 000163 00022f68 00002710 000000020102 0000000103",
    1: "0001 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 00000001"
    "0003632d31 000163 00022f68 0000ea60 00002710 000000020102 0000000103",
    2: "0002 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 0000018bcfe56800 00000001"
    "0003632d31 000163 00022f68 0000ea60 00002710 000000020102 0000000103",
    3: "0003 0008636f6e73756d6572 00000007 000572616e6765 0003632d31 0000018bcfe56800 00000001"
    "0003632d31 000169 000163 00022f68 0000ea60 00002710 000000020102 0000000103",
    4: "0004 09636f6e73756d6572 00000007 0672616e6765 04632d31 0000018bcfe56800 02"
    "04632d31 0269 0263 032f68 0000ea60 00002710 030102 0203 00 00",
}
EMPTY_GROUP = "0003 0008636f6e73756d6572 00000008 ffff ffff 0000018bcfe56800 00000000"


def test_keys() -> None:
    offset_key = bytes.fromhex("0001 0003677c31 00066f7264657273 00000003")
    group_key = bytes.fromhex("0002 0003677c31")
    assert encode_key(OffsetKey("g|1", "orders", 3)) == offset_key
    assert decode_key(offset_key) == OffsetKey("g|1", "orders", 3)
    assert decode_key(b"\x00\x00" + offset_key[2:]) == OffsetKey("g|1", "orders", 3)
    assert encode_key(GroupKey("g|1")) == group_key
    assert decode_key(group_key) == GroupKey("g|1")


@pytest.mark.parametrize("version", ["0003", "0010", "7fff", "ffff"])
def test_a_key_of_an_unknown_version_is_ignored(version: str) -> None:
    assert decode_key(bytes.fromhex(version) + b"anything") is None


@pytest.mark.parametrize("version", OFFSETS)
def test_offsets_of_every_version_are_read(version: int) -> None:
    expected = OFFSET if version >= 3 else OFFSET._replace(leader_epoch=-1)
    assert decode_offset(bytes.fromhex(OFFSETS[version])) == expected


@pytest.mark.parametrize("version", GROUPS)
def test_groups_of_every_version_are_read(version: int) -> None:
    member = GROUP.members[0]
    if version < 3:
        member = member._replace(group_instance_id=None)
    if version < 1:
        member = member._replace(rebalance_timeout_ms=member.session_timeout_ms)
    expected = GROUP._replace(members=(member,))
    if version < 2:
        expected = expected._replace(state_timestamp_ms=-1)
    assert decode_group(bytes.fromhex(GROUPS[version])) == expected


def test_version_3_is_written() -> None:
    assert encode_offset(OFFSET) == bytes.fromhex(OFFSETS[3])
    assert encode_group(GROUP) == bytes.fromhex(GROUPS[3])
    empty = GroupValue("consumer", 8, None, None, 1_700_000_000_000, ())
    assert encode_group(empty) == bytes.fromhex(EMPTY_GROUP)
    assert decode_group(bytes.fromhex(EMPTY_GROUP)) == empty


@pytest.mark.parametrize("version", ["0005", "ffff"])
def test_a_value_of_an_unknown_version_is_rejected(version: str) -> None:
    for decode, golden in ((decode_offset, OFFSETS[3]), (decode_group, GROUPS[3])):
        with pytest.raises(DataError, match="version"):
            decode(bytes.fromhex(version) + bytes.fromhex(golden)[2:])


def test_values_cut_anywhere_are_rejected() -> None:
    for version in (0, 3):
        for decode, golden in ((decode_offset, OFFSETS), (decode_group, GROUPS)):
            data = bytes.fromhex(golden[version])
            for end in range(len(data)):
                with pytest.raises(DataError):
                    decode(data[:end])


@given(st.integers(-1, 5), st.binary(max_size=80))
def test_random_bytes_are_decoded_or_rejected(version: int, rest: bytes) -> None:
    data = version.to_bytes(2, "big", signed=True) + rest
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except DataError:
            continue


@given(
    st.builds(
        OffsetKey,
        st.text("|/:\x00é😀a", max_size=9),
        st.text("ab.", max_size=9),
        st.integers(0, 2**31 - 1),
    )
)
def test_every_key_round_trips(key: OffsetKey) -> None:
    assert decode_key(encode_key(key)) == key
