"""Measures how long opening a folder takes, after a clean stop and after kill -9, and the memory
usage of an idle partition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import strandlog
from benchmarks.measure import Row, seconds
from strandlog.record.builder import build_batch

GIB = 1024**3
PARTITIONS = 100

# Fills a folder, then either closes it or waits to be killed with an unsynced tail.
_FILL = """
import sys, time, strandlog
from strandlog.record.builder import build_batch
path, total, tail, ending = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
log = strandlog.open(path)
if "t" not in log.topics():
    log.create_topic("t", {partitions}, {{"flush.ms": 86400000, "segment.bytes": 16 * 1024 * 1024}})
batch = build_batch(log.clock.now_ms(), [b"x" * 1000] * 64)
logs = log.broker._catalog.logs("t")
for number in range(total // len(batch)):
    logs[number % len(logs)].append(batch)
log.flush()
for number in range(tail // len(batch)):
    logs[number % len(logs)].append(batch)
if ending == "close":
    log.close()
print("ready", flush=True)
time.sleep(600)
"""


def _fill(path: Path, total: int, tail: int, ending: str) -> None:
    code = _FILL.format(partitions=PARTITIONS)
    arguments = [sys.executable, "-c", code, str(path), str(total), str(tail), ending]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGKILL)


def _open_seconds(path: Path) -> tuple[float, int]:
    """Return the seconds to open a folder, and the number of bytes that recovery read."""
    started = time.perf_counter()
    log = strandlog.open(path)
    took = time.perf_counter() - started
    walked = sum(part.last_report.scanned_bytes for part in log.broker._catalog.logs("t"))
    log.close()
    return took, walked


def opening_rows(folder: Path, total_bytes: int) -> list[Row]:
    """Measure opening 100 partitions after a clean stop, and after kill -9 with unsynced tails."""
    path = folder / "opening"
    size = f"{total_bytes / GIB:.3g} GB, {PARTITIONS} partitions"
    _fill(path, total_bytes, 0, "close")
    clean, _ = _open_seconds(path)
    rows = [Row(f"open after a clean stop, {size}", clean, "s", 1.0, higher_is_better=False)]
    for tail_mb in (0, 64, 256):
        _fill(path, 0, tail_mb * 1024 * 1024, "kill")
        took, walked = _open_seconds(path)
        rows.append(
            Row(
                f"open after kill -9, {tail_mb} MB unsynced",
                took,
                "s",
                note=f"recovery read {walked / 1e6:,.0f} MB",
            )
        )
    return rows


def memory_rows(folder: Path, partitions: int = 500) -> list[Row]:
    """Measure the Python allocations (tracemalloc) per open idle partition, without and with
    records."""
    without, with_records = (
        _memory_kb(folder / f"memory-{batches}", partitions, batches) for batches in (0, 40)
    )
    name = "memory per idle partition"
    return [
        Row(f"{name}, no records", without, "KB", 20, higher_is_better=False),
        Row(f"{name}, with records", with_records, "KB", 20, higher_is_better=False),
    ]


def _memory_kb(path: Path, partitions: int, batches: int) -> float:
    with strandlog.open(path / "log") as log:
        log.create_topic("t", partitions)
        batch = build_batch(log.clock.now_ms(), [b"x" * 1000] * 16)
        for partition in log.broker._catalog.logs("t"):
            for _ in range(batches):
                partition.append(batch)
    tracemalloc.start()
    with strandlog.open(path / "empty") as empty:
        base, _ = tracemalloc.get_traced_memory()
        empty.topics()
        log = strandlog.open(path / "log")
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        log.close()
    return (used - base) / partitions / 1024


def start_rows() -> list[Row]:
    """Measure how long `import strandlog` takes."""
    took = min(
        seconds(lambda: subprocess.run([sys.executable, "-c", "import strandlog"], check=True))
        for _ in range(3)
    )
    bare = min(
        seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
        for _ in range(3)
    )
    return [Row("import strandlog, over bare python", (took - bare) * 1000, "ms")]
