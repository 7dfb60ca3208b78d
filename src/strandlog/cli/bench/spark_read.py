"""`strandlog bench spark`: reads a topic with format("strandlog"), several times.

Each round reads and aggregates all records that the topic contains when the first round starts. The
first round is not measured, because it also starts Python workers and triggers Java's JIT
compilation. The latency is the duration of a round. --duration also interrupts a running round,
which then does not count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Timer
from typing import Any

from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.bench.run import Client, Outcome, run_clients
from strandlog.cli.options import Target
from strandlog.cli.output import message
from strandlog.client.settings import FILE_VARIABLE
from strandlog.clock import stopwatch
from strandlog.errors import DataError
from strandlog.spark.errors import one_line
from strandlog.spark.pipeline.session import open_session, spark_log

STALL_SECONDS = 1800.0


def read_with_spark(
    target: Target,
    topic: str,
    measurement: Measurement,
    *,
    rounds: int,
    seconds: float | None,
    master: str | None,
) -> Outcome:
    """Read the topic once to warm up, then up to `rounds` times, and measure the rows, bytes and
    duration of each of these rounds."""
    if target.client_file is not None:
        os.environ[FILE_VARIABLE] = target.client_file  # Spark's workers read it too
    with spark_log(None, "bench") as log:
        message("starting Spark; the first round is not measured")
        opened = open_session("strandlog bench", None, master, log=log)
        cancel = opened.spark.sparkContext.cancelAllJobs
        try:
            read = _reader(opened.spark, target, topic)
            client = _client(read, cancel, measurement, rounds, seconds)
            return run_clients(
                [client], measurement, "read with Spark", None, STALL_SECONDS, on_stop=cancel
            )
        finally:
            if opened.is_own:
                opened.spark.stop()


def _reader(spark: Any, target: Target, topic: str) -> Callable[[], tuple[int, int]]:
    options = {f"kafka.{name}": value for name, value in target.client_config.items()}
    if target.bootstrap is not None:
        options["kafka.bootstrap.servers"] = target.bootstrap
    else:
        options["path"] = str(target.data)
    frame = spark.read.format("strandlog").options(**options, subscribe=topic).load()
    totals = frame.selectExpr("count(*)", "coalesce(sum(length(value)), 0)")

    def read() -> tuple[int, int]:
        records, size_bytes = totals.collect()[0]
        return records, size_bytes

    return read


def _client(
    read: Callable[[], tuple[int, int]],
    cancel: Callable[[], None],
    measurement: Measurement,
    rounds: int,
    seconds: float | None,
) -> Client:
    from py4j.protocol import Py4JError  # noqa: PLC0415 - optional dependency
    from pyspark.errors import PySparkException  # noqa: PLC0415

    late = Event()

    def end() -> None:
        late.set()
        cancel()

    def measure(stop: Event) -> None:
        read()
        measurement.start()
        timer = Timer(seconds or 0, end)
        timer.daemon = True
        if seconds is not None:
            timer.start()
        try:
            for _ in range(rounds):
                before = stopwatch()
                records, size_bytes = read()
                measurement.add(records, size_bytes, [stopwatch() - before])
                if late.is_set() or stop.is_set():
                    break
        finally:
            timer.cancel()

    def client(stop: Event) -> None:
        try:
            measure(stop)
        except (PySparkException, Py4JError) as error:
            if not late.is_set() and not stop.is_set():
                raise DataError(f"Spark cannot read the topic: {one_line(error)}") from error

    return client
