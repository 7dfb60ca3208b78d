"""Replays 2013 as live events over the wire: `python -m examples.flights.replay -b HOST:PORT`.

    topic flights   keyed by the plane's tail number: the flights of one plane stay in order, and
                    4,000 keys spread evenly over partitions, unlike three airports. A cancelled
                    flight may have no plane and therefore no key
    topic weather   keyed by the airport
    topic carriers  keyed by the airline's code; a lookup table, sent before the replay

The year is sent in steps of twelve hours. Each step is sent completely before the next one starts,
so that partitions and topics never diverge by more than one step.

The departures include some special records, which are the same in every replay:

    bad          after every 997th departure, a record that cannot be parsed: truncated, not JSON,
                 or with a wrong type, in turn
    stragglers   every 1009th departure is held back until the end of the year, so it is weeks late
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd
from examples.flights.dataset import MONTHS, as_json, carriers, flight_events, weather_events
from rich.progress import Progress

import strandlog
from strandlog.errors import TopicExistsError

FLIGHTS, WEATHER, CARRIERS = "flights", "weather", "carriers"
PARTITIONS = {FLIGHTS: 3, WEATHER: 1, CARRIERS: 1}
STEP = pd.Timedelta(hours=12)
BAD_EVERY, STRAGGLER_EVERY = 997, 1009
# The minimum age of stragglers at the end of the replay, which puts them behind every watermark.
STRAGGLER_AGE = pd.Timedelta(days=14)

Event = tuple[bytes | None, bytes]


class Step(NamedTuple):
    """The events of twelve hours."""

    until: pd.Timestamp
    flights: list[Event]
    weather: list[Event]


class Replay(NamedTuple):
    """All events of a replay."""

    steps: list[Step]
    stragglers: list[Event]
    straggler_ids: frozenset[int]
    departures: int  # without stragglers
    observations: int
    bad: int
    out_of_order: int  # departures reported after one with a later scheduled hour

    @property
    def flight_records(self) -> int:
        """The number of records in the topic flights after the replay."""
        return self.departures + self.bad + len(self.stragglers)


def damaged(value: bytes, number: int) -> bytes:
    """Return the value with one of three kinds of damage."""
    return (
        value[: len(value) // 2],
        b"station restarted, please ignore",
        value.replace(b'"distance":', b'"distance":"unknown","was":'),
    )[number % 3]


def make_replay(months: int = MONTHS) -> Replay:
    """Prepare all events, in order."""
    flights, weather = flight_events(months), weather_events(months)
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    is_straggler = (flights["id"] % STRAGGLER_EVERY == 0) & (hours < hours.max() - STRAGGLER_AGE)
    in_time = flights[~is_straggler]
    seen = hours[~is_straggler]
    begin = min(flights["reported"].min(), weather["reported"].min()).floor("D")
    steps: dict[int, Step] = {}
    bad = 0
    rows = zip(_numbers(in_time, begin), _keyed(in_time, "tailnum"), in_time["id"], strict=True)
    for number, event, flight_id in rows:
        step = steps.setdefault(number, Step(begin + (number + 1) * STEP, [], []))
        step.flights.append(event)
        if flight_id % BAD_EVERY == 0:
            step.flights.append((event[0], damaged(event[1], bad)))
            bad += 1
    for number, event in zip(_numbers(weather, begin), _keyed(weather, "origin"), strict=True):
        step = steps.setdefault(number, Step(begin + (number + 1) * STEP, [], []))
        step.weather.append(event)
    return Replay(
        [steps[number] for number in sorted(steps)],
        list(_keyed(flights[is_straggler], "tailnum")),
        frozenset(flights["id"][is_straggler]),
        len(in_time),
        len(weather),
        bad,
        int((seen < seen.cummax()).sum()),
    )


def _numbers(frame: pd.DataFrame, begin: pd.Timestamp) -> list[int]:
    """Return the step number of each row."""
    return [int(number) for number in (frame["reported"] - begin) // STEP]


def _keyed(frame: pd.DataFrame, column: str) -> Iterator[Event]:
    keys = (key.encode() if isinstance(key, str) else None for key in frame[column])
    return zip(keys, as_json(frame), strict=True)


def create_topics(log: strandlog.RemoteLog) -> None:
    """Create the missing topics, and fill the lookup table."""
    for name, partitions in PARTITIONS.items():
        try:
            log.create_topic(name, partitions)
        except TopicExistsError:
            continue
        if name == CARRIERS:
            with log.producer() as producer:
                producer.send_batch(CARRIERS, list(_keyed(carriers(), "carrier")))


def send_steps(
    log: strandlog.RemoteLog,
    replay: Replay,
    seconds: float,
    on_step: Callable[[Step], None] = lambda _: None,
) -> None:
    """Send all steps, spread evenly over `seconds`; 0 sends them at full speed."""
    started = time.monotonic()
    with log.producer(acks=1, compression="lz4") as producer:
        for number, step in enumerate(replay.steps):
            if step.weather:
                producer.send_batch(WEATHER, step.weather)
            if step.flights:
                producer.send_batch(FLIGHTS, step.flights)
            on_step(step)
            due = started + seconds * (number + 1) / len(replay.steps)
            time.sleep(max(0.0, due - time.monotonic()))


def send_stragglers(log: strandlog.RemoteLog, replay: Replay) -> None:
    """Send the departures that were held back."""
    if replay.stragglers:
        with log.producer() as producer:
            producer.send_batch(FLIGHTS, replay.stragglers)


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay the flights of 2013 as live events.")
    parser.add_argument("-b", "--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument(
        "--seconds", type=float, default=60, help="duration of the replay; 0: full speed"
    )
    parser.add_argument("--months", type=int, default=MONTHS, help="number of months, from January")
    parser.add_argument(
        "--pause", type=float, default=15, metavar="SECONDS", help="before the stragglers are sent"
    )
    options = parser.parse_args()
    replay = make_replay(options.months)
    with strandlog.connect(options.bootstrap) as log:
        create_topics(log)
        with Progress() as progress:
            task = progress.add_task("replaying", total=len(replay.steps))
            send_steps(log, replay, options.seconds, lambda _: progress.advance(task))
        time.sleep(options.pause)
        send_stragglers(log, replay)
    print(
        f"{replay.departures:,} departures ({replay.out_of_order:,} out of order), "
        f"{len(replay.stragglers)} stragglers, {replay.bad} bad records, "
        f"{replay.observations:,} weather observations"
    )


if __name__ == "__main__":
    main()
