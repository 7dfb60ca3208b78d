"""Starts Java so that a signal that stops the program stops Python only.

`timeout`, a shell and a terminal send SIGTERM or SIGINT to all processes of a group, and systemd
sends SIGTERM to all processes of a service. Java would exit at once, while Python still needs it to
stop the queries. PySpark makes Java ignore SIGINT for this reason; here it ignores SIGTERM too, and
gets a session of its own, so that its Python workers do not get signals to the group. Java exits
when Python exits, even by kill -9, because that closes Java's standard input.

Java reads its standard input only after it has told Python its port. If Ctrl-C interrupts the wait
for the port, PySpark deletes the folder for it, and Java fails without exiting; so this module
kills Java then.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def keep_signals_from_java() -> Iterator[None]:
    """Inside the block, PySpark starts Java as the leader of a new session and process group, and
    Java ignores SIGTERM."""
    from pyspark import java_gateway  # noqa: PLC0415 - optional dependency
    from pyspark.core import context  # noqa: PLC0415 - optional dependency

    launch = context.launch_gateway
    popen = java_gateway.Popen
    started: list[subprocess.Popen[bytes]] = []

    def start_process(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        ignore_interrupts = options.get("preexec_fn")  # None on Windows
        if ignore_interrupts is not None:

            def ignore_signals() -> None:
                ignore_interrupts()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

            options["preexec_fn"] = ignore_signals
        process: subprocess.Popen[bytes] = popen(*args, **options)
        started.append(process)
        return process

    def launch_gateway(*args: Any, **options: Any) -> Any:
        java_gateway.Popen = start_process
        try:
            return launch(*args, **options, popen_kwargs={"start_new_session": True})
        except BaseException:
            for process in started:
                _kill_group(process)
            raise
        finally:
            java_gateway.Popen = popen

    context.launch_gateway = launch_gateway
    try:
        yield
    finally:
        context.launch_gateway = launch


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill Java and the scripts that start it; all are in the process group of the first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
