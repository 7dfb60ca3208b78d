"""Limits are declared in one place: as settings, or in `config/limits.py` if they are fixed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from strandlog.config.limits import FIXED_LIMITS

SOURCES = Path(__file__).parents[3] / "src" / "strandlog"
PACKAGES = ("server", "protocol", "broker")
LIMIT_NAME = re.compile(r"^(?:[A-Z0-9_]+_)?(?:MAX|MOST|LONGEST)_")
# Constants with such a name that no client can notice, or that merely name the range of a type.
NOT_LIMITS = {
    "server/app.py": {"MAX_SLEEP_MS", "MAX_PROBLEMS_LOGGED"},
    "server/log_limit.py": {"MAX_LINES", "MAX_KINDS"},
    "server/record_io.py": {"MAX_READ_BYTES"},  # a chunk; readers fetch the next one
    "server/grpc/listener.py": {"MAX_MESSAGE_BYTES"},  # the largest value that gRPC accepts
    "server/http/state.py": {"MAX_TAIL_READS"},
    "server/http/records/payload.py": {"MAX_SPACES"},
    "server/http/records/tail.py": {
        "MAX_PARTITIONS",
        "MAX_BYTES",
        "MAX_SECONDS",
        "MAX_SHOWN_BYTES",
    },
    "server/node/peer.py": {"LONGEST_HEX"},
    "protocol/node.py": {"MAX_OFFSET", "MAX_PARTITION"},
    "protocol/primitives.py": {"MAX_BYTES"},
    "protocol/kafka/produce_fetch_server.py": {"MAX_ELEMENTS"},  # the default of a setting
    "broker/broker.py": {"MAX_COUNTED_POSITIONS"},
    "broker/durability.py": {"MAX_JOBS"},
    "broker/maintenance.py": {"MAX_UNDECODABLE"},
    "broker/facade/records.py": {"MAX_COUNTED_POSITIONS"},
    "broker/groups/offsets.py": {"MAX_OFFSET", "MAX_INT32"},
}


def _constants(path: Path) -> set[str]:
    """Return the names of the constants at the top level of a module that look like limits."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return {name for name in found if LIMIT_NAME.match(name) and not name.startswith("_")}


def test_every_limit_is_a_setting_or_declared_in_limits() -> None:
    elsewhere = {}
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            name = path.relative_to(SOURCES).as_posix()
            if names := _constants(path) - NOT_LIMITS.get(name, set()):
                elsewhere[name] = names
    assert not elsewhere, "declare it in config/limits.py, or as a setting in config/tables"


def test_every_exception_still_exists() -> None:
    stale = {
        name: missing
        for name, names in NOT_LIMITS.items()
        if (missing := names - _constants(SOURCES / name))
    }
    assert not stale


def test_every_fixed_limit_is_explained() -> None:
    assert FIXED_LIMITS
    assert len({each.meaning for each in FIXED_LIMITS}) == len(FIXED_LIMITS)
    for each in FIXED_LIMITS:
        assert each.value > 0 and each.meaning and each.above and each.why, each
