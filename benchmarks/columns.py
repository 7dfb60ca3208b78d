"""Compares columnar decoding and encoding of raw batches with the per-record path, on one core.

Records have a 9-byte key. Rates are per second of CPU time, because the machine may be shared, and
both paths are measured in the same run. The cost of the first call is measured in separate
processes, with an empty and with a populated cache of compiled code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa

from benchmarks.measure import Row
from strandlog.record.arrow.columns import decode_columns, encode_columns, group_rows, route_rows
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec

BATCH_RECORDS = 1000
BATCH_BYTES = 256 * 1024
PARTITIONS = 6
NOW_MS = 1_750_000_000_000
DECODE_GOAL = 4_000_000
ENCODE_GOAL = 3_000_000

FIRST_CALL = """
import time
start = time.perf_counter()
from strandlog.record.arrow.columns import {name}
{call}
print(time.perf_counter() - start)
"""
FIRST_DECODE = "list(decode_columns(b'', 0, 1, topic='t', partition=0))"
FIRST_ENCODE = "import pyarrow; encode_columns(pyarrow.table({'value': [b'a']}), timestamp_ms=0)"


def column_rows() -> list[Row]:
    """Measure decoding and encoding by columns and by records, and cold and warm first calls."""
    rows: list[Row] = []
    for value_bytes, count in ((100, 400_000), (1000, 60_000)):
        for codec in (Codec.NONE, Codec.ZSTD):
            rows += _rates(value_bytes, count, codec)
    return rows + _first_calls()


def _rates(value_bytes: int, count: int, codec: Codec) -> list[Row]:
    label = f"{value_bytes} B, {codec.name.lower()}"
    has_goal = value_bytes == 100 and codec is Codec.NONE
    text = b"The quick brown fox jumps over the lazy dog. "
    content = (text * (value_bytes // len(text) + 1))[:value_bytes]
    values = [b"%09d" % number + content[9:] for number in range(count)]
    keys = [b"key-%05d" % (number % 100_000) for number in range(count)]
    data = b"".join(
        build_batch(
            NOW_MS,
            values[start : start + BATCH_RECORDS],
            keys[start : start + BATCH_RECORDS],
            codec=codec,
            base_offset=start,
        )
        for start in range(0, count, BATCH_RECORDS)
    )
    table = pa.record_batch({"key": keys, "value": values})

    def decode() -> None:
        for _ in decode_columns(data, 0, count, topic="t", partition=0):
            pass

    def decode_slowly() -> None:
        for view in iter_batches(data):
            view.check()
            view.records("t", 0)

    def encode() -> None:
        encode_columns(table, timestamp_ms=NOW_MS, codec=codec, max_batch_bytes=BATCH_BYTES)

    def encode_slowly() -> None:
        # Keep all batches, as `encode` does: allocating memory is a large part of the cost.
        made = []
        for start in range(0, count, BATCH_RECORDS):
            end = start + BATCH_RECORDS
            made.append(build_batch(NOW_MS, values[start:end], keys[start:end], codec=codec))

    def route() -> None:
        group_rows(route_rows(table.column("key"), PARTITIONS).partitions, PARTITIONS)

    unit = "records/s"
    found = [
        Row(f"columns: decode {label}", _rate(count, decode), unit, DECODE_GOAL * has_goal or None),
        Row(f"records: decode {label}", _rate(count, decode_slowly), unit),
        Row(f"columns: encode {label}", _rate(count, encode), unit, ENCODE_GOAL * has_goal or None),
        Row(f"records: encode {label}", _rate(count, encode_slowly), unit),
    ]
    if has_goal:
        found.append(Row("columns: route and group by key", _rate(count, route), unit))
    return found


def _rate(count: int, action: Callable[[], None], rounds: int = 4) -> float:
    """Return the best rate per second of CPU time; the first round is also the warm-up."""
    best = 0.0
    for _ in range(rounds):
        start = time.process_time()
        action()
        best = max(best, count / (time.process_time() - start))
    return best


def _first_calls() -> list[Row]:
    rows = []
    calls = (("decode_columns", FIRST_DECODE), ("encode_columns", FIRST_ENCODE))
    for name, call in calls:
        with tempfile.TemporaryDirectory(prefix="strandlog-bench-") as cache:
            for state in ("cold", "warm"):
                done = subprocess.run(
                    [sys.executable, "-c", FIRST_CALL.format(name=name, call=call)],
                    env={**os.environ, "NUMBA_CACHE_DIR": cache},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                value = float(done.stdout)
                rows.append(Row(f"first {name}, {state}", value, "s", higher_is_better=False))
    return rows
