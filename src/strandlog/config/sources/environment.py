"""Settings in the environment: `STRANDLOG_` and the name in capitals, with underscores for dots.

    STRANDLOG_LOG_RETENTION_MS=7d          log.retention.ms

An empty variable counts as absent, for that is how people switch one off in a compose file. A
variable that begins like ours and is no setting is a misspelling and is refused, with two
exceptions: those that the command line knows, and those that Kubernetes and Docker put there when
a service is called strandlog.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from strandlog.config.origin import Origin, Source

PREFIX = "STRANDLOG_"
# Variables of the command line. DATA is the folder for every command, so it is for the broker.
MEANS_THE_SAME = {"STRANDLOG_DATA": "log.dirs"}
NOT_SETTINGS = frozenset({"STRANDLOG_CONFIG", "STRANDLOG_BOOTSTRAP"})
_SERVICE_LINK = re.compile(
    r"STRANDLOG_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
    r"|STRANDLOG_(NAME|ENV_\w+)"
)


def variable_of(name: str) -> str:
    """The variable that gives a setting."""
    return PREFIX + name.upper().replace(".", "_")


def read_environment(variables: Mapping[str, str], known: Iterable[str]) -> Source:
    """What the environment says about the settings that are known."""
    source = Source()
    names = {variable_of(name): name for name in known} | MEANS_THE_SAME
    for variable, value in sorted(variables.items()):
        if not variable.startswith(PREFIX) or not value or variable in NOT_SETTINGS:
            continue
        origin = Origin("environment", variable)
        name = names.get(variable)
        if name is not None:
            source.add(name, value, origin)
        elif not _SERVICE_LINK.fullmatch(variable):
            near = difflib.get_close_matches(variable, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "remove it"
            source.complain(origin, f"there is no setting for this variable; {hint}")
    return source
