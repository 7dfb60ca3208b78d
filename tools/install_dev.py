"""Installs strandlog and its development dependencies into the running environment, with progress.

    python tools/install_dev.py        (make setup)
    python tools/install_dev.py docs   (make docs: only this dependency group)

uv installs the packages: it downloads and unpacks several at a time, which takes a third of pip's
time. uv itself comes from the same index, and gets the index, links and certificates that pip is
configured with. If uv cannot be installed or fails, the reason is printed and pip is used instead.

Prints one line per stage. While a stage runs, a terminal shows its state twice a second, and a pipe
gets it as a line every five seconds: how many packages are installed, and the last line of uv or
pip, which usually names a package that it downloads or builds. Neither program prints which package
it is installing, so the `dist-info` folders are counted. If pip fails, its complete output is
printed.

The dev dependency group is read here because pip versions from 2024 and earlier, which a fresh
machine may have, do not support dependency groups (PEP 735). Versions come from constraints.txt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
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
LINE_SECONDS = 5.0
CLEAR_LINE = "\r\033[K"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))


class Progress:
    """Prints the stages with their time, and what happens during a stage."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._is_terminal = sys.stdout.isatty()
        self._started = self._printed = time.monotonic()
        self._line = ""  # the last one that uv or pip printed

    def stage(self, text: str) -> None:
        clear = CLEAR_LINE if self._is_terminal else ""
        self._printed = time.monotonic()
        print(f"{clear}[{self._printed - self._started:4.0f} s] {text}", flush=True)

    def note(self, line: str) -> None:
        """Remember a line that uv or pip printed, unless it is uv's line about Python."""
        if not line.startswith("Using Python"):
            self._line = line.strip() or self._line

    def installed(self) -> str:
        """Return how many packages are installed, and what uv or pip printed last."""
        number = sum(1 for _ in SITE_PACKAGES.glob("*.dist-info"))
        text = f"{number} packages installed of about {self._expected}"
        return f"{text}; {self._line}" if self._line else text

    @contextlib.contextmanager
    def showing(self, state: Callable[[], str]) -> Iterator[None]:
        """Show the state while the block runs."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._show_until, args=(is_over, state), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _show_until(self, is_over: threading.Event, state: Callable[[], str]) -> None:
        while not is_over.wait(0.5):
            if self._is_terminal:
                width = shutil.get_terminal_size().columns - 1
                print(f"{CLEAR_LINE}{state()[:width]}", end="", flush=True)
            elif time.monotonic() - self._printed >= LINE_SECONDS - 0.5:
                self.stage(state())


def run(
    command: list[str],
    environment: dict[str, str] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> tuple[int, str]:
    """Run a command; return its exit code and its complete output."""
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            on_line(line)
    return process.returncode, "".join(lines)


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
    constrained = ["-c", str(CONSTRAINTS), *packages]
    with progress.showing(progress.installed):
        command = [*PIP, "install", "--progress-bar", "off", "-c", str(CONSTRAINTS), "uv"]
        code, output = run(command, on_line=progress.note)
        if code == 0:
            progress.note("uv resolves the versions of all packages")
            code, output = run([*UV, *constrained], uv_environment(), progress.note)
        if code != 0:
            progress.stage(
                f"uv failed; installing with pip, which takes longer. uv's output:\n{output}"
            )
            command = [*PIP, "install", "--progress-bar", "off", *constrained]
            code, output = run(command, on_line=progress.note)
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
    with progress.showing(lambda: "still compiling"):
        compile_tests()
    progress.stage("ready")


if __name__ == "__main__":
    main()
