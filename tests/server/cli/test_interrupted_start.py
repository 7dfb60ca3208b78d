"""Ctrl-C while Python still imports the modules of a command: exit code 130, and no output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandlog.cli.main import COMMANDS

# Sends SIGINT to the process when it imports a module; Python runs this file before the program.
INTERRUPTION = """
import os, signal, sys

class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            os.kill(os.getpid(), signal.SIGINT)
            len(name)  # the handler runs here

sys.meta_path.insert(0, Interruption())
"""
MODULE = ["-m", "strandlog"]
SCRIPT = ["-c", "import sys\nfrom strandlog.__main__ import main\nsys.exit(main())"]


def _interrupted(folder: Path, start: list[str], module: str, *words: str) -> tuple[int, str]:
    (folder / "sitecustomize.py").write_text(INTERRUPTION)
    search = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": search, "INTERRUPTED_IMPORT": module}
    found = subprocess.run(
        [sys.executable, *start, *words], env=env, capture_output=True, text=True, check=False
    )
    return found.returncode, found.stdout + found.stderr


@pytest.mark.parametrize("start", [MODULE, SCRIPT], ids=["module", "script"])
@pytest.mark.parametrize(
    "module",
    ["strandlog.cli.interruption", "strandlog.errors", "typing", "typer", "strandlog.cli.main"],
)
def test_ctrl_c_while_the_command_line_is_imported_prints_nothing(
    tmp_path: Path, start: list[str], module: str
) -> None:
    assert _interrupted(tmp_path, start, module, "topic", "list", "--help") == (130, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_while_a_command_is_imported_prints_nothing(tmp_path: Path, command: str) -> None:
    module = COMMANDS[command][0]
    words = [command, "--help"]
    assert _interrupted(tmp_path, MODULE, module, *words) == (130, "")


@pytest.mark.parametrize("module", ["strandlog.cli.start_server", "strandlog.server.app"])
def test_ctrl_c_while_the_broker_is_imported_prints_nothing(tmp_path: Path, module: str) -> None:
    words = ["serve", str(tmp_path / "data"), "--port", "0", "--no-http"]
    assert _interrupted(tmp_path, MODULE, module, *words) == (130, "")
