"""Places in a topic, as people name them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
import typer

from strandlog.cli.formats.offset_argument import Place, parse_place


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("beginning", Place("beginning")),
        ("earliest", Place("beginning")),
        ("end", Place("end")),
        ("latest", Place("end")),
        ("0", Place("offset", 0)),
        ("42", Place("offset", 42)),
        ("-10", Place("last", 10)),
        ("@1700000000000", Place("time", 1_700_000_000_000)),
        ("@2023-11-14T22:13:20Z", Place("time", 1_700_000_000_000)),
        ("@2023-11-14T22:13:20.007+00:00", Place("time", 1_700_000_000_007)),
        ("@2023-11-15T00:13:20+02:00", Place("time", 1_700_000_000_000)),
        ("@1969-12-31T23:59:59Z", Place("time", -1000)),
    ],
)
def test_places(words: str, place: Place) -> None:
    assert parse_place(words) == place


def test_times_without_a_zone_are_local_and_may_be_relative() -> None:
    local = datetime(2023, 11, 14, 12, 0).astimezone()
    assert parse_place("@2023-11-14T12:00") == Place("time", int(local.timestamp() * 1000))
    ago = parse_place("@-15m").value
    assert abs(time.time() * 1000 - 900_000 - ago) < 60_000


@pytest.mark.parametrize(
    "words", ["", "@", "@yesterday", "now", "1.5", "--5", "@-", "@-5 parsecs", "@2023-13-01", "٣x"]
)
def test_other_words_are_usage_errors(words: str) -> None:
    with pytest.raises(typer.BadParameter, match="is none of"):
        parse_place(words)
