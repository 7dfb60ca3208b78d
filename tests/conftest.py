"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.java_options import make_java_quick

make_java_quick()
# How long an example takes says how busy the machine is, and that is all. Examples are others in
# each run, so that many runs find much; CI tries the same ones, so that a change is to blame when
# it fails.
settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "random"))
# A shell that runs tests in the background has them ignore Ctrl-C, and all that they start with
# them: what tests the answer to Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What drives programs of others, each with its own patience, on a machine that is as busy as it is.
HERE = Path(__file__).parent
WITH_OTHERS = ("compat", "console", "examples", "soak", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In CI such a test may fail once; the summary tells which did (RERUN)."""
    if not os.environ.get("TEST_SECOND_CHANCE"):
        return
    for item in items:
        if item.path.relative_to(HERE).parts[0] in WITH_OTHERS:
            item.add_marker(pytest.mark.flaky(reruns=1))
