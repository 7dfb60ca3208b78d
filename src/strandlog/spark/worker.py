"""Decorators for code that runs in Spark's Python workers.

`hide_traceback` shortens errors. An exception raised in a worker reaches the user as text, after a
traceback through Spark's files that does not help to find an invalid option. A `StrandlogError` is
a message to the user, so it is sent without the traceback; other exceptions keep theirs. Spark's
worker omits the traceback if SPARK_HIDE_TRACEBACK is set when it handles an error, just before it
exits. The variable is set only at that moment and in that process, so errors in the user's own
functions keep their traceback.

`freeze_imports` makes garbage collection cheap. A worker calls `gc.collect()` after each task and
after each request from the driver. With compiled code and protocol schemas loaded, each collection
visits 160,000 objects and takes 70 ms of CPU time, longer than a small task. These objects live
as long as the process, so they are excluded from collection after any call that imported modules.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from strandlog.errors import StrandlogError

IN_WORKER = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
HIDE = "SPARK_HIDE_TRACEBACK"

_modules = 0  # the number of modules loaded at the last freeze


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Send a StrandlogError to the driver without a traceback. Also usable as a decorator."""
    try:
        yield
    except StrandlogError:
        name, value = IN_WORKER
        if os.environ.get(name) == value:
            os.environ[HIDE] = "1"
        raise


@contextmanager
def freeze_imports() -> Iterator[None]:
    """In a worker, exclude all existing objects from garbage collection after the block, if modules
    were imported since the last time. Also usable as a decorator."""
    global _modules  # noqa: PLW0603 - one per process
    try:
        yield
    finally:
        name, value = IN_WORKER
        if len(sys.modules) != _modules and os.environ.get(name) == value:
            gc.freeze()
            _modules = len(sys.modules)
