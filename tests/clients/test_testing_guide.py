"""The example of a migration in the testing guide, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, folder: Path) -> str:
    """Run pytest with no plugin but ours, as in a project that has only strandlog installed."""
    plugin = ["-p", "strandlog.testing.pytest_plugin", "-p", "no:cacheprovider"]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", *plugin, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_tests_of_the_order_service_pass(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    printed = _run("examples/testing", folder=tmp_path)
    assert re.search(r"^(6 passed|5 passed, 1 skipped)", printed, re.MULTILINE), printed
