"""Which topics the options choose."""

from __future__ import annotations

import pytest

from strandlog.spark.options import STREAM, parse_options
from strandlog.spark.source.access import chosen


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("ders", ["my-orders", "orders", "orders-2"]),
        ("^orders", ["orders", "orders-2"]),
        ("^orders$", ["orders"]),
        ("s-|y", ["my-orders", "orders-2", "payments"]),
        ("__consumer", []),
    ],
)
def test_a_pattern_matches_anywhere_in_a_name_as_in_sparks_kafka_source(
    pattern: str, topics: list[str]
) -> None:
    existing = dict.fromkeys(
        ["orders", "orders-2", "my-orders", "payments", "__consumer_offsets"], 1
    )
    given = {"bootstrap.servers": "x:1", "subscribePattern": pattern}
    found = chosen(parse_options(STREAM, given), existing)
    assert [tp.topic for tp in found] == topics
