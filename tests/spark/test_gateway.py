"""Java gets no signal that is meant for Python, and ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import children, is_running, kill_with_children
from tests.support.waiting import eventually

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

PROGRAM = """
import signal, sys
from strandlog.spark import session

spark = session("local[1]", {"spark.ui.enabled": "false"}, quiet=True)
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append("SIGTERM"))
print("started", flush=True)
sys.stdin.readline()
print(spark.range(3).count(), *signals, flush=True)
sys.stdin.readline()
"""


@pytest.mark.long
def test_sigterm_to_the_process_group_ends_java_before_python_can_stop_its_queries() -> None:
    """`timeout`, shells and supervisors signal the whole group; a pipeline then stops its queries,
    for which it needs Java."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "started\n"
        java = children(process.pid)
        os.killpg(process.pid, signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "3 SIGTERM\n"
        process.kill()
        eventually(
            lambda: not any(map(is_running, java)), "the end of Java after kill -9 of Python"
        )
    finally:
        kill_with_children(process.pid)
        process.communicate()


@pytest.mark.long
def test_ctrl_c_while_spark_starts_leaves_java_running_forever() -> None:
    """PySpark deletes the folder in which Java announces its port; Java then fails before it reads
    its standard input, and does not notice the end of Python."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    java: list[int] = []

    def is_starting() -> bool:
        java[:] = children(process.pid)
        return any(map(is_java, java))

    try:
        eventually(is_starting, "the start of Java")  # Spark's scripts have run before
        process.send_signal(signal.SIGINT)
        process.wait(30)
        eventually(lambda: not any(map(is_running, java)), "the end of Java after Ctrl-C")
    finally:
        for pid in [process.pid, *java]:
            kill_with_children(pid)
        process.communicate()


def is_java(pid: int) -> bool:
    with contextlib.suppress(OSError):
        program, _, _ = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")
        return program.endswith(b"java")
    return False
