"""Limits on open files, and how many a broker needs.

Each connection takes one file descriptor, each partition that is written takes one (up to
log.max.open.files), and `RESERVED` are for everything else. `serve` raises its soft limit up to the
hard one: distributions set the soft limit low for the sake of old programs.

A broker without free descriptors cannot write. If the system allows fewer than the settings add up
to, `fit_to_limit` lowers the settings, those of connections first. With fewer than `MIN_ALLOWED`
the broker does not start.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.listeners import HEALTH_CONNECTIONS
from strandlog.errors import TooFewDescriptorsError

RESERVED = 64
MIN_ALLOWED = 256


class Limits(NamedTuple):
    """The soft and the hard limit of the process."""

    soft: int
    hard: int


def limits() -> Limits:
    """The limits of this process; "unlimited" becomes a large number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 2**31 - 1
    return Limits(*(unlimited if each == resource.RLIM_INFINITY else each for each in (soft, hard)))


def required(settings: BrokerSettings) -> int:
    """Descriptors that the broker needs to write to all its partitions."""
    return settings.log_max_open_files + RESERVED


def wanted(settings: BrokerSettings) -> int:
    """Descriptors for `required` and every connection that the settings allow."""
    return (
        required(settings)
        + settings.max_connections
        + settings.http_max_connections
        + HEALTH_CONNECTIONS
        + settings.grpc_max_connections
    )


def fit_to_limit(settings: BrokerSettings, allowed: int) -> BrokerSettings:
    """The settings, lowered so that together they need at most `allowed` descriptors.

    Raises `TooFewDescriptorsError` if that is not enough for a broker.
    """
    if allowed < MIN_ALLOWED:
        raise TooFewDescriptorsError(
            f"the limit of {allowed} file descriptors is too low: the broker needs at least "
            f"{MIN_ALLOWED} and uses up to {wanted(settings)}; raise it, for example with "
            f"ulimit -n {wanted(settings)}"
        )
    if allowed >= wanted(settings):
        return settings
    rest = allowed - RESERVED - HEALTH_CONNECTIONS
    files = min(settings.log_max_open_files, rest // 2)
    rest -= files
    http = min(settings.http_max_connections, rest // 5)
    grpc = min(settings.grpc_max_connections, rest // 5)
    # Explicit values: the broker derives its settings from those again when a client changes one.
    lowered: dict[str, Value] = {
        "log.max.open.files": files,
        "http.max.connections": http,
        "grpc.max.connections": grpc,
        "max.connections": min(settings.max_connections, rest - http - grpc),
    }
    return broker_settings({**settings.explicit, **lowered})


def raise_limit(settings: BrokerSettings) -> int:
    """Raise the soft limit of this process as far as needed and allowed; returns it."""
    found = limits()
    target = min(wanted(settings), found.hard)
    if target > found.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return found.soft
