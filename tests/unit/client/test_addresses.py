"""Addresses of brokers, as users write them."""

from __future__ import annotations

import pytest

import strandlog
from strandlog.client.addresses import parse_bootstrap
from strandlog.errors import InvalidSettingError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("host.example", [("host.example", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[fe80::1%eth0]", [("fe80::1%eth0", 9092)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
    ],
)
def test_addresses_are_read(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(parse_bootstrap(text)) == expected


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:70000", "::1:9092", "a b:1", "[::1"])
def test_invalid_addresses_raise(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="HOST:PORT"):
        parse_bootstrap(text)


@pytest.mark.parametrize(
    "bootstrap", ["http://127.0.0.1:1", "127.0.0.1:abc", "127.0.0.1:99999", "", None, 9092, ["a:1"]]
)
def test_an_address_that_is_none_is_not_reported_as_unreachable(bootstrap: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"bootstrap\.servers: expected .*HOST:PORT"):
        strandlog.connect(bootstrap)
