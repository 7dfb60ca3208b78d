"""What the doctor looks at on any machine: Python, extras, file descriptors, the clock."""

from __future__ import annotations

import importlib.metadata
import platform
import re

from strandlog import __version__
from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.file_limits import Limits, needed, wanted
from strandlog.cli.output import time_text
from strandlog.config.tables.broker import BrokerSettings

EARLIEST_SANE_MS = 1_735_689_600_000  # 2025-01-01: this program is younger
FUTURE_MS = 60_000
JUMP_MS = 250
_EXTRA = re.compile(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")


def check_python() -> Check:
    """Which Python runs this."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return ok("python", f"strandlog {__version__} on {python}, {platform.system()}")


def check_extras() -> Check:
    """Which extras are complete, as the package itself lists them."""
    try:
        requirements = importlib.metadata.requires("strandlog") or []
    except importlib.metadata.PackageNotFoundError:
        advice = "install it with pip, so that its extras can be told"
        return warn("extras", "strandlog runs without being installed", advice)
    missing = _missing_by_extra(requirements)
    extras = sorted({each for _, each in _parsed(requirements) if each} - {"all"})
    present = [each for each in extras if each not in missing]
    seen = f"present: {', '.join(present) or 'none'}"
    if "" in missing:
        packages = ", ".join(missing[""])
        return fail("extras", f"{packages} not installed", "pip install strandlog again")
    if missing:
        lacking = "; ".join(f"{extra} lacks {', '.join(names)}" for extra, names in missing.items())
        advice = f"pip install 'strandlog[{','.join(missing)}]' if you need them"
        return warn("extras", f"{seen}; {lacking}", advice)
    return ok("extras", seen)


def _parsed(requirements: list[str]) -> list[tuple[str, str]]:
    """(distribution, extra or "") of each requirement."""
    matches = (_EXTRA.match(each) for each in requirements)
    return [(match[1], match[3] or "") for match in matches if match]


def _missing_by_extra(requirements: list[str]) -> dict[str, list[str]]:
    missing: dict[str, list[str]] = {}
    for distribution, extra in _parsed(requirements):
        if distribution != "strandlog" and not _is_installed(distribution):
            missing.setdefault(extra, []).append(distribution)
    return missing


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_descriptors(found: Limits, settings: BrokerSettings) -> Check:
    """Whether a broker gets as many files as it wants; `serve` raises the soft limit itself."""
    name = "file descriptors"
    least, most = needed(settings), wanted(settings)
    seen = f"{found.hard} allowed (soft limit {found.soft}), up to {most} wanted"
    if found.hard >= most:
        return ok(name, seen)
    advice = (
        f"raise the limit to {most} (ulimit -n {most}, LimitNOFILE= in a systemd unit, --ulimit "
        f"nofile={most} for docker), or lower log.max.open.files and max.connections"
    )
    if found.hard >= least:
        return warn(name, seen, advice)
    return fail(name, f"{seen}, {least} needed to write to partitions", advice)


def check_clock(now_ms: int, newest_file_ms: int | None, newest_record_ms: int | None) -> Check:
    """Whether the time can be right, given what is on disk already."""
    shown = time_text(now_ms, "seconds") or f"{now_ms} ms"
    set_it = "set the clock (timedatectl set-ntp true, or chrony), then look again"
    if now_ms < EARLIEST_SANE_MS:
        return fail("clock", f"it says {shown}, before this program was made", set_it)
    if newest_file_ms is not None and newest_file_ms > now_ms + FUTURE_MS:
        written = time_text(newest_file_ms, "seconds")
        return warn(
            "clock",
            f"it says {shown}, but the data was last written at {written}: it was set back",
            f"{set_it}; until then retention waits and new records look older than old ones",
        )
    if newest_record_ms is not None and newest_record_ms > now_ms + FUTURE_MS:
        stamped = time_text(newest_record_ms, "seconds")
        return warn(
            "clock",
            f"it says {shown}, but there are records of {stamped}",
            "check the clocks of the producers; retention keeps such records for longer. "
            "message.timestamp.after.max.ms refuses them, LogAppendTime replaces their time",
        )
    return ok("clock", f"it says {shown}")


def check_jump(wall_ms: int, monotonic_ms: int) -> Check:
    """Whether the wall clock ran as fast as the steady one while we looked at other things."""
    apart_ms = abs(wall_ms - monotonic_ms)
    if apart_ms > JUMP_MS:
        return warn(
            "clock steps",
            f"the wall clock jumped by {wall_ms - monotonic_ms} ms within {monotonic_ms} ms",
            "let NTP slew the clock instead of stepping it; timestamps jump with it",
        )
    return ok("clock steps", f"none within {monotonic_ms} ms")
