"""The commands of the security guide, run in order in an empty folder, as a reader pastes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.guide_blocks import read_blocks
from tests.support.guide_runner import GuideRunner
from tests.support.guides import guide
from tests.support.quick_commands import quick_commands

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("bash") is None, reason="the guide's commands need bash"),
]


@pytest.mark.long
def test_the_commands_of_the_guide_secure_a_broker(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    with quick_commands(tmp_path / "bin") as commands:
        guided = GuideRunner(guide("security"), tmp_path, commands)
        guided.run()
    assert "denied: " in guided.all_output
    assert "\n100\n" in guided.all_output  # invoices
    work = guided.folder
    passwords = [file.read_text().strip() for file in (work / "secrets").iterdir()]
    assert len(passwords) == 3
    shown = guided.all_output + (work / "broker.log").read_text()
    assert not [each for each in passwords if each in shown]
    kept = [path.read_bytes() for path in work.rglob("*") if path.is_file()]
    for password in passwords:  # only in its own file, not in the data, checkpoints or logs
        assert sum(password.encode() in content for content in kept) == 1


def test_the_wait_for_a_broker_that_fails_to_start_ends(tmp_path: Path) -> None:
    [block] = [each.text for each in read_blocks(guide("security")) if "until " in each.text]
    script = f"strandlog() {{ return 1; }}\n{block}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=10, check=True)
