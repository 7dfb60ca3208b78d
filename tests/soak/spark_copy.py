"""Copies a topic twice with Spark until it is killed: the job that spark_kills.py kills.

    python -m tests.soak.spark_copy OPTIONS MASTER CONF FOLDER

One query copies with each delivery guarantee, to the topic `copies-<guarantee>`, with its
checkpoint in the folder. The process ends when a query fails.
"""

from __future__ import annotations

import json
import sys

from strandlog.spark import session

INPUT = "numbers"
GUARANTEES = ("exactly_once", "at_least_once")


def output_of(guarantee: str) -> str:
    return f"copies-{guarantee}"


def main(options: str, master: str, conf: str, folder: str) -> None:
    spark = session(master, json.loads(conf), app_name="copy", quiet=True)
    cluster = json.loads(options)  # bootstrap.servers, and the user of a secured broker
    for guarantee in GUARANTEES:
        output = output_of(guarantee)
        (
            spark.readStream.format("strandlog")
            .options(**cluster, subscribe=INPUT, startingOffsets="earliest", groupId=output)
            .load()
            .select("key", "value")
            .writeStream.format("strandlog")
            .options(**cluster, topic=output, deliveryGuarantee=guarantee)
            .option("checkpointLocation", f"{folder}/checkpoint-{guarantee}")
            .start()
        )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
