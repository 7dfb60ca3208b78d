"""TLS and credentials for requests to an HTTP listener, taken from the client settings.

The HTTP listener accepts the same users as the Kafka listener:

    sasl.username, sasl.password      HTTP Basic
    sasl.oauthbearer.token            HTTP Bearer, if there is no user name or sasl.mechanism is
                                      OAUTHBEARER
    ssl.certificate.location, …       mutual TLS
    ssl.ca.location                   the CA that must have issued the listener's certificate

Credentials are read for each connection, and are sent only over TLS or to a loopback address.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection

from strandlog.client.http.address import HttpAddress
from strandlog.client.settings import client_settings
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.tls import tls_context
from strandlog.config.tables.client import OAUTHBEARER

ANY_BROKER = "localhost"  # the options are parsed only for their security settings


class HttpLogin:
    """Creates connections to HTTP listeners, and the header that carries the credentials."""

    def __init__(self, client: Mapping[str, object]) -> None:
        self._client = client

    def connect(
        self, address: HttpAddress, timeout_seconds: float
    ) -> tuple[HTTPConnection, dict[str, str]]:
        """Return a connection, which opens with the first request, and its authorization header, if
        any."""
        options = WireOptions.parse(ANY_BROKER, client_settings(self._client))
        headers: dict[str, str] = {}
        if address.is_tls or _is_loopback(address.host):
            headers = _authorization(options)
        if not address.is_tls:
            return HTTPConnection(address.host, address.port, timeout=timeout_seconds), headers
        connection = HTTPSConnection(
            address.host, address.port, timeout=timeout_seconds, context=tls_context(options)
        )
        return connection, headers


def _authorization(options: WireOptions) -> dict[str, str]:
    user = options.text("sasl.username")
    if options.has_token and (not user or options.text("sasl.mechanism") == OAUTHBEARER):
        return {"Authorization": f"Bearer {options.token()}"}
    if not user:
        return {}
    pair = f"{user}:{options.text('sasl.password')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
