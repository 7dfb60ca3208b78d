"""Java options for short runs: tests start many Java processes, and each runs for seconds.

By default Java compiles code twice (fast, then optimized) and collects garbage with several
threads. In a Spark process that runs for half a minute, this takes half of the processor time.
The archive of Spark's classes (`strandlog pipeline prepare`), which `make check` makes for tests,
saves half of the rest. Benchmarks and screenshots must not use these options.
"""

from __future__ import annotations

import os
import sys

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def make_java_quick() -> None:
    """Set the options, and the folder of the archive, for all Spark processes started from here,
    unless the user has set them."""
    os.environ.setdefault("STRANDLOG_CACHE_DIR", f"{sys.prefix}/cache")
    for name in VARIABLES:
        os.environ.setdefault(name, QUICK_JAVA)
