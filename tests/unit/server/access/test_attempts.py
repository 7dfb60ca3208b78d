"""How many logins of one address may fail."""

from __future__ import annotations

import pytest

from strandlog.config.limits.access import LOGINS_MAX_FAILING_ADDRESSES
from strandlog.server.access.attempts import Attempts, network_of
from strandlog.testing.clock import FakeClock

PER_MINUTE = 6


def exhausted(attempts: Attempts, address: str = "10.0.0.1") -> None:
    for _ in range(PER_MINUTE):
        assert attempts.count(address) == 0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def attempts(clock: FakeClock) -> Attempts:
    return Attempts(PER_MINUTE, clock)


def test_an_address_may_fail_a_few_times_and_must_then_wait(
    attempts: Attempts, clock: FakeClock
) -> None:
    exhausted(attempts)
    assert attempts.count("10.0.0.1") == 60 / PER_MINUTE
    clock.advance(60_000 // PER_MINUTE)
    assert attempts.count("10.0.0.1") == 0
    assert attempts.count("10.0.0.1") > 0


def test_waiting_attempts_do_not_extend_the_wait(attempts: Attempts, clock: FakeClock) -> None:
    exhausted(attempts)
    for _ in range(100):
        assert attempts.count("10.0.0.1") > 0
    clock.advance(60_000)
    exhausted(attempts)


def test_other_addresses_are_not_affected(attempts: Attempts) -> None:
    exhausted(attempts)
    assert attempts.count("10.0.0.2") == 0


def test_successful_logins_do_not_count(attempts: Attempts) -> None:
    for _ in range(PER_MINUTE * 10):
        assert attempts.count("10.0.0.1") == 0
        attempts.succeeded("10.0.0.1")
    assert len(attempts) == 0


def test_a_successful_login_does_not_forgive_failed_ones(attempts: Attempts) -> None:
    """An attacker with an account of its own must not reset the count."""
    for _ in range(PER_MINUTE - 1):
        attempts.count("10.0.0.1")
    for _ in range(10):
        assert attempts.count("10.0.0.1") == 0
        attempts.succeeded("10.0.0.1")
    assert attempts.count("10.0.0.1") == 0
    assert attempts.count("10.0.0.1") > 0


def test_concurrent_attempts_count_before_they_fail(attempts: Attempts) -> None:
    exhausted(attempts)
    assert attempts.count("10.0.0.1") > 0
    attempts.succeeded("10.0.0.1")
    assert attempts.count("10.0.0.1") == 0


def test_the_number_of_remembered_addresses_is_limited(attempts: Attempts) -> None:
    for number in range(LOGINS_MAX_FAILING_ADDRESSES + 10):
        attempts.count(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(attempts) == LOGINS_MAX_FAILING_ADDRESSES


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_ipv6_addresses_of_one_network_count_together(address: str, network: str) -> None:
    assert network_of(address) == network
