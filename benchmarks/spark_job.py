"""A Spark session that does what it is told and says how long it took: one line in, one line out.

    python spark_job.py '{"jars": [...], "folder": "...", "settings": {...}}'

    in    {"do": "read", "format": "kafka", "options": {...}, "sink": "noop"}
    out   said: {"seconds": 1.25, "result": ...}

It knows nothing but PySpark and takes formats and options as they come, so that our source and
Spark's own connector run the very same code. A measured time begins before the frame is
loaded: what planning costs is part of it.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "said: "
CORES = 2
_numbers = itertools.count()


def session(job: dict[str, Any]) -> Any:
    """The same for everybody who is compared."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - who only asks has no need of it

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": f"{job['folder']}/local",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.warehouse.dir": f"{job['folder']}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **job["settings"],
    }
    if job["jars"]:
        settings["spark.jars"] = ",".join(job["jars"])
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read(spark: Any, order: dict[str, Any]) -> list[Any]:
    """A batch, into nothing or into sums of what the columns hold."""
    reader = spark.read.format(order["format"]).options(**order["options"])
    frame = (reader.schema(order["schema"]) if "schema" in order else reader).load()
    if order["sink"] == "value":
        return list(frame.selectExpr("count(value)", "sum(length(value))").first())
    if order["sink"] == "noop":
        frame.write.format("noop").mode("overwrite").save()
        return []
    sums = ["count(*)", "sum(length(key))", "sum(length(value))", "sum(offset)"]
    return list(frame.selectExpr(*sums).first())


def write(spark: Any, order: dict[str, Any]) -> list[Any]:
    """Rows that Spark makes up."""
    filler = "x" * (order["value_bytes"] - 10)
    rows = spark.range(0, order["rows"], 1, CORES).selectExpr(
        "lpad(cast(id % 100000 as string), 9, '0') as key",
        f"concat(lpad(cast(id as string), 10, '0'), '{filler}') as value",
    )
    rows.write.format(order["format"]).options(**order["options"]).mode("append").save()
    return []


def stream(spark: Any, order: dict[str, Any]) -> list[Any]:
    """Micro-batches until everything is read, into nothing or into another topic."""
    frame = spark.readStream.format(order["format"]).options(**order["options"]).load()
    if "target" in order:
        frame = frame.select("key", "value")
    writer = frame.writeStream.format(order["format"] if "target" in order else "noop")
    query = (
        writer.options(**order.get("target", {}))
        .option("checkpointLocation", f"{order['folder']}/checkpoint-{next(_numbers)}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = query.recentProgress
    return [
        sum(batch["numInputRows"] for batch in batches),
        _steady_rate(batches[1:]),
    ]


def _steady_rate(batches: list[Any]) -> float:
    """Rows a second when everything has started: what a stream does from its second batch on."""
    rows = sum(batch["numInputRows"] for batch in batches)
    took_ms = sum(
        batch["durationMs"]["triggerExecution"] for batch in batches if batch["numInputRows"]
    )
    return rows / took_ms * 1000 if took_ms else 0.0


ACTIONS: dict[str, Callable[[Any, dict[str, Any]], list[Any]]] = {
    "read": read,
    "write": write,
    "stream": stream,
}


def say(**what: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(what)}\n")
    sys.stdout.flush()


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = session(job)
    say(version=spark.version)
    for line in sys.stdin:
        order = json.loads(line) | {"folder": job["folder"]}
        began = time.perf_counter()
        result = ACTIONS[order["do"]](spark, order)
        say(seconds=time.perf_counter() - began, result=result)
    spark.stop()


if __name__ == "__main__":
    main()
