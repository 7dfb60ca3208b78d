"""Determines where progress reports are sent: by default, to the broker's HTTP listener.

    not set                     the HTTP address that the broker announces, if any
    "http://host:9095"          this address (or https://…); a path is prepended to /api
    "off"                       no reports are sent

Apache Kafka announces no HTTP listener, so it receives no reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from strandlog.errors import InvalidSettingError, StrandlogError, UnreachableError

OFF = "off"
ALLOWED = "expected http://HOST:PORT, https://HOST:PORT or off"
DEFAULT_PORTS = {"http": 80, "https": 443}
# If the broker takes longer, the request is retried later.
QUICK = {
    "socket.connection.setup.timeout.ms": "2000",
    "request.timeout.ms": "2000",
    "default.api.timeout.ms": "2000",
}


class ReportAddress(NamedTuple):
    """A server that accepts reports."""

    is_tls: bool
    host: str
    port: int
    path: str = ""  # prepended to /api

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.is_tls else ''}://{host}:{self.port}{self.path}"


FindAddress = Callable[[], ReportAddress | None]  # raises UnreachableError: retry later


def parse_report(text: str) -> ReportAddress | None:
    """Parse an address; return None if reports are off."""
    if text.strip().lower() == OFF:
        return None
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidSettingError("report", text, ALLOWED) from None
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in DEFAULT_PORTS or not host or not is_plain or port == 0:
        raise InvalidSettingError("report", text, ALLOWED)
    default = DEFAULT_PORTS[parts.scheme]
    return ReportAddress(parts.scheme == "https", host, port or default, parts.path.rstrip("/"))


def address_finder(
    report: str | None, bootstrap: str | None, client: Mapping[str, str]
) -> FindAddress | None:
    """Return a function that finds the address, or None if no reports are sent.

    The address is the one in `report` or, if that is None, the one that the broker announces.
    """
    if report is not None:
        given = parse_report(report)
        return None if given is None else lambda: given
    return None if bootstrap is None else lambda: _announced_by(bootstrap, client)


def _announced_by(bootstrap: str, client: Mapping[str, str]) -> ReportAddress | None:
    from strandlog.client.wire.client import WireClient  # noqa: PLC0415 - slow to load

    try:
        with WireClient(bootstrap, {**client, **QUICK}) as asked:
            address = asked.http_address()
    except UnreachableError:
        raise
    except StrandlogError:
        return None  # for example, not authorized to read settings
    return None if address is None else parse_report(address)
