"""`make demo` on a month of flights: broker, replay, Spark, and the comparison with pandas."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.demo", "--months", "1"]

pytest.importorskip("pyspark", reason="the demo needs the spark extra")


def test_the_demo_agrees_with_pandas_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plot = tmp_path / "flights.png"
    done = subprocess.run(
        [*COMMAND, "--seconds", "0", "--plot", str(plot)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pandas agrees" in done.stdout
    [page] = re.findall(r"in a browser: (http://\S+)", done.stdout)
    assert page.endswith("/#/pipelines/flights")
    assert plot.stat().st_size > 20_000
    assert not list(tmp_path.glob("strandlog-demo-*"))
    assert not _processes_in(tmp_path)


def test_ctrl_c_stops_the_demo_with_all_its_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--seconds", "600"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as demo:
        try:
            # Broker, pipeline and Spark's JVM. It need not be ready: the test above stops it so.
            eventually(lambda: len(_processes_in(tmp_path)) >= 3, "the demo starts Spark", 120)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(90) == 130
        finally:
            demo.kill()
    assert not list(tmp_path.glob("strandlog-demo-*"))
    eventually(lambda: not _processes_in(tmp_path), "the JVM ends", 60)


def _processes_in(folder: Path) -> list[str]:
    """Processes with a working directory in a folder: broker, pipeline, and Spark's JVM."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            working_directory = (process / "cwd").readlink()
        except OSError:
            continue  # it has ended, or belongs to another user
        if working_directory.is_relative_to(folder):
            found.append(f"{process.name} in {working_directory}")
    return found
