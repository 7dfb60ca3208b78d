"""Limits on accepting connections, shared by the Kafka listeners and HTTP.

    max.connections.per.ip          further connections from the address are closed immediately
    max.connection.creation.rate    the acceptor pauses; clients wait in the socket's backlog
    connection_creation_rate        quota of an address; further connections are closed after a
                                    delay

A token bucket enforces max.connection.creation.rate. It holds the connections of one second, so a
burst of that size is accepted after a quiet second. Host names in
max.connections.per.ip.overrides are resolved once, at startup.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable

from strandlog.clock import stopwatch
from strandlog.config.tables.tls import ConnectionSettings

logger = logging.getLogger(__name__)


def plain_host(host: str) -> str:
    """Return an IPv4-mapped IPv6 address as IPv4, and any address without its zone."""
    return host.removeprefix("::ffff:").partition("%")[0]


def _resolved(host: str) -> Iterable[str]:
    """Return the addresses of a host, in the form that `plain_host` returns."""
    try:
        return [plain_host(str(ipaddress.ip_address(host)))]
    except ValueError:
        pass
    try:
        return {plain_host(str(found[4][0])) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        logger.warning("max.connections.per.ip.overrides: host %r has no effect: %s", host, reason)
        return ()


class ConnectionLimits:
    """Counts the connections of each address, and limits how fast new ones are accepted."""

    def __init__(
        self,
        settings: ConnectionSettings,
        now: Callable[[], float] = stopwatch,
        delay_ms: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`delay_ms` counts a connection from an address. It returns 0 if the connection may stay
        open. If the address exceeds a quota, it returns the milliseconds to wait before closing the
        connection."""
        self._settings = settings
        self.delay_ms = delay_ms
        self._now = now
        self._overrides = {
            address: limit
            for host, limit in settings.per_ip_overrides().items()
            for address in _resolved(host)
        }
        self._by_host: dict[str, int] = {}
        self._tokens = float(settings.max_connection_creation_rate)
        self._filled = now()

    def limit_of(self, host: str) -> int:
        """Return how many connections an address may have."""
        return self._overrides.get(host, self._settings.max_connections_per_ip)

    def open(self, host: str) -> bool:
        """Count a connection of an address; return False if the address has too many already."""
        count = self._by_host.get(host, 0)
        if count >= self.limit_of(host):
            return False
        self._by_host[host] = count + 1
        return True

    def close(self, host: str) -> None:
        """Stop counting one connection of an address."""
        left = self._by_host[host] - 1
        if left:
            self._by_host[host] = left
        else:
            del self._by_host[host]

    def wait_seconds(self) -> float:
        """Return how long to wait before another connection may be accepted, or 0 for no wait."""
        rate = float(self._settings.max_connection_creation_rate)
        now = self._now()
        self._tokens = min(rate, self._tokens + (now - self._filled) * rate)
        self._filled = now
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / rate

    def accepted(self) -> None:
        """Count an accepted connection towards the rate."""
        self._tokens -= 1
