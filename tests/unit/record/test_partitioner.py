"""Keys land where any Kafka client would put them, and the other two hashes where they should."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from strandlog.errors import InvalidSettingError
from strandlog.record.partitioner import (
    REMEMBERED_KEY_BYTES,
    fnv1a,
    key_hash,
    md5_hash,
    murmur2,
)

# From Kafka's own UtilsTest.testMurmur2; Java's ints have a sign.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "value"), JAVA_VECTORS.items())
def test_murmur2_as_java(key: bytes, value: int) -> None:
    assert murmur2(key) == value & 0x7FFFFFFF


@given(st.binary(max_size=64))
def test_murmur2_as_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0x7FFFFFFF


@given(st.binary(max_size=64))
def test_md5_is_the_whole_digest_as_a_number(key: bytes) -> None:
    assert md5_hash(key) == int(hashlib.md5(key, usedforsecurity=False).hexdigest(), 16)


@pytest.mark.parametrize(
    ("key", "value"),
    [  # from the FNV reference vectors
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"b", 0xAF63DF4C8601F1A5),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_fnv1a_as_its_reference(key: bytes, value: int) -> None:
    assert fnv1a(key) == value


@pytest.mark.parametrize("name", ["murmur2", "md5", "fnv1a"])
def test_the_cache_of_key_hashes_does_not_change_the_result(name: str) -> None:
    chosen = key_hash(name)
    for key in (b"", b"k", b"k", bytes(REMEMBERED_KEY_BYTES), bytes(REMEMBERED_KEY_BYTES + 1)):
        assert chosen.up_to(len(key))(key) == chosen.plain(key)


def test_long_keys_are_not_remembered() -> None:
    """Otherwise clients could fill the memory with 65,536 long keys."""
    chosen = key_hash("murmur2")
    assert chosen.up_to(REMEMBERED_KEY_BYTES) is chosen.remembering
    assert chosen.up_to(REMEMBERED_KEY_BYTES + 1) is chosen.plain


def test_an_unknown_partitioner_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="one of murmur2, md5, fnv1a"):
        key_hash("crc32")
