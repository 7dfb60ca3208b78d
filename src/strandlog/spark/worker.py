"""Our errors in Spark's terminal: one line, without tracebacks of Spark's workers.

A source runs in Python processes of Spark's. What they raise reaches the user as text, after a
traceback through Spark's files that says nothing about a wrong option. An error of our tree is a
message to the user, so it goes alone. Mistakes inside strandlog keep their traceback.

Spark's workers leave the traceback out when SPARK_HIDE_TRACEBACK is set, and look it up at the
moment an error arrives, just before they end. So it is set in that moment, in that process: the
errors of the user's own functions are told as ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from strandlog.errors import StrandlogError

IN_WORKER = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def in_one_line() -> Iterator[None]:
    """Also serves as a decorator. What is raised inside is told without a traceback."""
    try:
        yield
    except StrandlogError:
        name, value = IN_WORKER
        if os.environ.get(name) == value:
            os.environ[HIDE] = "1"
        raise
