"""Starts and stops a broker and a pipeline as child processes of an example.

Each process has its own session, so that Ctrl-C reaches only the example, which then stops the
processes in order or leaves them running. Their output is written to files in the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from strandlog.cli.formats.pipeline_table import QueryTable
from strandlog.spark.monitoring.progress import QueryReport

START_SECONDS = 600
STOP_SECONDS = 30
POLL_SECONDS = 0.1


class ProcessEndedError(Exception):
    """A process ended unexpectedly or took too long."""


class StrandlogProcess:
    """A `strandlog` command whose output is written to files."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._folder = folder
        self.out = folder / f"{name}.out"
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self, *arguments: str) -> None:
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strandlog", *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-5:]
            raise ProcessEndedError(f"the {self._name} has ended:\n" + "\n".join(lines))

    def wait_for_line(self, path: Path, words: str) -> str:
        """Wait for a line that contains `words` in a file, and return it."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in path.read_text(errors="replace").splitlines():
                if words in line:
                    return line
            self.check_alive()
            time.sleep(POLL_SECONDS)
        raise ProcessEndedError(f"the {self._name} did not start in {START_SECONDS} s")

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not exit in time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including Spark's JVM
            process.wait()


class Broker(StrandlogProcess):
    """`strandlog serve` on free ports, with its console."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "broker")
        self.data = folder / "data"
        self.address = ""
        self.console = ""

    def start(self) -> None:
        self.spawn("serve", str(self.data), "--port", "0", "--http-port", "0")
        ready = self.wait_for_line(self.out, "ready kafka=")
        listeners = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.address = listeners["kafka"]
        self.console = f"http://{listeners['http']}"


class Pipeline(StrandlogProcess):
    """`strandlog pipeline run`, and the progress that it prints."""

    def __init__(self, folder: Path, file: Path) -> None:
        super().__init__(folder, "pipeline")
        self._file = file.resolve()
        self._position = 0  # of the output that has not been read yet
        self.rows: dict[str, int] = {}
        self.table = QueryTable([])

    def start(self, bootstrap: str, *arguments: str) -> None:
        self.spawn("pipeline", "run", str(self._file), "-b", bootstrap, "--json", *arguments)

    def wait_until_started(self) -> None:
        self.wait_for_line(self.log, "press Ctrl-C to stop")

    def read_progress(self) -> None:
        """Read the progress printed since the last call."""
        self.check_alive()
        with self.out.open("rb") as out:
            out.seek(self._position)
            lines = out.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break  # still being written
            self._position += len(line)
            report = QueryReport(**json.loads(line))
            self.rows[report.name] = self.rows.get(report.name, 0) + report.rows
            self.table.add(report)

    def wait_for(self, rows: dict[str, int], seconds: float) -> None:
        """Wait until each query has read its number of records; keys are parts of query names."""
        deadline = time.monotonic() + seconds
        while True:
            self.read_progress()
            read = {
                part: sum(count for name, count in self.rows.items() if part in name)
                for part in rows
            }
            if all(read[part] >= wanted for part, wanted in rows.items()):
                return
            if time.monotonic() > deadline:
                raise ProcessEndedError(
                    f"the pipeline takes too long: it has read {read} of {rows}"
                )
            time.sleep(POLL_SECONDS)
