"""Uses an embedded log in a folder, without a broker: `python examples/embedded.py` (30 seconds).

A writer process sends orders and is killed with kill -9. When the folder is opened again, all
acknowledged records are still there. A read-only log reads the files of the killed writer, two
consumers in a group share the partitions, and compaction keeps the last record of each customer.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import strandlog

PARTITIONS = 3
CUSTOMERS = 500
SECONDS_OF_WRITING = 4

console = Console()

# The writer prints the number of records that have been fsynced; these must survive the kill.
WRITER = """
import sys, strandlog
log = strandlog.open(sys.argv[1])
producer = log.producer(acks="all", compression="zstd")
number = 0
while True:
    batch = []
    for _ in range(200):
        customer = b"customer-%d" % (number * 7919 % {customers})
        batch.append((customer, b'{{"order": %d, "total": %d}}' % (number, number % 97)))
        number += 1
    producer.send_batch("orders", batch)
    print(number, flush=True)
"""


def write_until_killed(folder: Path) -> int:
    """Run a writer process, kill it, and return how many records were acknowledged."""
    code = WRITER.format(customers=CUSTOMERS)
    arguments = [sys.executable, "-c", code, str(folder)]
    acknowledged = 0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer,
        Progress(*columns, console=console) as progress,
    ):
        assert writer.stdout is not None
        task = progress.add_task("writing", total=SECONDS_OF_WRITING)
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < SECONDS_OF_WRITING:
            acknowledged = int(writer.stdout.readline())
            progress.update(
                task, completed=elapsed, description=f"{acknowledged:>9,} records on disk, acks=all"
            )
        os.kill(writer.pid, signal.SIGKILL)
        # Include lines that were printed before the kill but not read yet.
        return max([acknowledged, *map(int, writer.stdout.read().split())])


def read_everything(log: strandlog.Log) -> collections.Counter[str]:
    """Read all records with two members of one group; return how many records each one read."""
    readers = {
        name: log.consumer(["orders"], group="billing", auto_commit=True)
        for name in ("billing-1", "billing-2")
    }
    counts: collections.Counter[str] = collections.Counter()
    idle_rounds = 0
    while idle_rounds < 2:
        idle_rounds += 1
        for name, reader in readers.items():
            records = reader.poll(max_records=5000)
            counts[name] += len(records)
            if records:
                idle_rounds = 0
    for name, reader in readers.items():
        owned = ", ".join(str(tp.partition) for tp in reader.assignment)
        console.print(f"  {name}: {counts[name]:,} records from partition {owned}")
    for reader in readers.values():
        reader.close()
    return counts


def show_files(folder: Path) -> None:
    table = Table(title=f"files of one partition in {folder}")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    for path in sorted((folder / "orders-0").iterdir()):
        table.add_row(path.name, f"{path.stat().st_size:,}")
    console.print(table)


def run(folder: Path) -> int:
    console.rule("1. A log in a folder")
    with strandlog.open(folder) as log:
        log.create_topic("orders", PARTITIONS, {"segment.bytes": "1MiB", "retention.ms": "7d"})
    console.print(f"created topic 'orders' with {PARTITIONS} partitions in {folder}")

    console.rule("2. A writer, killed with kill -9")
    acknowledged = write_until_killed(folder)
    with strandlog.read(folder) as beside:
        ends = [part.end_offset for part in beside.describe_topic("orders").partitions]
    console.print(f"a read-only log finds {sum(ends):,} records on disk")

    console.rule("3. Opened again")
    started = time.perf_counter()
    log = strandlog.open(folder)
    took_ms = (time.perf_counter() - started) * 1000
    console.print(f"opened in {took_ms:.0f} ms; problems: {log.problems or 'none'}")
    counts = read_everything(log)
    total = sum(counts.values())
    kept = total >= acknowledged
    verdict = "no acknowledged record was lost" if kept else "RECORDS ARE MISSING"
    console.print(f"acknowledged before the kill: {acknowledged:,}   read: {total:,}   {verdict}")

    console.rule("4. Compacted: the last order of each customer")
    report = log.compact("orders")
    console.print(
        f"{report.records_removed:,} records removed, {report.records_retained:,} kept; "
        f"{report.bytes_before / 1e6:.1f} MB became {report.bytes_after / 1e6:.2f} MB; "
        f"offsets do not change"
    )
    log.close()
    show_files(folder)
    exact = report.records_retained == min(CUSTOMERS, total)

    console.rule("Next steps")
    console.print(
        f"  strandlog topic describe orders -d {folder}\n"
        f"  strandlog consume orders -d {folder} -e -n 5 -f '%p %o %k %s\\n'\n"
        f"  strandlog log verify {folder}"
    )
    return 0 if kept and exact else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="use this new folder, and keep it")
    options = parser.parse_args()
    if options.keep:
        return run(options.keep)
    with tempfile.TemporaryDirectory(prefix="strandlog-embedded-") as folder:
        code = run(Path(folder) / "data")
        console.print("\n(the folder is deleted; --keep FOLDER keeps it)")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
