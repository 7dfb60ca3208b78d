"""A worker's collector passes over what was imported, and over nothing that came later."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from strandlog.spark.worker import freeze_imports

def work():
    import strandlog.client.wire.client

with freeze_imports():
    work()
frozen = gc.get_freeze_count()
with freeze_imports():
    kept = [[] for _ in range(1000)]
print(frozen, gc.get_freeze_count() - frozen)
"""


def frozen(**environment: str) -> list[int]:
    """(how many objects are left alone after some work, how many more after work of no import)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(number) for number in done.stdout.split()]


def test_garbage_collection_after_a_small_task_skips_imported_modules() -> None:
    imported, later = frozen(SPARK_PYTHON_RUNTIME="PYTHON_WORKER")
    assert imported > 10_000
    assert later <= 0


def test_nothing_is_frozen_outside_of_a_worker() -> None:
    assert frozen() == [0, 0]
