"""Checks the machine: Python, extras, file descriptors and clock."""

from __future__ import annotations

import importlib.metadata
import platform
import re

from strandlog import __version__
from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.file_limits import MIN_ALLOWED, Limits, wanted
from strandlog.cli.output import time_text
from strandlog.config.tables.broker import BrokerSettings

EARLIEST_SANE_MS = 1_735_689_600_000  # 2025-01-01, before the first release
FUTURE_MS = 60_000
JUMP_MS = 250
_EXTRA = re.compile(r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")


def check_python() -> Check:
    """Report the Python version."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return ok("python", f"strandlog {__version__} on {python}, {platform.system()}")


def check_extras() -> Check:
    """Report which extras have all their packages installed."""
    try:
        requirements = importlib.metadata.requires("strandlog") or []
    except importlib.metadata.PackageNotFoundError:
        advice = "install it with pip, so that the doctor can find its extras"
        return warn("extras", "strandlog is not installed as a package", advice)
    missing = _missing_by_extra(requirements)
    extras = sorted({each for _, each in _parsed(requirements) if each} - {"all"})
    present = [each for each in extras if each not in missing]
    seen = f"installed: {', '.join(present) or 'none'}"
    if "" in missing:
        packages = ", ".join(missing[""])
        return fail(
            "extras",
            f"{packages} not installed",
            "reinstall: pip install --force-reinstall strandlog",
        )
    if missing:
        lacking = "; ".join(f"{extra} lacks {', '.join(names)}" for extra, names in missing.items())
        advice = f"pip install 'strandlog[{','.join(missing)}]' if you need them"
        return warn("extras", f"{seen}; {lacking}", advice)
    return ok("extras", seen)


def _parsed(requirements: list[str]) -> list[tuple[str, str]]:
    """Return a pair (distribution, extra or "") for each requirement."""
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
    """Check the hard limit on open files; `serve` raises the soft limit itself, and lowers its
    settings if the hard limit is too low for them."""
    name = "file descriptors"
    most = wanted(settings)
    seen = f"hard limit {found.hard}, soft limit {found.soft}; the settings need up to {most}"
    if found.hard >= most:
        return ok(name, seen)
    advice = (
        f"raise the limit to {most} (ulimit -n {most}, LimitNOFILE= in a systemd unit, --ulimit "
        f"nofile={most} for docker), or lower log.max.open.files and max.connections"
    )
    if found.hard >= MIN_ALLOWED:
        return warn(name, f"{seen}; 'serve' lowers them to fit", advice)
    return fail(
        name, f"{seen}, and the broker does not start with fewer than {MIN_ALLOWED}", advice
    )


def check_clock(now_ms: int, newest_file_ms: int | None, newest_record_ms: int | None) -> Check:
    """Compare the clock with the date of the first release, and with times in the data folder."""
    shown = time_text(now_ms, "seconds") or f"{now_ms} ms"
    set_it = "set the clock (timedatectl set-ntp true, or chrony), then run the doctor again"
    if now_ms < EARLIEST_SANE_MS:
        return fail("clock", f"{shown} is before the first release of strandlog", set_it)
    if newest_file_ms is not None and newest_file_ms > now_ms + FUTURE_MS:
        written = time_text(newest_file_ms, "seconds")
        return warn(
            "clock",
            f"{shown}, but the data was last written at {written}: the clock was set back",
            f"{set_it}; until then retention pauses and new records get earlier timestamps",
        )
    if newest_record_ms is not None and newest_record_ms > now_ms + FUTURE_MS:
        stamped = time_text(newest_record_ms, "seconds")
        return warn(
            "clock",
            f"{shown}, but there are records with timestamps up to {stamped}",
            "check the clocks of the producers; retention keeps such records longer. "
            "message.timestamp.after.max.ms rejects them, message.timestamp.type=LogAppendTime "
            "replaces their timestamps",
        )
    return ok("clock", shown)


def check_jump(wall_ms: int, monotonic_ms: int) -> Check:
    """Compare the wall clock with the monotonic clock, to detect a jump during the checks."""
    apart_ms = abs(wall_ms - monotonic_ms)
    if apart_ms > JUMP_MS:
        return warn(
            "clock steps",
            f"the wall clock jumped by {wall_ms - monotonic_ms} ms within {monotonic_ms} ms",
            "let NTP slew the clock instead of stepping it; record timestamps jump with the clock",
        )
    return ok("clock steps", f"none within {monotonic_ms} ms")
