"""Java options for short runs: tests start many Java processes, and each runs for seconds.

By default Java compiles code twice (fast, then optimized) and collects garbage with several
threads. In a Spark process that runs for half a minute, this takes half of the processor time.
Loading Spark's classes takes half of the rest. `make check` saves the loaded classes to an archive
(tools/archive_spark_classes.py), which a Java process of the same version and class path maps into
its memory; any other Java process ignores it.
Benchmarks and screenshots must not use these options.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # of the process that runs the driver
VARIABLES = (SUBMIT_OPTIONS, "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")
CLASS_ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def make_java_quick() -> None:
    """Set the options for all Spark processes started from here, unless the user has set them."""
    if CLASS_ARCHIVE.exists():
        # Java reports an archive that it cannot use on the standard output, which tests read.
        archive = f"-XX:SharedArchiveFile={CLASS_ARCHIVE} -Xshare:auto -Xlog:disable"
        os.environ.setdefault(SUBMIT_OPTIONS, f"{QUICK_JAVA} {archive}")
    for name in VARIABLES:
        os.environ.setdefault(name, QUICK_JAVA)
