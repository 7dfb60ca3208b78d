"""Installs strandlog and its development dependencies into the running environment, with progress.

    python tools/install_dev.py        (make setup)

Prints one line per stage. While pip collects and installs packages, a terminal shows a running
count, and a pipe gets a line for every 20 packages. If pip fails, its complete output is printed.

pip does not report which package it is installing, so the `dist-info` folders are counted. The dev
dependency group is read here because pip versions from 2024 and earlier, which a fresh machine may
have, do not support dependency groups (PEP 735). Versions come from constraints.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PIP = [sys.executable, "-m", "pip", "install", "-c", str(CONSTRAINTS), "--progress-bar", "off"]
COLLECTED = re.compile(r"(?:Collecting|Processing|Obtaining|Requirement already satisfied:) (\S+)")
INSTALLING = re.compile(r"Installing collected packages: (.+)")
LINE_EVERY = 20
CLEAR_LINE = "\r\033[K"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


class Progress:
    """Turns pip's output into stage lines and package counts."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._is_terminal = sys.stdout.isatty()
        self._collected: set[str] = set()
        self._shown = 0
        self._started = time.monotonic()
        self._is_over = threading.Event()

    def stage(self, text: str) -> None:
        clear = CLEAR_LINE if self._is_terminal else ""
        print(f"{clear}[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)
        self._shown = 0

    def pip_line(self, line: str) -> None:
        if found := INSTALLING.match(line):
            self.stage("installing packages")
            count = len(found[1].split(","))
            threading.Thread(target=self._watch, args=(count, installed()), daemon=True).start()
        elif found := COLLECTED.match(line.strip()):
            name = re.split(r"[<>=!~;\[( ]", Path(found[1]).name)[0]
            self._collected.add(name)
            self._count(len(self._collected), f"packages collected of about {self._expected}")

    def pip_ended(self) -> None:
        self._is_over.set()
        self._is_over = threading.Event()

    def _watch(self, count: int, before: int) -> None:
        is_over = self._is_over
        while not is_over.wait(0.5):
            self._count(installed() - before, f"packages installed of {count}")

    def _count(self, number: int, what: str) -> None:
        if self._is_terminal:
            print(f"{CLEAR_LINE}{number} {what}", end="", flush=True)
        elif number >= self._shown + LINE_EVERY:
            self.stage(f"{number} {what}")
            self._shown = number


def installed() -> int:
    return sum(1 for _ in SITE_PACKAGES.glob("*.dist-info"))


def install(progress: Progress, *what: str) -> None:
    """Run pip and report its progress; if it fails, print its output and exit."""
    output = []
    pipe, joined = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen([*PIP, *what], stdout=pipe, stderr=joined, text=True, cwd=ROOT) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            output.append(line)
            progress.pip_line(line)
    progress.pip_ended()
    if pip.returncode:
        sys.exit("".join(["\n", *output]))


def compile_tests() -> None:
    """Collect the tests once, which caches their bytecode and the compiled kernels. Otherwise each
    worker of the first test run would compile all of them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    progress = Progress(len(CONSTRAINTS.read_text().splitlines()))
    progress.stage("upgrading pip")
    install(progress, "--upgrade", "pip")
    progress.stage("collecting packages")
    install(progress, "-e", ".[all]", *pyproject["dependency-groups"]["dev"])
    progress.stage("compiling the package and its tests")
    compile_tests()
    progress.stage("ready")


if __name__ == "__main__":
    main()
