"""What holds for all tests."""

from __future__ import annotations

import signal

from tests.quick_java import make_java_quick

make_java_quick()
# A shell that runs tests in the background has them ignore Ctrl-C, and all that they start with
# them: what tests the answer to Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
