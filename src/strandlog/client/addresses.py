"""Parses the addresses of brokers: a comma-separated list of HOST:PORT, with brackets for IPv6.

a:9092, [::1]:9092      the default port is 9092
PLAINTEXT://a:9092      as in `listeners`; clients ignore the protocol
"""

from __future__ import annotations

import re

from strandlog.errors import InvalidSettingError

DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"(?:[A-Z_]+://)?(\[[0-9A-Fa-f:.%\w]+\]|[^:/\[\]\s]+)(?::(\d{1,5}))?")
_EXPECTED = "expected a comma-separated list of HOST:PORT, such as host:9092 or [::1]:9092"


def wrong_protocol(address: str, found: str) -> str:
    """Return the message for an address at which something other than a Kafka listener answers."""
    return (
        f"{address} is {found}, not a Kafka listener; check the port: the ready line of "
        "'strandlog serve' shows it as kafka=HOST:PORT"
    )


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a list such as `"a:9092,[::1]"`; raise if it is invalid."""
    if not isinstance(text, str):
        raise InvalidSettingError("bootstrap.servers", text, _EXPECTED)
    found: list[tuple[str, int]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _ADDRESS.fullmatch(part)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise InvalidSettingError("bootstrap.servers", part, _EXPECTED)
        found.append((match[1].strip("[]"), port))
    if not found:
        raise InvalidSettingError("bootstrap.servers", text, "expected at least one HOST:PORT")
    return found
