"""Reads settings from `STRANDLOG_*` environment variables.

    STRANDLOG_LOG_RETENTION_MS=7d          log.retention.ms

An empty variable counts as unset, because that is how compose files unset a variable. A variable
with this prefix that does not match any setting is probably misspelled and is an error. This module
ignores variables that the command line and Spark read, client settings (STRANDLOG_CLIENT_*), and
the variables that Kubernetes and Docker set for a service called strandlog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from strandlog.config.origin import Origin, Source
from strandlog.config.setting import closest

PREFIX = "STRANDLOG_"
# STRANDLOG_DATA is the data folder of all commands, including serve.
ALIAS_VARIABLES = {"STRANDLOG_DATA": "log.dirs"}
# The command line and Spark read these.
NOT_SETTINGS = frozenset(
    {"STRANDLOG_CONFIG", "STRANDLOG_BOOTSTRAP", "STRANDLOG_CACHE_DIR", "STRANDLOG_CONTEXT"}
)
CLIENT_PREFIX = "STRANDLOG_CLIENT_"  # prefix for client settings (client/settings.py)
_SERVICE_LINK = re.compile(
    r"STRANDLOG_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
    r"|STRANDLOG_(NAME|ENV_\w+)"
)


def variable_of(name: str) -> str:
    """Return the environment variable for a setting."""
    return PREFIX + name.upper().replace(".", "_")


def read_environment(variables: Mapping[str, str], known: Iterable[str]) -> Source:
    """Read the variables of all known settings; report unknown ones as problems."""
    source = Source()
    names = {variable_of(name): name for name in known} | ALIAS_VARIABLES
    for variable, value in sorted(variables.items()):
        if not variable.startswith(PREFIX) or variable.startswith(CLIENT_PREFIX) or not value:
            continue
        if variable in NOT_SETTINGS:
            continue
        origin = Origin("environment", variable)
        name = names.get(variable)
        if name is not None:
            source.add(name, value, origin)
        elif not _SERVICE_LINK.fullmatch(variable):
            near = closest(variable, names)
            hint = f"did you mean {near}?" if near else "remove it"
            source.add_problem(origin, f"no setting corresponds to this variable; {hint}")
    return source
