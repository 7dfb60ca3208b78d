"""Starts Java outside Python's process group, so that signals to the group reach only Python.

`timeout`, a shell and a terminal send a signal to all processes of a group. Java would exit at
once, while Python still needs it to stop the queries. PySpark makes Java ignore SIGINT for this
reason, but not SIGTERM. In a session of its own, Java gets neither signal. Java exits when Python
exits, even by kill -9, because that closes Java's standard input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def own_process_group() -> Iterator[None]:
    """Inside the block, PySpark starts Java as the leader of a new session and process group."""
    from pyspark.core import context  # noqa: PLC0415 - optional dependency

    launch = context.launch_gateway
    options = {"start_new_session": True}
    context.launch_gateway = partial(launch, popen_kwargs=options)
    try:
        yield
    finally:
        context.launch_gateway = launch
