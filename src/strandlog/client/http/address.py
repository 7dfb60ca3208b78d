"""Parses the addresses of HTTP servers, and finds the one that a broker announces over Kafka.

    "http://host:9095"      or https://…; a path in the URL is prepended to the path of each request

A strandlog broker announces its HTTP listener as the broker setting `http.listener`. Apache Kafka
announces none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from strandlog.errors import InvalidSettingError

ALLOWED = "expected http://HOST:PORT or https://HOST:PORT"
DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpAddress(NamedTuple):
    """The address of an HTTP server."""

    is_tls: bool
    host: str
    port: int
    path: str = ""  # prepended to the path of a request

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"


def parse_address(setting: str, text: str, allowed: str = ALLOWED) -> HttpAddress:
    """Parse the URL in the value of a setting; raise `InvalidSettingError` if it is invalid."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidSettingError(setting, text, allowed) from None
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in DEFAULT_PORTS or not host or not is_plain or port == 0:
        raise InvalidSettingError(setting, text, allowed)
    default = DEFAULT_PORTS[parts.scheme]
    return HttpAddress(parts.scheme == "https", host, port or default, parts.path.rstrip("/"))


def announced_address(bootstrap: str, client: Mapping[str, object]) -> HttpAddress | None:
    """Return the HTTP address that a broker announces, or None if it announces no reachable one.

    Raise `UnreachableError` if the broker does not respond, and the broker's error if it rejects
    the login or does not allow the client to read the address.
    """
    from strandlog.client.wire.client import WireClient  # noqa: PLC0415 - slow to load

    with WireClient(bootstrap, client) as asked:
        address = asked.http_address()
    return None if address is None else parse_address("http.listener", address)
