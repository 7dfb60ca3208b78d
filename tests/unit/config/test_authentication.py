"""Which listeners require authentication."""

from __future__ import annotations

import pytest

from strandlog.config.authentication import authentication_mode, is_loopback

LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"]
OTHERS = ["0.0.0.0", "::", "192.168.1.5", "broker.lan", "localhost.evil.example", "", "127.1"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_a_listener_on_loopback_does_not_require_authentication(host: str) -> None:
    assert is_loopback(host)
    assert authentication_mode("", host) == "optional"


@pytest.mark.parametrize("host", OTHERS)
def test_a_listener_that_the_network_reaches_requires_authentication(host: str) -> None:
    assert not is_loopback(host)
    assert authentication_mode("", host) == "required"


@pytest.mark.parametrize("mode", ["none", "optional", "required"])
def test_a_mode_that_is_set_applies_to_every_address(mode: str) -> None:
    for host in LOOPBACK + OTHERS:
        assert authentication_mode(mode, host) == mode
