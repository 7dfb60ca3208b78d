"""Requests to an HTTP listener: which credentials go to which address."""

from __future__ import annotations

from http.client import HTTPSConnection
from pathlib import Path

import pytest

from strandlog.client.http.address import HttpAddress
from strandlog.client.http.login import HttpLogin
from strandlog.errors import SettingError

SECURE = HttpAddress(True, "console.example", 443)
LOOPBACK = HttpAddress(False, "127.0.0.1", 9095)
OPEN = HttpAddress(False, "console.example", 80)
USER = {"sasl.username": "app", "sasl.password": "p:w"}
BASIC = {"Authorization": "Basic YXBwOnA6dw=="}


@pytest.mark.parametrize(
    ("client", "address", "headers"),
    [
        ({}, SECURE, {}),
        (USER, SECURE, BASIC),
        (USER, LOOPBACK, BASIC),
        (USER, OPEN, {}),
        ({"sasl.oauthbearer.token": "abc"}, SECURE, {"Authorization": "Bearer abc"}),
        ({**USER, "sasl.oauthbearer.token": "abc"}, SECURE, BASIC),
    ],
)
def test_credentials_are_sent_only_over_tls_or_loopback(
    client: dict[str, str], address: HttpAddress, headers: dict[str, str]
) -> None:
    connection, found = HttpLogin(client).connect(address, 1.0)
    assert found == headers
    assert isinstance(connection, HTTPSConnection) == address.is_tls


def test_the_password_is_read_for_each_connection(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    login = HttpLogin({"sasl.username": "app", "sasl.password": f"${{file:{secret}}}"})
    with pytest.raises(SettingError, match="cannot be read"):
        login.connect(SECURE, 1.0)
    secret.write_text("p:w")
    assert login.connect(SECURE, 1.0)[1] == BASIC
