"""Installs strandlog and its development dependencies into the running environment, with progress.

    python tools/install_dev.py        (make setup)
    python tools/install_dev.py docs   (make docs: only this dependency group)

uv installs the packages: it downloads and unpacks several at a time, which takes a third of pip's
time. uv itself comes from the same index, and gets the index, links and certificates that pip is
configured with. If uv cannot be installed or fails, the reason is printed and pip is used instead.

Prints one line per stage. While packages are installed, a terminal shows a running count, and a
pipe gets a line for every 20 packages. Neither program prints which package it is installing, so
the `dist-info` folders are counted. If pip fails, its complete output is printed.

The dev dependency group is read here because pip versions from 2024 and earlier, which a fresh
machine may have, do not support dependency groups (PEP 735). Versions come from constraints.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PIP = [sys.executable, "-m", "pip"]
UV = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable]
# The names in pip's configuration, and the variables that uv reads.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
LINE_EVERY = 20
CLEAR_LINE = "\r\033[K"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


class Progress:
    """Prints the stages with their time, and how many packages are installed."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._is_terminal = sys.stdout.isatty()
        self._shown = 0
        self._started = time.monotonic()

    def stage(self, text: str) -> None:
        clear = CLEAR_LINE if self._is_terminal else ""
        print(f"{clear}[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)

    def count_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(0.5):
            number = sum(1 for _ in SITE_PACKAGES.glob("*.dist-info"))
            text = f"{number} packages installed of about {self._expected}"
            if self._is_terminal:
                print(f"{CLEAR_LINE}{text}", end="", flush=True)
            elif number >= self._shown + LINE_EVERY:
                self.stage(text)
                self._shown = number


def run(command: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command; return its exit code and its complete output."""
    ended = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.returncode, ended.stdout


def uv_environment() -> dict[str, str]:
    """Return this process's environment, with pip's configuration in uv's variables."""
    environment = dict(os.environ)
    code, listing = run([*PIP, "config", "list"])
    for line in listing.splitlines() if code == 0 else []:
        name, _, value = line.partition("=")
        variable = UV_VARIABLES.get(name.rpartition(".")[2])
        if variable is not None:
            separator = "," if name.endswith("find-links") else " "
            environment.setdefault(variable, separator.join(value.strip("'").split()))
    return environment


def install(progress: Progress, packages: list[str]) -> None:
    """Install with uv or, if that fails, with pip. If pip fails too, print its output and exit."""
    is_over = threading.Event()
    counting = threading.Thread(target=progress.count_until, args=(is_over,), daemon=True)
    counting.start()
    constrained = ["-c", str(CONSTRAINTS), *packages]
    code, output = run([*PIP, "install", "-c", str(CONSTRAINTS), "uv"])
    if code == 0:
        code, output = run([*UV, *constrained], uv_environment())
    if code != 0:
        progress.stage(
            f"uv failed; installing with pip, which takes longer. uv's output:\n{output}"
        )
        code, output = run([*PIP, "install", "--progress-bar", "off", *constrained])
    is_over.set()
    counting.join()
    if code != 0:
        sys.exit(f"\n{output}")


def compile_tests() -> None:
    """Collect the tests once, which caches their bytecode and the compiled kernels. Otherwise each
    worker of the first test run would compile all of them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def main() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    progress = Progress(len(CONSTRAINTS.read_text().splitlines()))
    groups = pyproject["dependency-groups"]
    if names := sys.argv[1:]:
        progress.stage(f"installing {', '.join(names)}")
        install(progress, [each for name in names for each in groups[name]])
        return
    progress.stage("installing packages")
    install(progress, ["-e", ".[all]", *groups["dev"]])
    progress.stage("compiling the package and its tests")
    compile_tests()
    progress.stage("ready")


if __name__ == "__main__":
    main()
