"""Runs the blocks of a Markdown page in order, in one folder, as a reader pastes them.

Programs run in this process and share their names. Commands run in bash; variables and exports stay
for later blocks. `strandlog serve` gets a terminal of its own: the runner waits for its `ready`
line and stops it at the end of the page, or where the page says so, and checks its exit code.

The text of a block changes in three ways only. The ports of the page become free ones, which
`strandlog serve` also gets as options, because other programs may use the usual ones. Lines with
`pip install` are left out, because everything is installed. `replace` has further substitutions,
for folders that another process resolves.

With a Spark session, SQL blocks and `strandlog pipeline` run in it, in this process: a Java for
each command would take most of the time. Streams that a page starts must process what is there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import free_port
from tests.support.guide_blocks import COMMANDS, OUTPUT, PROGRAMS, Block, matches, read_blocks

from strandlog.cli.main import run as run_command

PORTS = ("9092", "9093", "9094", "9095")
SERVE = re.compile(r"^strandlog serve\b(?!.*[&>])")
COMMENT = re.compile(r"\s+#\s.*$")
PATIENCE_SECONDS = 300  # on a busy machine


class GuideRunner:
    """One run of a page. `commands` has `strandlog` (quick_commands.py); `names` are the variables
    of the programs, and `output` is what the last block printed."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        commands: Path,
        replace: Mapping[str, str] | None = None,
        *,
        spark: Any = None,
    ) -> None:
        self.blocks = read_blocks(page)
        self.names: dict[str, Any] = {"__name__": "guide"}
        self._spark = spark
        self.output = ""
        self.all_output = ""
        self._folder = folder / "guide"
        self._folder.mkdir()
        self._state = folder / "state.sh"
        ports = {port: str(free_port()) for port in PORTS}
        self._replace = {**ports, **(replace or {})}
        self._listening = [f"--port={ports['9092']}", f"--grpc-port={ports['9094']}"]
        self._listening += [f"--http-port={ports['9095']}"]
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("STRANDLOG_")
        }
        path = os.pathsep.join([str(commands), os.environ["PATH"]])
        self._environment |= {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._environment["COLUMNS"] = "200"
        self._broker: subprocess.Popen[str] | None = None
        self._log_reader: threading.Thread | None = None
        self._groups: list[int] = []

    @property
    def folder(self) -> Path:
        return self._folder

    def run(self) -> None:
        """Run all blocks; the first that fails raises an AssertionError that names its line."""
        with contextlib.chdir(self._folder):
            try:
                for block in self.blocks:
                    self._run_block(block)
                    self.all_output += self.output
                self._end_streams()
                self._stop_broker()
            finally:
                self._clean_up()

    def _run_block(self, block: Block) -> None:
        if block.stops_broker:
            self._stop_broker()
        if not block.is_run:
            return
        text = self._replaced(block.text)
        if block.note == "file":
            Path(block.note_value).parent.mkdir(parents=True, exist_ok=True)
            Path(block.note_value).write_text(text)
        elif block.language == OUTPUT:
            self._compare(block, text, self.output)
        elif block.language in PROGRAMS:
            self._run_program(block, text)
        elif block.language == "console":
            self._run_dialog(block, text)
        elif block.language == "sql" and self._spark is not None:
            self._spark.sql(text)
        elif block.language in COMMANDS:
            self._run_commands(block, text)
        else:
            raise AssertionError(block.problem())

    def _replaced(self, text: str) -> str:
        for old, new in self._replace.items():
            text = text.replace(old, new)
        return text

    def _compare(self, block: Block, expected: str, printed: str) -> None:
        assert matches(expected, printed), f"{block}: printed\n{printed}\nexpected\n{expected}"

    def _run_program(self, block: Block, text: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                lines = "\n" * block.line  # the page's line numbers in tracebacks
                exec(compile(lines + text, str(block.page), "exec"), self.names)
            except Exception as error:
                raise AssertionError(f"{block}: {error!r}\n{text}") from error
        self.output = printed.getvalue()

    def _run_dialog(self, block: Block, text: str) -> None:
        """Compare the output of each command; one without output must succeed."""
        for command, expected in dialog(text):
            code = self._shell(command)
            if expected:
                self._compare(block, expected, self.output)
            else:
                assert code == 0, f"{block}: {command}: exit code {code}\n{self.output}"

    def _run_commands(self, block: Block, text: str) -> None:
        lines = [line for line in text.splitlines() if not line.startswith("pip install")]
        commands: list[str] = []
        for line in lines:
            if SERVE.match(COMMENT.sub("", line)):
                self._expect_success(block, commands)
                commands = []
                self._start_broker(block, COMMENT.sub("", line))
            elif self._spark is not None and line.startswith("strandlog pipeline "):
                self._expect_success(block, commands)
                commands = []
                self._run_here(block, shlex.split(line, comments=True)[1:])
            else:
                commands.append(line)
        if block.note == "ctrl-c after":
            self._interrupt(block, "\n".join(commands), self._replaced(block.note_value))
        else:
            self._expect_success(block, commands)

    def _expect_success(self, block: Block, lines: list[str]) -> None:
        if any(line.strip() for line in lines):
            code = self._shell("\n".join(lines))
            assert code == 0, f"{block}: exit code {code}\n{self.output}"

    def _run_here(self, block: Block, arguments: list[str]) -> None:
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.redirect_stderr(printed),
            pytest.raises(SystemExit) as end,
        ):
            run_command(arguments)
        self.output = printed.getvalue()
        assert end.value.code == 0, f"{block}: {arguments}\n{self.output}"

    def _end_streams(self) -> None:
        for query in () if self._spark is None else self._spark.streams.active:
            query.processAllAvailable()
            query.stop()

    def _script(self, commands: str) -> list[str]:
        state = shlex.quote(str(self._state))
        before = f"set -eao pipefail\n[ ! -e {state} ] || . {state}\n"
        return ["bash", "-c", f"{before}{commands}\nexport -p > {state}\n"]

    def _popen(self, commands: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._script(commands),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._groups.append(process.pid)
        return process

    def _shell(self, commands: str) -> int:
        with self._popen(commands) as process:
            try:
                self.output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"no end after {PATIENCE_SECONDS} s: {commands}") from None
        return process.returncode

    def _interrupt(self, block: Block, commands: str, awaited: str) -> None:
        with self._popen(commands) as process:
            found = any(awaited in line for line in self._lines(process))
            os.killpg(process.pid, signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert found, f"{block}: ended without printing {awaited!r}: {rest}"

    def _lines(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """Lines of the output; a command that prints nothing for long is killed, which ends it."""
        timer = threading.Timer(PATIENCE_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            assert process.stdout is not None
            yield from iter(process.stdout.readline, "")
        finally:
            timer.cancel()

    def _start_broker(self, block: Block, command: str) -> None:
        self._stop_broker()
        words = shlex.split(command)
        words[2:2] = ["--grpc-port=0"] if self._names_listeners(words) else self._listening
        broker = self._popen(f"exec {shlex.join(words)}")
        printed = []
        for line in self._lines(broker):
            printed.append(line)
            if line.startswith("ready "):
                break
        assert printed and printed[-1].startswith("ready "), f"{block}: {''.join(printed)}"
        self._broker = broker
        # The broker must not wait for a reader of its log.
        self._log_reader = threading.Thread(target=broker.communicate, daemon=True)
        self._log_reader.start()

    @staticmethod
    def _names_listeners(words: list[str]) -> bool:
        """Whether the settings file of `serve` has addresses, which options would replace."""
        if "--config" not in words:
            return False
        return "listeners" in Path(words[words.index("--config") + 1]).read_text()

    def _stop_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            os.killpg(broker.pid, signal.SIGINT)
            assert self._log_reader is not None
            self._log_reader.join(PATIENCE_SECONDS)
            assert broker.returncode == 0, "a broker stops cleanly"

    def _clean_up(self) -> None:
        for group in self._groups:  # also what a page started in the background
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def dialog(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of a command and its output."""
    command, output = "", ""
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], ""
        else:
            output += f"{line}\n"
    yield command, output
