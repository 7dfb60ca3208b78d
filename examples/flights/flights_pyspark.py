"""The flights pipeline in plain PySpark, for jobs that need more than a pipeline file can express.

    python -m examples.flights.flights_pyspark -b 127.0.0.1:9092     until Ctrl-C
    python -m examples.flights.flights_pyspark --available-now       process the data, then stop

Only `format("strandlog")` and its options are specific to strandlog. Records that cannot be parsed
are written to a dead-letter topic, delays per airport and hour to another topic, and departures
with their weather to Parquet.
"""

from __future__ import annotations

import argparse
from typing import Any

from examples.flights.dataset import FLIGHT_SCHEMA, WEATHER_SCHEMA
from pyspark.sql import functions as F  # noqa: N812 - the usual name

import strandlog
from strandlog.spark import session

WATERMARK = ("time_hour", "2 days")
CORRUPT = "_corrupt STRUCT<key: BINARY, value: BINARY>"  # the unchanged record
DELAYS, BAD = "flights.delays.pyspark", "flights.bad.pyspark"


def stream(spark: Any, bootstrap: str, topic: str, schema: str) -> Any:
    """Return a streaming DataFrame of a topic, with typed columns."""
    return (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", "flights-pyspark")
        .option("valueFormat", "json")
        .schema(schema)
        .load()
    )


def delays_of(flights: Any) -> Any:
    """Compute the delays per airport and hour."""
    return (
        flights.groupBy(F.window("time_hour", "1 hour"), "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_sum"),
            F.avg("dep_delay").alias("delay"),
        )
        .select(
            "origin", F.col("window.start").alias("hour"),
            "flights", "departed", "delay_sum", "delay",
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The flights pipeline in plain PySpark.")
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--folder", default=".", help="for checkpoints and Parquet")
    parser.add_argument(
        "--available-now", action="store_true", help="process the available data, then stop"
    )
    options = parser.parse_args()
    with strandlog.connect(options.bootstrap) as log:
        for topic in {DELAYS, BAD} - set(log.topics()):
            log.create_topic(topic, 1)
    spark = session(app_name="flights")
    spark.sparkContext.setLogLevel("ERROR")

    rows = stream(spark, options.bootstrap, "flights", f"{FLIGHT_SCHEMA}, {CORRUPT}")
    flights = rows.where("_corrupt IS NULL").drop("_corrupt").withWatermark(*WATERMARK)
    weather = stream(spark, options.bootstrap, "weather", WEATHER_SCHEMA).withWatermark(*WATERMARK)
    delays = delays_of(flights).select(
        F.concat_ws(" ", "origin", F.date_format("hour", "yyyy-MM-dd'T'HH:mm'Z'")).alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
    bad = rows.where("_corrupt IS NOT NULL").selectExpr("_corrupt.key", "_corrupt.value")

    def write_delays(batch: Any, batch_id: int) -> None:
        # Spark has no update mode for Python sinks. The query id and the batch id are stored in the
        # checkpoint, so a repeated batch is recognised and written only once.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        (
            to_topic(batch.write, DELAYS)
            .option("txnAppId", query_id)
            .option("txnVersion", batch_id)
            .mode("append")
            .save()
        )

    def to_topic(writer: Any, topic: str) -> Any:
        return (
            writer.format("strandlog")
            .option("bootstrap.servers", options.bootstrap)
            .option("topic", topic)
        )

    queries = {
        "delays": delays.writeStream.outputMode("update").foreachBatch(write_delays),
        "bad": to_topic(bad.writeStream, BAD),
        "in_weather": flights.join(weather, ["origin", "time_hour"])
        .writeStream.format("parquet")
        .option("path", f"{options.folder}/lake/pyspark"),
    }
    for name, query in queries.items():
        writer = query.queryName(name).option(
            "checkpointLocation", f"{options.folder}/checkpoints/pyspark/{name}"
        )
        (writer.trigger(availableNow=True) if options.available_now else writer).start()
    for running in spark.streams.active:
        running.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
