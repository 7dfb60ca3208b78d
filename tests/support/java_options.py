"""Options for a Java that starts quickly, for tests: they start many, and none lives for long.

Java compiles a program twice, first quickly and then well, and cleans up with several threads. Of
a Spark that lives for half a minute that is half of the processor time. Without it every test does
the same, sooner. Benchmarks and the pictures of a real run must not use this.
"""

from __future__ import annotations

import os

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def make_java_quick() -> None:
    """For each Spark that this process or one below it starts, unless the user has said how."""
    for name in VARIABLES:
        os.environ.setdefault(name, QUICK_JAVA)
