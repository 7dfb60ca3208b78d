"""Keeps SIGINT and SIGTERM from stopping Spark's Java process before Python has used it.

`timeout`, a shell and a terminal send SIGTERM or SIGINT to all processes of a group, and systemd
sends SIGTERM to all processes of a service. Java would exit immediately, but Python needs it to
stop the queries. PySpark makes Java ignore SIGINT for this reason. This module makes it ignore
SIGTERM too, and starts it in a session of its own, so that its Python workers do not receive
signals that are sent to the program's group. Java exits when Python exits, even after kill -9,
because its standard input then closes.

Java starts to read its standard input only after it has reported its port to Python. If Ctrl-C
interrupts the wait for the port, PySpark deletes the folder in which Java would report it, and Java
fails without exiting. This module therefore kills Java if the start fails for any reason.
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
    """Kill the process group that `process` leads: Java and the scripts that start it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
