"""Records of `__strandlog_security`: what is written can be read, and damage raises `DataError`."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError
from strandlog.protocol.security_records import (
    AclRecord,
    CredentialKey,
    CredentialValue,
    QuotaRecord,
    decode_credential,
    decode_key,
    decode_quota,
    encode_acl_key,
    encode_credential,
    encode_credential_key,
    encode_quota,
    encode_quota_key,
)

BYTE = st.integers(-128, 127)
TEXT = st.text(max_size=20)
ACLS = st.builds(AclRecord, BYTE, TEXT, BYTE, TEXT, TEXT, BYTE, BYTE)
CREDENTIALS = st.builds(CredentialKey, TEXT, BYTE)
QUOTAS = st.builds(
    QuotaRecord, st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3).map(tuple), TEXT
)


@given(ACLS, CREDENTIALS, QUOTAS)
def test_keys_are_read_as_they_were_written(
    acl: AclRecord, credential: CredentialKey, quota: QuotaRecord
) -> None:
    assert decode_key(encode_acl_key(acl)) == acl
    assert decode_key(encode_credential_key(credential)) == credential
    assert decode_key(encode_quota_key(quota)) == quota


@given(st.floats(allow_nan=False), st.binary(max_size=70), st.integers(0, 2**31 - 1))
def test_values_are_read_as_they_were_written(limit: float, key: bytes, iterations: int) -> None:
    assert decode_quota(encode_quota(limit)) == limit
    value = CredentialValue(key, key, key, iterations)
    assert decode_credential(encode_credential(value)) == value


@given(QUOTAS, ACLS, st.integers(0, 100))
def test_a_key_that_is_cut_short_raises_a_data_error(
    quota: QuotaRecord, acl: AclRecord, size: int
) -> None:
    for data in (encode_quota_key(quota), encode_acl_key(acl)):
        if size < len(data):
            with pytest.raises(DataError):
                decode_key(data[:size])


@given(st.sampled_from([3, 10, 19]), st.integers(-(2**15), -1))
def test_an_acl_with_a_negative_size_raises_a_data_error(position: int, size: int) -> None:
    data = bytearray(encode_acl_key(AclRecord(2, "topi", 3, "User:ab", "*", 3, 3)))
    data[position : position + 2] = size.to_bytes(2, signed=True)
    with pytest.raises(DataError):
        decode_key(bytes(data))


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_raise_a_data_error(data: bytes) -> None:
    for decode in (decode_key, decode_quota, decode_credential):
        with contextlib.suppress(DataError):
            decode(data)


def test_unknown_kinds_and_versions_are_those_of_a_newer_release() -> None:
    with pytest.raises(DataError, match="unknown kind 99"):
        decode_key((99).to_bytes(2))
    with pytest.raises(DataError, match="unknown version 1"):
        decode_quota((1).to_bytes(2) + bytes(8))
