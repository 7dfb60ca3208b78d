"""Computes how many open files a broker needs, and adjusts the limit or the settings.

Each connection uses one file descriptor, each partition whose log is open for appending uses one
(up to log.max.open.files), and `RESERVED` covers everything else. `serve` raises its soft limit, if
necessary up to the hard limit, because distributions set a low soft limit for old programs.

A broker without free descriptors cannot write. If the system allows fewer than the settings need in
total, `fit_to_limit` lowers the settings. With fewer than `MIN_ALLOWED`, the broker does not start.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from strandlog.config.limits.http import HTTP_HEALTH_CONNECTIONS
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.errors import TooFewDescriptorsError

RESERVED = 64
MIN_ALLOWED = 256


class Limits(NamedTuple):
    """A process's soft and hard limits on open files."""

    soft: int
    hard: int


def limits() -> Limits:
    """Return the limits of this process; a large number stands for "unlimited"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 2**31 - 1
    return Limits(*(unlimited if each == resource.RLIM_INFINITY else each for each in (soft, hard)))


def wanted(settings: BrokerSettings) -> int:
    """Return the number of descriptors that the broker may use with these settings."""
    return (
        RESERVED
        + settings.log_max_open_files
        + settings.max_connections
        + settings.http_max_connections
        + HTTP_HEALTH_CONNECTIONS
        + settings.grpc_max_connections
    )


def fit_to_limit(settings: BrokerSettings, allowed: int) -> BrokerSettings:
    """Lower the settings so that they need at most `allowed` descriptors in total.

    Raise `TooFewDescriptorsError` if `allowed` is too small for a broker.
    """
    if allowed < MIN_ALLOWED:
        raise TooFewDescriptorsError(
            f"the limit of {allowed} file descriptors is too low: the broker needs at least "
            f"{MIN_ALLOWED} and uses up to {wanted(settings)}; raise it, for example with "
            f"ulimit -n {wanted(settings)}"
        )
    if allowed >= wanted(settings):
        return settings
    rest = allowed - RESERVED - HTTP_HEALTH_CONNECTIONS
    files = min(settings.log_max_open_files, rest // 2)
    rest -= files
    http = min(settings.http_max_connections, rest // 5)
    grpc = min(settings.grpc_max_connections, rest // 5)
    # Set these explicitly: the broker recomputes its settings from explicit values on each change.
    lowered: dict[str, Value] = {
        "log.max.open.files": files,
        "http.max.connections": http,
        "grpc.max.connections": grpc,
        "max.connections": min(settings.max_connections, rest - http - grpc),
    }
    return broker_settings({**settings.explicit, **lowered})


def raise_limit(settings: BrokerSettings) -> int:
    """Raise this process's soft limit as far as needed and allowed; return the resulting limit."""
    found = limits()
    target = min(wanted(settings), found.hard)
    if target > found.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return found.soft
