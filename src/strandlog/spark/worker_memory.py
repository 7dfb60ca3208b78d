"""Spares Spark's Python workers a walk through everything that they have imported.

A worker calls `gc.collect()` after each task, and after each question of the driver. With compiled
code and the schemas of the protocol loaded that is 160,000 objects to look at, 70 ms of processor
time: more than a small task takes. They stay as long as the process does, so the collector is told
to leave them alone, at the end of every piece of work that has imported something.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from strandlog.spark.worker import IN_WORKER

_modules = 0  # that were there when the collector was told last


@contextmanager
def settling() -> Iterator[None]:
    """Also serves as a decorator. What is there at the end of the work inside is there to stay."""
    global _modules  # noqa: PLW0603 - of the process, as its memory is
    try:
        yield
    finally:
        name, value = IN_WORKER
        if len(sys.modules) != _modules and os.environ.get(name) == value:
            gc.freeze()
            _modules = len(sys.modules)
