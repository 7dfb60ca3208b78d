"""Where reports go: given, told by the broker, or nowhere."""

from __future__ import annotations

import socket

import pytest
from tests.support.http_client import http_address
from tests.support.server import RunningBroker

from strandlog.errors import InvalidSettingError, UnreachableError
from strandlog.spark.monitoring.report_address import address_finder, parse_report


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://127.0.0.1:9095", "http://127.0.0.1:9095"),
        (" http://[::1]:9095/ ", "http://[::1]:9095"),
        ("https://logs.lan/strandlog/", "https://logs.lan:443/strandlog"),
        ("http://logs.lan", "http://logs.lan:80"),
        ("off", "None"),
        ("OFF", "None"),
    ],
)
def test_what_an_address_comes_to(text: str, told: str) -> None:
    assert str(parse_report(text)) == told


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
def test_a_wrong_address_is_told_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="http://HOST:PORT, https://HOST:PORT, or off"):
        parse_report(text)


def test_nowhere_is_not_looked_for() -> None:
    assert address_finder("off", "127.0.0.1:9092", {}) is None
    assert address_finder(None, None, {}) is None  # a folder has no door


def test_what_was_given_is_not_asked_for() -> None:
    find = address_finder("http://logs.lan:9095", "nobody.example:1", {})
    assert find is not None
    assert str(find()) == "http://logs.lan:9095"


def test_a_broker_says_where_its_door_is(broker: RunningBroker) -> None:
    find = address_finder(None, broker.address, {})
    assert find is not None
    assert str(find()) == http_address(broker)


def test_a_broker_that_is_not_there_may_be_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    find = address_finder(None, f"127.0.0.1:{port}", {})
    assert find is not None
    with pytest.raises(UnreachableError):
        find()
