"""A real data set through topic, Spark, topic and Parquet: every row once, and unchanged.

The flights of 2013 are in a topic. A stream reads them, from the broker or from the files of its
folder while the broker runs, and writes them to a topic and to Parquet. Both are compared with
pandas on the original file. The broker's topic has three months, the folder's January.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from examples.flights.dataset import FLIGHT_SCHEMA, as_json, flight_events, original_flights
from tests.soak.reading import read_partition
from tests.support.broker_process import BrokerProcess

import strandlog

PARTITIONS = 3
PATIENCE_SECONDS = 600
SUMS = ["dep_delay", "arr_delay", "distance"]


def original(months: int) -> Any:
    """The original file as pandas reads it, by row number."""
    frame = original_flights(months)
    frame = frame.assign(time_hour=lambda rows: pd.to_datetime(rows["time_hour"]))
    return frame.astype({"distance": "float64"})


def check(found: Any, expected: Any) -> None:
    """Compare row by row and column by column, after counts and sums, which say more."""
    assert len(found) == len(expected)
    by_airport = found.groupby("origin")[SUMS].agg(["count", "sum"])
    pd.testing.assert_frame_equal(
        by_airport, expected.groupby("origin")[SUMS].agg(["count", "sum"])
    )
    rows = found.set_index("id").sort_index().replace({None: float("nan")})
    assert list(rows.index) == list(expected.index)
    for name in rows.columns:
        pd.testing.assert_series_equal(
            rows[name], expected[name], check_index_type=False, check_names=False
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "months", "count"),
    [("broker", 3, 80_789), ("path", 1, 27_004)],
)
def test_every_flight_arrives_once_and_unchanged(
    way: str, months: int, count: int, spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    expected = original(months)
    assert len(expected) == count
    flights, copy = f"flights-{way}", f"flights-{way}-copy"
    events = flight_events(months)
    keys = (key.encode() if isinstance(key, str) else None for key in events["tailnum"])
    with strandlog.connect(broker.address) as log:
        for name in (flights, copy):
            log.create_topic(name, PARTITIONS)
        # acks=all: the files show only fsynced records.
        with log.producer(acks="all", compression="lz4") as producer:
            producer.send_batch(flights, list(zip(keys, as_json(events), strict=True)))
    log_option = (
        ("path", str(broker.data)) if way == "path" else ("bootstrap.servers", broker.address)
    )
    frame = (
        spark.readStream.format("strandlog")
        .option(*log_option)
        .option("subscribe", flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", count // 2)
        .option("valueFormat", "json")
        .schema(FLIGHT_SCHEMA)
        .load()
    )
    to_topic = (
        frame.selectExpr("tailnum AS key", "to_json(struct(*)) AS value")
        .writeStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("topic", copy)
        .option("checkpointLocation", str(tmp_path / "to-topic"))
        .trigger(availableNow=True)
        .start()
    )
    to_parquet = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "lake"))
        .option("checkpointLocation", str(tmp_path / "to-parquet"))
        .trigger(availableNow=True)
        .start()
    )
    for query in (to_topic, to_parquet):
        assert query.awaitTermination(PATIENCE_SECONDS)
    check(_parquet(tmp_path / "lake"), expected)
    check(_topic(broker, copy), expected)


def _parquet(folder: Path) -> Any:
    from pyarrow import dataset

    files = [str(path) for path in folder.glob("*.parquet")]
    assert len(files) > 2, "several micro-batches"
    frame = dataset.dataset(files).to_table().to_pandas()
    return frame.assign(time_hour=pd.to_datetime(frame["time_hour"], utc=True))


def _topic(broker: BrokerProcess, topic: str) -> Any:
    import pyarrow as pa
    from pyarrow import json

    pieces = [
        message.value()
        for partition in range(PARTITIONS)
        for message in read_partition(broker.address, topic, partition)
    ]
    frame = json.read_json(pa.BufferReader(b"\n".join(pieces))).to_pandas()
    return frame.assign(time_hour=pd.to_datetime(frame["time_hour"], utc=True))
