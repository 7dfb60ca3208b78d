"""Limits failed logins per client address.

An address may fail `per_minute` times; after that, one more attempt becomes possible every
60 / per_minute seconds. An attempt is counted before its credentials are checked, so that
concurrent attempts count too, and is uncounted unless the credentials turn out to be wrong.

IPv6 addresses are counted by their first 64 bits, which providers usually assign to one customer.
Counts are kept for at most `LOGINS_MAX_FAILING_ADDRESSES` addresses; a further one replaces the
address whose last attempt is the oldest.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from strandlog.clock import Clock
from strandlog.config.limits.access import LOGINS_MAX_FAILING_ADDRESSES

MINUTE_MS = 60_000
IPV6_BITS = 64


class _Failures(NamedTuple):
    total: float  # the count at `at_ms`; it falls with time
    at_ms: int  # monotonic


class Attempts:
    """Counts recent failed logins by network; a count falls by `per_minute` each minute."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._by_network: dict[str, _Failures] = {}  # the oldest attempt first

    def __len__(self) -> int:
        return len(self._by_network)

    def count(self, address: str) -> float:
        """Count an attempt and return 0 if it is allowed; otherwise return the seconds to wait."""
        network = network_of(address)
        count = self._current(network)
        if count + 1 > self._per_minute:
            return (count + 1 - self._per_minute) * MINUTE_MS / self._per_minute / 1000
        self._by_network.pop(network, None)
        if len(self._by_network) >= LOGINS_MAX_FAILING_ADDRESSES:
            del self._by_network[next(iter(self._by_network))]
        self._by_network[network] = _Failures(count + 1, self._clock.monotonic_ms())
        return 0.0

    def succeeded(self, address: str) -> None:
        """Uncount one attempt, because it did not fail."""
        network = network_of(address)
        count = self._current(network) - 1
        if network in self._by_network:
            if count > 0:
                self._by_network[network] = _Failures(count, self._clock.monotonic_ms())
            else:
                del self._by_network[network]

    def _current(self, network: str) -> float:
        found = self._by_network.get(network)
        if found is None:
            return 0.0
        elapsed_ms = self._clock.monotonic_ms() - found.at_ms
        return max(0.0, found.total - elapsed_ms * self._per_minute / MINUTE_MS)


def network_of(address: str) -> str:
    """Return the key that an address is counted by: its first 64 bits if it is an IPv6 address,
    otherwise the address itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_BITS), strict=False))
