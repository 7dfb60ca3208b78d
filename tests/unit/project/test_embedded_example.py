"""`examples/embedded.py` keeps every acknowledged record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "embedded.py"


@pytest.mark.slow
def test_no_acknowledged_record_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--keep", str(tmp_path / "data")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no acknowledged record was lost" in " ".join(done.stdout.split())
