"""How many files this process may have open, and how many a broker wants.

Each connection takes one, each partition that is written to takes one (up to log.max.open.files),
and some are for everything else. A process may raise its own limit up to the hard one, and `serve`
does: distributions set the soft one low for the sake of old programs.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

from strandlog.config.broker_settings import BrokerSettings

FOR_EVERYTHING_ELSE = 64


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
    return needed(settings) + settings.max_connections


def raise_limit(settings: BrokerSettings) -> int:
    """Let this process open as many files as it wants and may; how many that are."""
    found = limits()
    target = min(wanted(settings), found.hard)
    if target > found.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        return target
    return found.soft
