"""Starts Java outside the process group of Python, so that only Python gets its signals.

`timeout`, a shell and a terminal send a signal to all processes of a group. Java would end at once,
while Python is still stopping its queries and needs it. PySpark makes Java ignore SIGINT for this
reason, but not SIGTERM. In a session of its own, Java gets neither. It ends when Python ends, even
by kill -9: its standard input is then closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def own_process_group() -> Iterator[None]:
    """Inside the block, PySpark starts Java as the leader of a new session and process group."""
    from pyspark.core import context  # noqa: PLC0415 - an extra

    launch = context.launch_gateway
    options = {"start_new_session": True}
    context.launch_gateway = partial(launch, popen_kwargs=options)
    try:
        yield
    finally:
        context.launch_gateway = launch
