"""Golden bytes of the records of `_schemas`, and what is not one."""

from __future__ import annotations

import pytest

from strandlog.errors import DataError
from strandlog.protocol.schema_records import (
    RecordKey,
    StoredReference,
    StoredSchema,
    decode_record_key,
    decode_schema,
)

KEYS = [
    (
        RecordKey("SCHEMA", "s", 1),
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
    ),
    (RecordKey("CONFIG", "s"), b'{"keytype":"CONFIG","subject":"s","magic":0}'),
    (RecordKey("CONFIG"), b'{"keytype":"CONFIG","subject":null,"magic":0}'),
    (RecordKey("MODE", "s"), b'{"keytype":"MODE","subject":"s","magic":0}'),
    (RecordKey("DELETE_SUBJECT", "s"), b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}'),
    (RecordKey("CLEAR_SUBJECT", "s"), b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}'),
    (RecordKey("NOOP"), b'{"keytype":"NOOP","magic":0}'),
    (RecordKey("MODE", "ü"), '{"keytype":"MODE","subject":"ü","magic":0}'.encode()),
]


@pytest.mark.parametrize(("key", "data"), KEYS)
def test_the_bytes_of_a_key(key: RecordKey, data: bytes) -> None:
    assert key.encode() == data
    assert decode_record_key(data) == key


def test_other_registries_write_keys_differently() -> None:
    assert decode_record_key(b'{"keytype":"CONFIG","magic":0}') == RecordKey("CONFIG")
    old = b'{"subject":"s","version":2,"magic":0,"keytype":"SCHEMA"}'
    assert decode_record_key(old) == RecordKey("SCHEMA", "s", 2)
    assert decode_record_key(b'{"keytype":"CONTEXT","tenant":"t","context":"c"}').kind == "CONTEXT"


def test_the_bytes_of_a_schema() -> None:
    avro = StoredSchema("s", 1, 7, "AVRO", '"int"')
    expected = b'{"subject":"s","version":1,"id":7,"schema":"\\"int\\"","deleted":false}'
    assert avro.encode() == expected
    assert decode_schema(expected) == avro
    other = StoredSchema(
        "s", 2, 8, "JSON", "{}", (StoredReference("n", "o", 3),), {"a": 1}, {"b": 2}, True
    )
    assert decode_schema(other.encode()) == other
    assert b'"schemaType":"JSON","references":[{"name":"n","subject":"o","version":3}]' in (
        other.encode()
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"keytype":"SOMETHING"}',
        b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}',
        b'{"keytype":"SCHEMA","subject":"s","version":"1","magic":1}',
        b'{"keytype":"SCHEMA","subject":null,"version":1,"magic":1}',
        b'{"keytype":"DELETE_SUBJECT","magic":0}',
        b'{"keytype":"CONFIG","subject":5,"magic":0}',
    ],
)
def test_a_damaged_key_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError):
        decode_record_key(data)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b'{"subject":"s","version":1,"id":1}',
        b'{"subject":"s","version":1,"id":-1,"schema":""}',
        b'{"subject":"s","version":1,"id":true,"schema":""}',
        b'{"subject":"s","version":1,"id":1,"schema":"","references":5}',
        b'{"subject":"s","version":1,"id":1,"schema":"","references":[5]}',
        b'{"subject":"s","version":1,"id":1,"schema":"","metadata":[]}',
    ],
)
def test_a_damaged_schema_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError):
        decode_schema(data)
