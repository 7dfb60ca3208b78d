"""The commands of the security guide, run in order in an empty folder, as a reader pastes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broker_process import free_port

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "security.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATIENCE_SECONDS = 600  # on a busy machine

pytestmark = pytest.mark.timeout(900)


def commands(folder: Path) -> Path:
    """A folder with `strandlog` and `python` of this environment, for the search path."""
    folder.mkdir()
    for name, arguments in (("strandlog", "-m strandlog "), ("python", "")):
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
        file.chmod(0o755)
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="the guide's commands need bash")
@pytest.mark.long
def test_the_commands_of_the_guide_secure_a_broker(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) == 7
    # Other ports, because those of the guide may be in use.
    script = "\n".join(["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT", *blocks])
    for port in ("9093", "9095"):
        script = script.replace(port, str(free_port()))
    script = script.replace("serve ./data", "serve ./data --no-grpc")
    work = tmp_path / "work"
    work.mkdir()
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("STRANDLOG_")
    }
    path = f"{commands(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=work,
        env={**variables, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert "denied: " in done.stdout
    assert done.stdout.split()[-1] == "100"
    passwords = [file.read_text().strip() for file in (work / "secrets").iterdir()]
    assert len(passwords) == 3
    shown = done.stdout + done.stderr + (work / "broker.log").read_text()
    assert not [each for each in passwords if each in shown]
    kept = [path.read_bytes() for path in work.rglob("*") if path.is_file()]
    for password in passwords:  # only in its own file, not in the data, checkpoints or logs
        assert sum(password.encode() in content for content in kept) == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="the guide's commands need bash")
def test_the_wait_for_a_broker_that_fails_to_start_ends(tmp_path: Path) -> None:
    [block] = [each for each in BLOCK.findall(GUIDE.read_text()) if "until " in each]
    script = f"strandlog() {{ return 1; }}\n{block}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=10, check=True)
