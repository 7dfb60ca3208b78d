"""The example of an embedded log keeps its word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "embedded.py"


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(EXAMPLE), "--keep", str(tmp_path / "data")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "nothing acknowledged was lost" in " ".join(told.stdout.split())
