"""Determines where progress reports are sent: by default, to the broker's HTTP listener.

    not set                     the HTTP address that the broker announces, if any
    "http://host:9095"          this address (or https://…); a path is prepended to /api
    "off"                       no reports are sent

Apache Kafka announces no HTTP listener, so it receives no reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandlog.client.http.address import HttpAddress, announced_address, parse_address
from strandlog.errors import StrandlogError, UnreachableError

OFF = "off"
ALLOWED = "expected http://HOST:PORT, https://HOST:PORT or off"
# If the broker takes longer, the request is retried later.
QUICK = {
    "socket.connection.setup.timeout.ms": "2000",
    "request.timeout.ms": "2000",
    "default.api.timeout.ms": "2000",
}


FindAddress = Callable[[], HttpAddress | None]  # raises UnreachableError: retry later


def parse_report(text: str) -> HttpAddress | None:
    """Parse an address; return None if reports are off."""
    return None if text.strip().lower() == OFF else parse_address("report", text, ALLOWED)


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


def _announced_by(bootstrap: str, client: Mapping[str, str]) -> HttpAddress | None:
    try:
        return announced_address(bootstrap, {**client, **QUICK})
    except UnreachableError:
        raise
    except StrandlogError:
        return None  # for example, not authorized to read settings
