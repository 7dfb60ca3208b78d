"""Keys and values that name a schema: prefix, header, all schema languages, and damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import DataError, SchemaNotFoundError, UnreachableError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import (
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
    ResolvedReference,
)
from strandlog.formats.registry import decoder as registry_decoder
from strandlog.formats.registry.codec import codec_of
from strandlog.formats.registry.decoder import RETRY_MS, Decoded, ValueDecoder
from strandlog.formats.registry.framing import VALUE_HEADER, frame_of, prefixed, read_path
from strandlog.testing.clock import FakeClock

pytest.importorskip("google.protobuf", reason="protobuf is in the extra schemas")

GUID = "00112233-4455-6677-8899-aabbccddeeff"
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message A { int32 n = 1; repeated string tags = 2; message N { bool b = 1; } }
message B { google.protobuf.Timestamp at = 1; N2 inner = 2; message N2 { int64 big = 1; } }
"""
SCHEMAS = {
    1: RegisteredSchema(1, AVRO, '"string"'),
    2: RegisteredSchema(2, JSON, '{"type": "object", "required": ["a"]}'),
    3: RegisteredSchema(3, PROTOBUF, PROTO),
    4: RegisteredSchema(4, AVRO, "{"),
    5: RegisteredSchema(5, "THRIFT", "x"),
}


def by_id(schema_id: int) -> RegisteredSchema:
    if schema_id not in SCHEMAS:
        raise SchemaNotFoundError(40403, f"Schema {schema_id} not found")
    return SCHEMAS[schema_id]


def by_guid(guid: str) -> RegisteredSchema:
    if guid != GUID:
        raise SchemaNotFoundError(40403, f"Schema {guid} not found")
    return SCHEMAS[3]


DECODER = ValueDecoder(by_id, by_guid, FakeClock(), compile_proto)


def test_a_schema_that_every_record_names_is_requested_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was evicted as soon as enough other schemas had been requested after it."""
    requested: list[int] = []

    def counted(schema_id: int) -> RegisteredSchema:
        requested.append(schema_id)
        return RegisteredSchema(schema_id, AVRO, '"string"')

    monkeypatch.setattr(registry_decoder, "CACHED_CODECS", 4)
    decoder = ValueDecoder(counted, by_guid, FakeClock())
    for other in range(2, 20):
        for schema_id in (1, other):
            assert decoder.value(prefixed(schema_id, b"\x02a")) == Decoded(schema_id, "a")
    assert requested == list(range(1, 20))


@pytest.fixture
def decoder() -> ValueDecoder:
    return DECODER


def test_values_without_a_known_id_are_not_decoded(decoder: ValueDecoder) -> None:
    assert decoder.value(None) is None
    assert decoder.value(b"") is None
    assert decoder.value(b"plain text") is None
    assert decoder.value(b"\0\0\0\0") is None
    assert decoder.value(prefixed(99, b"x")) is None


def test_an_avro_value_is_decoded(decoder: ValueDecoder) -> None:
    assert decoder.value(prefixed(1, b"\x04hi")) == Decoded(1, "hi")
    assert decoder.key(prefixed(1, b"\x04hi")) == Decoded(1, "hi")


def test_a_json_value_is_decoded(decoder: ValueDecoder) -> None:
    assert decoder.value(prefixed(2, b'{"a": [1.50]}')) == Decoded(2, {"a": [1.5]})


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00" + b"\x08\x07", {"n": 7, "tags": []}),
        (b"\x02\x00" + b"\x08\x07", {"n": 7, "tags": []}),
        (b"\x04\x00\x00" + b"\x08\x01", {"b": True}),
        (b"\x02\x02" + b"\x0a\x02\x08\x01", {"at": "1970-01-01T00:00:01Z"}),
        (b"\x04\x02\x00" + b"\x08\xff\xff\xff\xff\x0f", {"big": "4294967295"}),
    ],
)
def test_a_protobuf_value_names_its_message(decoder: ValueDecoder, data: bytes, value: Any) -> None:
    assert decoder.value(prefixed(3, data)) == Decoded(3, value)


def test_a_header_names_the_schema_by_its_guid(decoder: ValueDecoder) -> None:
    guid = bytes.fromhex(GUID.replace("-", ""))
    headers = [("other", b"x"), (VALUE_HEADER, b"\x01" + guid + b"\x00")]
    assert decoder.value(b"\x08\x07", headers) == Decoded(3, {"n": 7, "tags": []})
    assert decoder.key(b"\x08\x07", headers) is None, "the header is for values"
    by_number = [(VALUE_HEADER, b"\x00\x00\x00\x00\x01")]
    assert decoder.value(b"\x04hi", by_number) == Decoded(1, "hi")
    unknown = [(VALUE_HEADER, b"\x01" + bytes(16))]
    found = decoder.value(b"x", unknown)
    assert found is not None and "not found" in str(found.error)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (prefixed(1, b""), "ends too early"),
        (prefixed(1, b"\x04hi!"), "1 bytes follow"),
        (prefixed(2, b"{"), "not JSON"),
        (prefixed(2, b"\xff"), "not JSON"),
        (prefixed(2, b"NaN"), "NaN is not JSON"),
        (prefixed(2, b"[1e999]"), "too large"),
        (prefixed(2, b"[" * 300 + b"]" * 300), "more than 200 levels"),
        (prefixed(2, b"[" * 100_000), "not JSON"),
        (prefixed(3, b""), "path is incomplete"),
        (prefixed(3, b"\x02\x08"), "no message 4"),
        (prefixed(3, b"\x01"), "-1 indexes"),
        (prefixed(3, b"\xff\xff\x7f"), "indexes"),
        (prefixed(3, b"\x00\x08"), "not a shop.A"),
        (prefixed(4, b"x"), "not an Avro schema"),
        (prefixed(5, b"x"), "THRIFT"),
    ],
)
def test_a_damaged_value_is_described(decoder: ValueDecoder, data: bytes, reason: str) -> None:
    found = decoder.value(data)
    assert found is not None
    assert found.value is None
    assert reason in str(found.error)


@given(st.sampled_from([1, 2, 3]), st.binary(max_size=30))
def test_no_value_raises_an_error(schema_id: int, data: bytes) -> None:
    found = DECODER.value(prefixed(schema_id, data))
    assert found is not None
    json.dumps(found.value, allow_nan=False)


def test_a_registry_that_fails_is_not_asked_for_every_record() -> None:
    asked: list[int] = []

    def unreachable(schema_id: int) -> RegisteredSchema:
        asked.append(schema_id)
        raise UnreachableError("cannot reach the registry")

    clock = FakeClock()
    decoder = ValueDecoder(unreachable, by_guid, clock)
    for number in range(10):
        found = decoder.value(prefixed(number, b"x"))
        assert found is not None and found.error == "cannot reach the registry"
    assert asked == [0]
    clock.advance(RETRY_MS)
    decoder.value(prefixed(7, b"x"))
    assert asked == [0, 7]


def test_json_is_validated_when_it_is_encoded() -> None:
    found = codec_of(SCHEMAS[2])
    assert found.encode({"a": "ä"}) == '{"a":"ä"}'.encode()
    with pytest.raises(DataError, match=r'"a" is a required property'):
        found.encode({})
    reference = ResolvedReference("item.json", '{"type": "integer"}')
    listed = '{"type": "array", "items": {"$ref": "item.json"}}'
    outer = codec_of(RegisteredSchema(9, JSON, listed, (reference,)))
    assert outer.encode([1]) == b"[1]"
    with pytest.raises(DataError, match="at /0: "):
        outer.encode(["x"])


def test_the_first_message_is_encoded() -> None:
    found = codec_of(SCHEMAS[3], compile_proto)
    assert found.encode({"n": 7}) == b"\x00\x08\x07"
    with pytest.raises(DataError, match="no field named"):
        found.encode({"m": 7})
    with pytest.raises(DataError):
        found.encode([1])


def test_a_message_of_another_file_is_known() -> None:
    reference = ResolvedReference("n.proto", 'syntax = "proto3"; message N { int32 n = 1; }')
    text = 'syntax = "proto3"; import "n.proto"; message M { N n = 1; }'
    found = codec_of(RegisteredSchema(9, PROTOBUF, text, (reference,)), compile_proto)
    assert found.decode(found.encode({"n": {"n": 3}}), None) == {"n": {"n": 3}}


@pytest.mark.parametrize(
    ("data", "path"),
    [(b"\x00", (0,)), (b"\x02\x02", (1,)), (b"\x04\x00\x00", (0, 0)), (b"\x02\x80\x01", (64,))],
)
def test_index_paths(data: bytes, path: tuple[int, ...]) -> None:
    assert read_path(data + b"rest") == (path, len(data))


def test_a_frame_takes_a_value_apart() -> None:
    frame = frame_of(b"\0\0\0\1\2payload")
    assert frame is not None
    assert (frame.schema_id, frame.payload, frame.path) == (258, b"payload", None)
    assert frame_of(b"\1\0\0\0\0payload") is None


def test_a_failed_lookup_does_not_put_its_id_on_other_values() -> None:
    def fail(_: int | str) -> RegisteredSchema:
        raise UnreachableError("no registry")

    decoder = ValueDecoder(fail, fail, FakeClock())
    for schema_id in (7, 8):
        assert decoder.value(prefixed(schema_id, b"x")) == Decoded(schema_id, None, "no registry")
