"""A whole data set through topic, Spark, topic and Parquet: not a row more or less, nor another.

The flights of 2013 lie in a topic of a broker. A stream reads them, from the broker or out of the
files of its folder while it runs, and writes them to a topic and to Parquet. Both are held against
pandas on the original file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from examples.flights.dataset import FLIGHT_SCHEMA, as_json, flight_events, original_flights
from tests.soak.reading import read_partition
from tests.support.broker_process import BrokerProcess

import strandlog

TOPIC = "all-flights"
PARTITIONS = 3
PATIENCE_SECONDS = 240
SUMS = ["dep_delay", "arr_delay", "distance"]


@pytest.fixture(scope="module")
def flights(broker: BrokerProcess) -> Iterator[str]:
    """A topic with every departure of the year."""
    events = flight_events()
    keys = (key.encode() if isinstance(key, str) else None for key in events["tailnum"])
    with strandlog.connect(broker.address) as log:
        log.create_topic(TOPIC, PARTITIONS)
        # Who reads the folder sees what is on disk.
        with log.producer(acks="all", compression="lz4") as producer:
            producer.send_batch(TOPIC, list(zip(keys, as_json(events), strict=True)))
        yield TOPIC
        log.delete_topic(TOPIC)


@pytest.fixture(scope="module")
def original() -> Any:
    """What pandas reads from the original file, by the number of the row."""
    frame = original_flights().assign(time_hour=lambda rows: pd.to_datetime(rows["time_hour"]))
    return frame.astype({"distance": "float64"})


def check(found: Any, original: Any) -> None:
    """Row by row and column by column; counts and sums first, for they say more when they fail."""
    assert len(found) == len(original) == 336_776
    by_airport = found.groupby("origin")[SUMS].agg(["count", "sum"])
    pd.testing.assert_frame_equal(
        by_airport, original.groupby("origin")[SUMS].agg(["count", "sum"])
    )
    rows = found.set_index("id").sort_index().replace({None: float("nan")})
    assert list(rows.index) == list(original.index)
    for name in rows.columns:
        pd.testing.assert_series_equal(
            rows[name], original[name], check_index_type=False, check_names=False
        )


@pytest.mark.parametrize("way", ["broker", "path"])
def test_every_flight_arrives_once_and_unchanged(
    way: str, spark: Any, broker: BrokerProcess, flights: str, original: Any, tmp_path: Path
) -> None:
    place = ("path", str(broker.data)) if way == "path" else ("bootstrap.servers", broker.address)
    copy = f"flights-by-{way}"
    with strandlog.connect(broker.address) as log:
        log.create_topic(copy, PARTITIONS)
    frame = (
        spark.readStream.format("strandlog")
        .option(*place)
        .option("subscribe", flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 150_000)
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
    check(_parquet(tmp_path / "lake"), original)
    check(_topic(broker, copy), original)


def _parquet(folder: Path) -> Any:
    from pyarrow import dataset

    files = [str(path) for path in folder.glob("*.parquet")]
    assert len(files) > 2, "in several micro-batches"
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
