"""Spark's own Kafka connector against a broker: `kafka_connector_job.py ADDRESS TOPIC FOLDER`.

Runs in an environment of its own that has PySpark, with the connector's jars in $PEER_JARS. Prints
what it saw as JSON, one object a line, with a mark that separates it from the output of Spark;
test_spark_connector.py checks it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit
from pyspark.sql.functions import sum as total

MARK = "said: "


def session(folder: Path) -> SparkSession:
    """Two threads, few partitions, nothing kept but in the folder."""
    jars = sorted(str(jar) for jar in Path(os.environ["PEER_JARS"]).glob("*.jar"))
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )


def say(**what: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(what)}\n")


def read(spark: SparkSession, address: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    return reader.option("subscribe", topic).options(**options).load()


def write(frame: DataFrame, address: str, topic: str) -> None:
    frame.write.format("kafka").option("kafka.bootstrap.servers", address).option(
        "topic", topic
    ).save()


def batch(spark: SparkSession, address: str, topic: str) -> None:
    """Write a thousand rows, read them back, whole and between offsets and times."""
    rows = spark.range(1000).select(
        concat(lit("k"), col("id")).alias("key"), col("id").cast("string").alias("value")
    )
    write(rows, address, topic)
    found = read(spark, address, topic, includeHeaders="true")
    say(
        columns=found.columns,
        count=found.count(),
        total=found.agg(total(col("value").cast("string").cast("long"))).first()[0],
        partitions=[row[0] for row in found.select("partition").distinct().collect()],
    )
    some = read(
        spark,
        address,
        topic,
        startingOffsets=json.dumps({topic: {"0": 100}}),
        endingOffsets=json.dumps({topic: {"0": 150}}),
    )
    offsets = [row.offset for row in some.select("offset").orderBy("offset").collect()]
    say(first=offsets[0], last=offsets[-1], rows=len(offsets))
    timed = read(spark, address, topic, startingTimestamp="1")
    say(since_1970=timed.count())
    split = read(spark, address, topic, minPartitions="4")
    say(tasks=split.rdd.getNumPartitions(), rows=split.count())


def stream(spark: SparkSession, address: str, topic: str, folder: Path) -> None:
    """A stream copies a topic; restarted, it resumes where it stopped."""
    copy = f"{topic}-copy"
    for first in (0, 500):
        rows = spark.range(first, first + 500).select(col("id").cast("string").alias("value"))
        write(rows, address, topic)
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "200")
            .load()
        )
        query = (
            source.select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", copy)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(90)
        say(batches=len([p for p in query.recentProgress if p.numInputRows]))
    copied = read(spark, address, copy)
    values = copied.select(col("value").cast("string").cast("long").alias("value"))
    say(count=values.count(), distinct=values.distinct().count())


def main() -> None:
    address, topic, folder = sys.argv[1:]
    spark = session(Path(folder))
    spark.sparkContext.setLogLevel("ERROR")
    batch(spark, address, f"{topic}-batch")
    stream(spark, address, f"{topic}-stream", Path(folder))
    spark.stop()


if __name__ == "__main__":
    main()
