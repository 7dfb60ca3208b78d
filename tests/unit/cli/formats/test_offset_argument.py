"""Offset arguments: `beginning`, `42`, `-10`, `@TIME`."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
import typer

from strandlog.cli.formats.offset_argument import StartOffset, parse_offset


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", StartOffset("beginning")),
        ("earliest", StartOffset("beginning")),
        ("end", StartOffset("end")),
        ("latest", StartOffset("end")),
        ("0", StartOffset("offset", 0)),
        ("42", StartOffset("offset", 42)),
        ("-10", StartOffset("last", 10)),
        ("@1700000000000", StartOffset("time", 1_700_000_000_000)),
        ("@2023-11-14T22:13:20Z", StartOffset("time", 1_700_000_000_000)),
        ("@2023-11-14T22:13:20.007+00:00", StartOffset("time", 1_700_000_000_007)),
        ("@2023-11-15T00:13:20+02:00", StartOffset("time", 1_700_000_000_000)),
        ("@1969-12-31T23:59:59Z", StartOffset("time", -1000)),
    ],
)
def test_each_form_is_parsed(text: str, expected: StartOffset) -> None:
    assert parse_offset(text) == expected


def test_a_time_without_zone_is_local_and_may_be_relative() -> None:
    local = datetime(2023, 11, 14, 12, 0).astimezone()
    assert parse_offset("@2023-11-14T12:00") == StartOffset("time", int(local.timestamp() * 1000))
    ago = parse_offset("@-15m").value
    assert abs(time.time() * 1000 - 900_000 - ago) < 60_000


@pytest.mark.parametrize(
    "text", ["", "@", "@yesterday", "now", "1.5", "--5", "@-", "@-5 parsecs", "@2023-13-01", "٣x"]
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="invalid offset"):
        parse_offset(text)
