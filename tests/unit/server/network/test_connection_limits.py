"""How many connections an address may have, and how fast connections are accepted."""

from __future__ import annotations

import pytest

from strandlog.config.tables.tls import ConnectionSettings
from strandlog.server.network.connection_limits import ConnectionLimits, plain_host


def test_an_address_has_at_most_its_limit_of_connections() -> None:
    limits = ConnectionLimits(ConnectionSettings(max_connections_per_ip=2))
    assert [limits.open("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert limits.open("10.0.0.2")
    limits.close("10.0.0.1")
    assert [limits.open("10.0.0.1") for _ in range(2)] == [True, False]


def test_an_override_replaces_the_limit_of_one_address() -> None:
    settings = ConnectionSettings(
        max_connections_per_ip=1, max_connections_per_ip_overrides="10.0.0.1:2,10.0.0.2:0"
    )
    limits = ConnectionLimits(settings)
    assert [limits.open("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert not limits.open("10.0.0.2")
    assert [limits.open("10.0.0.3") for _ in range(2)] == [True, False]


def test_an_impossible_host_name_in_an_override_has_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = ConnectionSettings(max_connections_per_ip_overrides=f"{'a' * 64}:0")
    assert ConnectionLimits(settings).open("127.0.0.1")
    assert "has no effect" in caplog.text


def test_a_host_name_in_an_override_is_resolved() -> None:
    settings = ConnectionSettings(max_connections_per_ip_overrides="localhost:0")
    assert not ConnectionLimits(settings).open("127.0.0.1")


def test_the_rate_lets_one_second_of_connections_through_and_then_waits() -> None:
    now = 100.0
    limits = ConnectionLimits(ConnectionSettings(max_connection_creation_rate=4), lambda: now)
    for _ in range(4):
        assert limits.wait_seconds() == 0
        limits.accepted()
    assert limits.wait_seconds() == 0.25
    now += 0.25
    assert limits.wait_seconds() == 0
    limits.accepted()
    assert limits.wait_seconds() == 0.25
    now += 1000  # a quiet time is not saved up
    for _ in range(4):
        assert limits.wait_seconds() == 0
        limits.accepted()
    assert limits.wait_seconds() > 0


def test_a_mapped_ipv4_address_is_the_ipv4_address() -> None:
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("fe80::1%eth0") == "fe80::1"
