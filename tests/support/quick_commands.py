"""`strandlog` for shell scripts of tests, without the half second that its imports take.

A process that has imported the command line waits on a socket. A small program on the search path,
also called `strandlog`, sends it the arguments, the folder, the environment and the standard
streams; the process forks, and the child runs the command. The program forwards SIGINT and SIGTERM,
and exits with the code of the command. Commands that are not in QUICK, such as those that start
Spark or a broker, run as `python -m strandlog`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CLIENT = """\
#!{python} -SE
import json, os, signal, socket, sys
arguments = sys.argv[1:]
if arguments[:1] not in {quick!r}:
    os.execv({python!r}, [{python!r}, "-m", "strandlog", *arguments])
call = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(call).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(call)
    child = int.from_bytes(server.recv(4), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    code = server.recv(4)
sys.exit(int.from_bytes(code, "big"))
"""
QUICK = (
    "topic",
    "produce",
    "consume",
    "group",
    "config",
    "schema",
    "user",
    "acl",
    "tls",
    "token",
    "quota",
)
SERVER = "from tests.support.quick_commands import serve; serve({address!r})"


@contextlib.contextmanager
def quick_commands(folder: Path) -> Iterator[Path]:
    """A folder with `strandlog` and `python`, for the search path."""
    folder.mkdir()
    address = str(folder / "socket")
    for name, text in (
        (
            "strandlog",
            CLIENT.format(python=sys.executable, address=address, quick=[[name] for name in QUICK]),
        ),
        ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.format(address=address)],
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield folder
    finally:
        process.kill()
        process.communicate()


def serve(address: str) -> None:
    """Fork for each command, until killed."""
    import confluent_kafka.admin  # noqa: F401

    from strandlog.cli import main

    for name in QUICK:
        importlib.import_module(main.COMMANDS[name][0])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    os.write(1, b"ready\n")
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:  # waits for the command, so that several can run at a time
            listener.close()
            _handle(connection)


def _handle(connection: socket.socket) -> None:
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    data = b""
    while len(data) < int.from_bytes(size, "big"):
        data += connection.recv(1 << 20)
    arguments, folder, environment = json.loads(data)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(arguments, folder, environment, streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(child.to_bytes(4, "big"))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
    os._exit(0)


def _run(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]
) -> None:
    from strandlog.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    code = 1
    try:
        main.run(arguments)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
