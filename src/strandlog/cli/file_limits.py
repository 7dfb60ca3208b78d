"""How many files this process may have open, and how many a broker wants.

Each connection takes one, each partition that is written to takes one (up to log.max.open.files),
and some are for everything else. A process may raise its own limit up to the hard one, and `serve`
does: distributions set the soft one low for the sake of old programs.

A broker that runs out of them cannot write, so it never does: if the system allows fewer than the
settings add up to, `fitted` lowers them, first those of connections. With fewer than `LEAST` the
broker does not start.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.tables.listeners import HEALTH_CONNECTIONS
from strandlog.errors import TooFewDescriptorsError

FOR_EVERYTHING_ELSE = 64
LEAST = 256


class Limits(NamedTuple):
    """What the system allows: now, and at most."""

    soft: int
    hard: int


def limits() -> Limits:
    """Those of this process; -1 for no limit becomes a large number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = 2**31 - 1
    return Limits(*(endless if each == resource.RLIM_INFINITY else each for each in (soft, hard)))


def needed(settings: BrokerSettings) -> int:
    """Without these partitions cannot be written."""
    return settings.log_max_open_files + FOR_EVERYTHING_ELSE


def wanted(settings: BrokerSettings) -> int:
    """With these every connection that is allowed can be served, too."""
    return (
        needed(settings)
        + settings.max_connections
        + settings.http_max_connections
        + HEALTH_CONNECTIONS
        + settings.grpc_max_connections
    )


def fitted(settings: BrokerSettings, allowed: int) -> BrokerSettings:
    """The settings, with limits that together stay within `allowed` descriptors.

    `TooFewDescriptorsError` when these are too few for a broker.
    """
    if allowed < LEAST:
        raise TooFewDescriptorsError(
            f"{allowed} file descriptors are allowed, at least {LEAST} are needed and "
            f"{wanted(settings)} wanted: raise the limit, for instance with ulimit -n "
            f"{wanted(settings)}"
        )
    if allowed >= wanted(settings):
        return settings
    rest = allowed - FOR_EVERYTHING_ELSE - HEALTH_CONNECTIONS
    files = min(settings.log_max_open_files, rest // 2)
    rest -= files
    http = min(settings.http_max_connections, rest // 5)
    grpc = min(settings.grpc_max_connections, rest // 5)
    # As values that were given: the broker derives its settings from those again whenever a client
    # changes one of them.
    lowered: dict[str, Value] = {
        "log.max.open.files": files,
        "http.max.connections": http,
        "grpc.max.connections": grpc,
        "max.connections": min(settings.max_connections, rest - http - grpc),
    }
    return broker_settings({**settings.given, **lowered})


def raise_limit(settings: BrokerSettings) -> int:
    """Let this process open as many files as it wants and may; how many that are."""
    found = limits()
    target = min(wanted(settings), found.hard)
    if target > found.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return found.soft
