"""The crash enumerator as a program; `make crash` runs it.

    python -m tests.crash.enumerate_crashes [--points 10000] [--transaction-points 3000]
                                            [--seed N] [--workers N] [--json]

Two parts, the storage engine and the transactions on top of it. Prints progress and a closing table
for each; exits with 1 when a promise was broken. What is tried and what is demanded: watching.py,
workload.py and expectations.py beside this file, and the same with `transaction_` before it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator

from tests.crash.transaction_watching import enumerate_transaction_crashes
from tests.crash.watching import FIRST_SEED, Tally, enumerate_crashes


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(total: Tally, seconds: float) -> str:
    """The closing figures."""
    rows = [
        ("workloads", total.workloads),
        ("steps of the disk", total.steps),
        ("crash points (distinct disk images)", total.points),
        ("  power cuts", total.cuts),
        ("  power cuts while opening", total.nested),
        ("  power cuts after opening", total.settled),
        ("  kill -9", total.kills),
        ("  kill -9 inside a write", total.torn),
        ("images seen before, not opened again", total.skipped),
        ("failures", len(total.failures)),
    ]
    lines = [f"{name:<40}{number:>10,}" for name, number in rows]
    return "\n".join([*lines, f"{'seconds':<40}{seconds:>10.1f}"])


def run(part: str, tallies: Iterator[Tally]) -> dict[str, object]:
    """Do one part and tell of it; returns its figures."""
    total, started = Tally(), time.monotonic()
    for tally in tallies:
        total.add(tally)
        failed = len(total.failures)
        say(f"{total.points:>8,} points  {total.workloads:>4} workloads  {failed} failed")
        for failure in tally.failures:
            say(f"  {failure}")
    seconds = time.monotonic() - started
    say(f"\n{part}\n{table(total, seconds)}\n")
    return dataclasses.asdict(total) | {"points": total.points, "seconds": round(seconds, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Crash the log at every step of many lives.")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--transaction-points", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="figures as JSON on the last line")
    options = parser.parse_args()
    parts = {
        "storage": (enumerate_crashes, options.points),
        "transactions": (enumerate_transaction_crashes, options.transaction_points),
    }
    figures = {
        part: run(part, enumerate_(points, options.seed, options.workers))
        for part, (enumerate_, points) in parts.items()
        if points > 0
    }
    if options.json:
        say(json.dumps(figures))
    return 1 if any(part["failures"] for part in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
