"""Hypothesis profiles, tier markers and the order of all tests.

The first directory below `tests` is a test's tier and becomes its marker; `smoke` is set by hand on
one or two tests of each slow tier, and `slow` on unit and server tests that take seconds, mostly
because they restart a broker or wait for a time-out.
`make test` runs `unit or server or smoke` without `slow`. `long` tests take half a minute or more
on a slow machine; `make test-all` runs them, CI does not.

With `--dist loadgroup` one worker runs all tests of a group, so that they start what they share
once: the tests that use the shared Spark session are one group; the other tests that start Java
(tier `spark`, or marked `xdist_group("jvm")`) are another, so that at most two Javas run at a time;
the tests of the source itself are a third, so that they parse it once; every other file is a group.
Slow tiers come first; otherwise one worker would still run them after the others have finished.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.examples import register_profiles
from tests.support.java_options import make_java_quick

make_java_quick()
register_profiles()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
# A shell that starts tests in the background makes them ignore SIGINT, and their child processes
# with them. Tests of Ctrl-C would then wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
PROJECT = HERE / "unit" / "project"
MAX_ID_CHARACTERS = 100
SLOWEST_FIRST = ("spark", "soak", "browser", "clients", "server", "unit")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the format of captured logs.

    pytest adds its two handlers to every logger that does not propagate. PySpark has such loggers,
    and they set a JSON formatter on each handler they get, for all tests that follow in the worker.
    """
    plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter = lambda formatter: None


def pytest_configure() -> None:
    """Collect no garbage while tests are collected, which creates a million objects that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: each pass would visit them all."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries report objects that are still there when Python ends as leaks."""
    gc.unfreeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(_tier(item))
    if _needs_java(item):
        item.add_marker("java")


def _needs_java(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    return _tier(item) == "spark" or (group is not None and group.args == ("jvm",))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOWEST_FIRST.index(_tier(item)))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    if "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    if _tier(item) == "spark":
        return "jvm"
    return "project" if item.path.parent == PROJECT else item.path.relative_to(HERE).as_posix()


def _tier(item: pytest.Item) -> str:
    return _tier_of_file(item.path)


@functools.cache
def _tier_of_file(path: Path) -> str:
    return path.relative_to(HERE).parts[0]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the ids of tests with long parameters: pytest puts the id of the running test into
    the environment, and no process can be started from an environment with a very long value."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID_CHARACTERS:
        return f"{val[:MAX_ID_CHARACTERS]!r}...{len(val)}"
    return None
