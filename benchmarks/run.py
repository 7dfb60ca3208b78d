"""`make bench`: runs all benchmarks, prints a table and writes `out/bench.json`.

python -m benchmarks.run [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.columns import column_rows
from benchmarks.end_to_end import end_to_end_rows
from benchmarks.measure import Row, print_table, write_json
from benchmarks.opening import GIB, memory_rows, opening_rows, start_rows
from benchmarks.raw_batches import raw_batch_rows
from benchmarks.throughput import append_rows, consumer_rows, producer_rows
from benchmarks.wire import wire_rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all benchmarks on this machine.")
    parser.add_argument(
        "--quick", action="store_true", help="open a folder of 256 MB instead of 5 GB"
    )
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    options = parser.parse_args()
    total_bytes = GIB // 4 if options.quick else 5 * GIB
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="strandlog-bench-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[], list[Row]]] = {
            "appends": lambda: append_rows(folder),
            "producer": lambda: producer_rows(folder),
            "consumer": lambda: consumer_rows(folder),
            "memory": lambda: memory_rows(folder),
            "start": start_rows,
            "columns": column_rows,
            "wire": lambda: wire_rows(folder),
            "end to end": lambda: end_to_end_rows(folder / "end-to-end"),
            "raw batches": lambda: raw_batch_rows(folder),
            "opening": lambda: opening_rows(folder, total_bytes),
        }
        for title, measure in parts.items():
            print(f"measuring {title} …", file=sys.stderr, flush=True)
            rows += measure()
    print_table(rows)
    write_json(rows, options.json)
    print(f"\nwritten to {options.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
