"""A driver that copies a topic and then runs a pipeline: `python -m tests.spark.copy_job JSON`.

The JSON has master, conf, address, source, target, checkpoint and pipeline (a file). The copy is a
stream that reads the available records, in batches of BATCH_OFFSETS, and stops. Every record gets a
header with the executor that its task ran on, which has read it and written it.

Prints the rows of each micro-batch of the copy as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER = "executor"
BATCH_OFFSETS = 4000
ROW = "key binary, value binary, headers array<struct<key string, value binary>>"


def with_executor(batches: Iterator[Any]) -> Iterator[Any]:
    """Add the header to rows. A Python worker runs in the folder of its executor."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    added = [{"key": HEADER, "value": Path.cwd().name.encode()}]
    for batch in batches:
        headers = pa.array([added] * len(batch), kind)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, headers], [*batch.schema.names, "headers"]
        )


def main() -> None:
    from strandlog.spark import session
    from strandlog.spark.pipeline import run

    job = json.loads(sys.argv[1])
    spark = session(job["master"], job["conf"], app_name="copy", quiet=True)
    rows = (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", job["address"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(BATCH_OFFSETS))
        .load()
        .select("key", "value")
        .mapInArrow(with_executor, ROW)
    )
    query = (
        rows.writeStream.format("strandlog")
        .option("bootstrap.servers", job["address"])
        .option("topic", job["target"])
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    run(job["pipeline"], spark=spark, available_now=True, report="off")
    sys.stdout.write(json.dumps([each["numInputRows"] for each in query.recentProgress]) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
