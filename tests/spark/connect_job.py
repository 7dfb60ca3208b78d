"""Reads a topic over Spark Connect, and prints the results as JSON.

A process can have only one kind of session, so this one does not share that of the other tests.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from pyspark.sql import SparkSession


def main(address: str, topic: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "90s")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, "valueFormat": "string"}
    batch = spark.read.format("strandlog").options(**options).load()
    values = sorted(int(row.value) for row in batch.select("value").collect())
    stream = spark.readStream.format("strandlog").options(**options, groupId=topic)
    with tempfile.TemporaryDirectory() as folder:
        query = (
            stream.option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .load()
            .writeStream.format("parquet")
            .option("path", f"{folder}/out")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = spark.read.parquet(f"{folder}/out").count()
    try:
        spark.read.format("strandlog").options(
            **(options | {"subscribe": "nowhere"})
        ).load().count()
        found_error = ""
    except Exception as error:  # noqa: BLE001 - any error that a user sees
        found_error = str(error)
    spark.stop()
    sys.stdout.write(json.dumps({"batch": values, "stream": written, "error": found_error}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
