"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings
from tests.quick_java import make_java_quick

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
