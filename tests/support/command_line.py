"""Runs the command line in a subprocess or in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import strandlog
from strandlog.cli.main import run
from strandlog.client.api import OpenLog, ReadableLog


class Result(NamedTuple):
    """Output and exit code of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """`strandlog` with its own data folder or with a broker."""

    def __init__(self, data: Path, bootstrap: str | None = None) -> None:
        self.data = data
        self.bootstrap = bootstrap
        target = {"STRANDLOG_DATA": str(data)}
        if bootstrap is not None:
            target = {"STRANDLOG_BOOTSTRAP": bootstrap}
        own = {"COLUMNS": "200", "XDG_CONFIG_HOME": str(data.parent / "config")}
        self.env = {**os.environ, **target, **own}

    @property
    def is_wire(self) -> bool:
        return self.bootstrap is not None

    def open_log(self) -> OpenLog:
        """Open the log of the commands for writing."""
        if self.bootstrap is not None:
            return strandlog.connect(self.bootstrap)
        return strandlog.open(self.data)

    def read_log(self) -> ReadableLog:
        """Open the log of the commands for reading."""
        if self.bootstrap is not None:
            return strandlog.connect(self.bootstrap)
        return strandlog.read(self.data)

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command without waiting for it."""
        pipe = subprocess.PIPE
        streams = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": self.env, **options}
        command = [sys.executable, "-m", "strandlog", *arguments]
        return subprocess.Popen(command, **streams)

    def __call__(self, *arguments: str, given: bytes = b"", code: int = 0) -> Result:
        """Run a command in a subprocess and check its exit code."""
        with self.popen(*arguments) as process:
            out, err = process.communicate(given, timeout=180)
        return _checked(Result(process.returncode, out, err.decode()), code)

    def inside(self, *arguments: str, given: bytes = b"", code: int | None = 0) -> Result:
        """Run a command in this process, which saves the start of Python. With `code=None`, accept
        any exit code."""
        streams = [io.TextIOWrapper(io.BytesIO(data)) for data in (given, b"", b"")]
        stdin, stdout, stderr = streams
        with (
            mock.patch.dict(os.environ, self.env, clear=True),
            mock.patch.object(sys, "stdin", stdin),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            try:
                run(list(arguments))
            except SystemExit as end:
                ended = end.code
            for stream in (stdout, stderr):
                stream.flush()
        out, err = (stream.buffer.getvalue() for stream in (stdout, stderr))
        assert isinstance(ended, int)
        return _checked(Result(ended, out, err.decode()), code)


def _checked(result: Result, code: int | None) -> Result:
    assert code in (None, result.code), result
    assert "Traceback" not in result.err, result.err
    return result
