"""The flights pipeline as declarative tables and a sink, which `spark-pipelines` orders and runs.

    topic flights ─┬─▶ reports ─┬─▶ departures ─▶ delays     (a view, computed in each run)
                   │            └─▶ topic flights.bad
    topic weather ─┴─▶ in_weather                            (a table that grows)

The broker's address is STRANDLOG_BOOTSTRAP, or 127.0.0.1:9092 by default.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

BOOTSTRAP = os.environ.get("STRANDLOG_BOOTSTRAP", "127.0.0.1:9092")
FLIGHT = (
    "id BIGINT, time_hour TIMESTAMP, origin STRING, dest STRING, carrier STRING, flight BIGINT, "
    "tailnum STRING, dep_delay DOUBLE, arr_delay DOUBLE, distance DOUBLE, "
    "_corrupt STRUCT<key: BINARY, value: BINARY>"
)
WEATHER = (
    "time_hour TIMESTAMP, origin STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, "
    "visib DOUBLE"
)


def stream(topic: str, schema: str) -> Any:
    return (
        SparkSession.active()
        .readStream.format("strandlog")
        .option("bootstrap.servers", BOOTSTRAP)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .schema(schema)
        .load()
    )


@dp.table
def reports() -> Any:
    """Read every record of the topic, whether valid or not."""
    return stream("flights", FLIGHT)


@dp.table
def departures() -> Any:
    rows = SparkSession.active().readStream.table("reports")
    # drop() cannot be used: it needs the columns of a table that does not exist yet.
    return rows.where("_corrupt IS NULL").selectExpr("* EXCEPT (_corrupt)")


@dp.table
def in_weather() -> Any:
    """Join departures with the weather in the hour of their departure."""
    # Read the topic, not the table: a watermark needs columns that are already known.
    flights = stream("flights", FLIGHT).where("_corrupt IS NULL").drop("_corrupt")
    weather = stream("weather", WEATHER).withWatermark("time_hour", "2 days")
    return flights.withWatermark("time_hour", "2 days").join(weather, ["origin", "time_hour"])


@dp.materialized_view
def delays() -> Any:
    """Compute the delays per airport and hour."""
    rows = SparkSession.active().read.table("departures")
    return rows.groupBy("origin", F.col("time_hour").alias("hour")).agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("delay_sum"),
        F.avg("dep_delay").alias("delay"),
    )


dp.create_sink("bad", "strandlog", {"bootstrap.servers": BOOTSTRAP, "topic": "flights.bad"})


@dp.append_flow(target="bad")
def bad_records() -> Any:
    rows = SparkSession.active().readStream.table("reports")
    return rows.where("_corrupt IS NOT NULL").selectExpr("_corrupt.key", "_corrupt.value")
