"""`make demo` on a month of flights: broker, replay, Spark, and pandas to check."""

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
pytestmark = pytest.mark.xdist_group("jvm")
COMMAND = [sys.executable, "-m", "examples.demo", "--months", "1"]

pytest.importorskip("pyspark", reason="the demo needs the spark extra")


def test_the_demo_agrees_with_pandas_and_leaves_nothing_behind(tmp_path: Path) -> None:
    picture = tmp_path / "flights.png"
    told = subprocess.run(
        [*COMMAND, "--seconds", "0", "--plot", str(picture)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "pandas agrees" in told.stdout
    [page] = re.findall(r"in a browser: (http://\S+)", told.stdout)
    assert page.endswith("/#/pipelines/flights")
    assert picture.stat().st_size > 20_000
    assert not list(tmp_path.glob("strandlog-demo-*"))


def test_ctrl_c_stops_the_demo_with_all_its_processes(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--seconds", "600"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as demo:
        try:
            eventually(lambda: _started(tmp_path), "the demo starts its processes", 120)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(90) == 130
        finally:
            demo.kill()
    assert not list(tmp_path.glob("strandlog-demo-*"))
    assert not _processes_of(tmp_path)


def _started(folder: Path) -> bool:
    logs = list(folder.glob("strandlog-demo-*/pipeline.log"))
    return bool(logs) and "Spark" in logs[0].read_text(errors="replace")


def _processes_of(folder: Path) -> list[str]:
    """Who still works in the demo's folder: broker, pipeline, and Spark's Java."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = (process / "cwd").readlink()
        except OSError:
            continue  # it has ended, or is none of ours
        if place.is_relative_to(folder):
            found.append(f"{process.name} in {place}")
    return found
