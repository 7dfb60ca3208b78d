"""Compares the results of the flights pipeline with pandas on the original files.

    Results     delays        the last record of each airport and hour, from the topic
                in_weather    departures joined with the weather, from the Delta table
                bad           the number of records in the dead-letter topic

`differences` compares row by row; an empty list means that no row is missing, duplicated or
changed. Stragglers are not expected in the results, because they are behind the watermark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pandas as pd
import pyarrow as pa
import pyarrow.json as pa_json
from deltalake import DeltaTable
from examples.flights.dataset import (
    FLIGHT_COLUMNS,
    carriers,
    original_flights,
    original_weather,
)
from examples.flights.replay import Replay
from pyarrow import dataset

import strandlog

DELAYS, BAD = "flights.delays", "flights.bad"
LAKE = "lake/flights_in_weather"
SUMS = ["flights", "departed", "delay_sum"]
WEATHER = ["temp", "wind_speed", "precip", "visib"]


class Results(NamedTuple):
    """The output of the pipeline."""

    delays: pd.DataFrame
    in_weather: pd.DataFrame
    bad: int


def _records(log: strandlog.RemoteLog, topic: str) -> Iterator[strandlog.Record]:
    """Yield all committed records of a topic."""
    with log.consumer([topic], auto_offset_reset="earliest") as consumer:
        while records := consumer.poll(max_records=20_000, timeout_ms=1000):
            yield from records


def read_results(log: strandlog.RemoteLog, folder: Path) -> Results:
    """Read the current output of the pipeline."""
    last = {record.key: record.value or b"" for record in _records(log, DELAYS)}
    rows = pa_json.read_json(pa.BufferReader(b"\n".join(last.values()))).to_pandas()
    rows["hour"] = pd.to_datetime(rows["hour"], utc=True)
    return Results(
        rows.sort_values(["hour", "origin"], ignore_index=True),
        _read_table(table_files(folder)),
        sum(1 for _ in _records(log, BAD)),
    )


def table_files(folder: Path) -> list[str]:
    """Return the files of the newest version of the Delta table."""
    return [unquote(urlsplit(uri).path) for uri in DeltaTable(str(folder / LAKE)).file_uris()]


def _read_table(files: list[str]) -> pd.DataFrame:
    frame = dataset.dataset(files, format="parquet").to_table().to_pandas()
    return frame.sort_values("id", ignore_index=True)


def expected_results(replay: Replay, months: int) -> Results:
    """Compute the expected output with pandas from the original files."""
    flights = original_flights(months)
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    flights = flights.assign(id=flights.index, hour=hours, time_hour=hours)
    flights = flights[~flights["id"].isin(replay.straggler_ids)]
    by_hour = flights.groupby(["hour", "origin"])["dep_delay"]
    delays = pd.DataFrame(
        {
            "flights": by_hour.size(),
            "departed": by_hour.count(),
            "delay_sum": by_hour.sum(min_count=1),
        }
    )
    weather = original_weather(months)
    weather = weather.assign(time_hour=pd.to_datetime(weather["time_hour"], utc=True))
    joined = flights.merge(weather[["time_hour", "origin", *WEATHER]])
    joined = joined.merge(carriers().rename(columns={"name": "airline"}), how="left")
    return Results(delays.reset_index(), joined.sort_values("id", ignore_index=True), replay.bad)


def differences(found: Results, expected: Results) -> list[str]:
    """Return descriptions of the differences between two results."""
    texts = _unlike("delays", found.delays, expected.delays, ["hour", "origin", *SUMS])
    columns = [name for name in FLIGHT_COLUMNS if name != "distance"]
    texts += _unlike(
        "in_weather", found.in_weather, expected.in_weather, [*columns, "airline", *WEATHER]
    )
    if found.bad != expected.bad:
        texts.append(f"bad: {found.bad} records instead of {expected.bad}")
    return texts


def _unlike(
    name: str, found: pd.DataFrame, expected: pd.DataFrame, columns: list[str]
) -> list[str]:
    if len(found) != len(expected):
        return [f"{name}: {len(found):,} rows instead of {len(expected):,}"]
    texts = []
    for column in columns:
        ours, theirs = found[column], expected[column]
        unlike = ~((ours == theirs) | (ours.isna() & theirs.isna()))
        if unlike.any():
            row = int(unlike.to_numpy().argmax())
            texts.append(
                f"{name}: {column} of {unlike.sum():,} rows, first of row {row}: "
                f"{ours.iloc[row]} instead of {theirs.iloc[row]}"
            )
    return texts
