"""Where reports go: an address that is given, one that the broker announces, or nowhere."""

from __future__ import annotations

import socket

import pytest
from tests.support.http_client import http_address
from tests.support.server import RunningBroker

from strandlog.errors import InvalidSettingError, UnreachableError
from strandlog.spark.monitoring.report_address import address_finder, parse_report


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:9095", "http://127.0.0.1:9095"),
        (" http://[::1]:9095/ ", "http://[::1]:9095"),
        ("https://logs.lan/strandlog/", "https://logs.lan:443/strandlog"),
        ("http://logs.lan", "http://logs.lan:80"),
        ("off", "None"),
        ("OFF", "None"),
    ],
)
def test_an_address_is_parsed(text: str, expected: str) -> None:
    assert str(parse_report(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9095",
        "ftp://logs.lan",
        "http://",
        "http://logs.lan:http",
        "http://logs.lan:0",
        "http://logs.lan:70000",
        "http://[::1",
        "http://me:secret@logs.lan",
        "http://logs.lan/?a=b",
        "on",
        "",
    ],
)
def test_an_invalid_address_is_an_error_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="http://HOST:PORT, https://HOST:PORT or off"):
        parse_report(text)


def test_reports_that_are_off_need_no_address() -> None:
    assert address_finder("off", "127.0.0.1:9092", {}) is None
    assert address_finder(None, None, {}) is None  # a folder has no HTTP listener


def test_a_given_address_is_used_without_asking_the_broker() -> None:
    find = address_finder("http://logs.lan:9095", "unknown.example:1", {})
    assert find is not None
    assert str(find()) == "http://logs.lan:9095"


def test_a_broker_announces_its_http_listener(broker: RunningBroker) -> None:
    find = address_finder(None, broker.address, {})
    assert find is not None
    assert str(find()) == http_address(broker)


def test_an_unreachable_broker_is_asked_again_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    find = address_finder(None, f"127.0.0.1:{port}", {})
    assert find is not None
    with pytest.raises(UnreachableError):
        find()
