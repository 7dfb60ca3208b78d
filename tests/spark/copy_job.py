"""A driver of its own that copies a topic to another: `python -m tests.spark.copy_job JSON`.

The JSON says where: {"master", "conf", "address", "source", "target", "checkpoint"}. The copy is a
stream that reads what is there, in batches of BATCH_OFFSETS, and stops. Every record gets a header
that names the executor it passed through: its task reads, maps and writes, so this is who read it
and who wrote it.

Prints the rows of each micro-batch as JSON.
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
    """The rows, with the header. A Python worker runs in the folder of its executor."""
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    told = [{"key": HEADER, "value": Path.cwd().name.encode()}]
    for batch in batches:
        headers = pa.array([told] * len(batch), kind)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, headers], [*batch.schema.names, "headers"]
        )


def main() -> None:
    from strandlog.spark import session

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
    sys.stdout.write(json.dumps([each["numInputRows"] for each in query.recentProgress]) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
