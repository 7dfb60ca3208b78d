"""Records as JSON lines: any record round-trips."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.cli.formats.record_json import parse_line, record_line
from strandlog.errors import DataError
from strandlog.model import Record

BYTES = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)


@given(BYTES, BYTES, HEADERS, st.integers(0, 9), st.integers(-1, 2**40))
def test_any_record_round_trips(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int,
    timestamp: int,
) -> None:
    line = record_line(Record("t", partition, 7, timestamp, key, value, headers))
    assert line.count(b"\n") == 1
    assert parse_line(line) == {
        "key": key,
        "value": value,
        "headers": headers,
        "partition": partition,
        "timestamp": timestamp,
    }


def test_the_order_of_fields_is_fixed() -> None:
    document = json.loads(record_line(Record("t", 0, 7, 5, None, b"v")))
    assert list(document) == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": 5}', b"5"),
        (b'{"value": true}', b"true"),
        (b'{"value": {"b": 1, "a": "\xc3\xa9"}}', '{"b": 1, "a": "é"}'.encode()),
        (b'{"value": ""}', b""),
        (b'{"value_base64": ""}', b""),
        (b'{"value": null, "value_base64": "/w=="}', b"\xff"),
    ],
)
def test_values_other_than_strings_are_stored_as_json_text(line: bytes, value: bytes) -> None:
    assert parse_line(line)["value"] == value


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"5",
        b'{"value": "v", "timestamp": true}',
        b'{"value": "v", "timestamp": 1.5}',
        b'{"value": "v", "headers": ["h"]}',
        b'{"value": "v", "headers": [["h", "v", "w"]]}',
        b'{"value": "v", "headers": [[1, "v"]]}',
        b'{"value": "v", "headers": {"h": {"base64": 5}}}',
        b'{"value_base64": 5}',
        b'{"value": "v", "colour": "blue"}',
    ],
)
def test_an_invalid_line_raises_data_error(line: bytes) -> None:
    with pytest.raises(DataError):
        parse_line(line)
