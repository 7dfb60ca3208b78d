"""Limits are declared in one place: as settings, or in `config/limits` if they are fixed."""

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
    *("MAX_OFFSET", "MAX_PARTITION", "MAX_INT32", "MAX_ELEMENTS"),
    *("MAX_SLEEP_MS", "MAX_PROBLEMS_LOGGED", "MAX_LINES", "MAX_KINDS", "MAX_SPACES"),
    *("MAX_READ_BYTES", "MAX_BYTES", "MAX_TAIL_READS", "MAX_PARTITIONS", "MAX_SECONDS"),
    *("MAX_SHOWN_BYTES", "MAX_MESSAGE_BYTES", "LONGEST_HEX", "MAX_COUNTED_POSITIONS"),
    *("MAX_JOBS", "MAX_UNDECODABLE", "MAX_ID"),
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


def _found() -> dict[str, set[str]]:
    paths = [path for package in PACKAGES for path in sorted((SOURCES / package).rglob("*.py"))]
    return {path.relative_to(SOURCES).as_posix(): _constants(path) for path in paths}


def test_every_limit_is_a_setting_or_declared_in_limits() -> None:
    elsewhere = {name: rest for name, found in _found().items() if (rest := found - NOT_LIMITS)}
    assert not elsewhere, "declare it in config/limits, or as a setting in config/tables"


def test_every_exception_still_exists() -> None:
    assert set().union(*_found().values()) >= NOT_LIMITS


def test_every_fixed_limit_is_explained() -> None:
    assert FIXED_LIMITS
    assert len({each.meaning for each in FIXED_LIMITS}) == len(FIXED_LIMITS)
    for each in FIXED_LIMITS:
        assert each.value > 0 and each.meaning and each.above and each.why, each
