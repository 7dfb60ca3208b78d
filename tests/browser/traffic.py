"""Departures as a broker sees them on a working day: topics, a producer that comes in waves, groups
that keep up and one that does not. For pictures of the console."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import httpx
from confluent_kafka import Consumer, Producer
from tests.browser.feeding import make
from tests.support.server import RunningBroker

STEP_SECONDS = 0.1
WAVE_SECONDS = 40.0
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "WN")
PLACES = ("ATL", "BOS", "CLT", "DCA", "DFW", "LAX", "MCO", "MIA", "ORD", "SFO")
GROUPS = {"delays-by-hour": 400, "archive": 60, "alerts": 400}  # and how much each takes a step


def _flight(chance: random.Random, number: int) -> tuple[str, str]:
    origin = chance.choice(("EWR", "JFK", "LGA"))
    value = {
        "carrier": chance.choice(CARRIERS),
        "flight": 100 + number % 4900,
        "origin": origin,
        "dest": chance.choice(PLACES),
        "tailnum": f"N{chance.randrange(10_000, 99_999)}",
        "dep_delay": round(chance.gauss(6, 18)),
        "distance": chance.randrange(180, 2600),
    }
    return f"{origin}-{value['flight']}", json.dumps(value)


def _depart(broker: RunningBroker, is_over: Event) -> None:
    chance = random.Random(2013)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5})
    number, step = 0, 0
    while not is_over.wait(STEP_SECONDS):
        step += 1
        wave = 1 + 0.6 * math.sin(step * STEP_SECONDS / WAVE_SECONDS * 2 * math.pi)
        for _ in range(int(40 * wave * chance.uniform(0.8, 1.2))):
            number += 1
            key, value = _flight(chance, number)
            headers = {"source": b"tower"}
            producer.produce("flights", value, key=key, headers=headers)
            if not number % 7:
                producer.produce("delays.by-hour", value[:90], key=key)
            if not number % 40:
                producer.produce("weather", value[:60], key=key[:3])
        producer.poll(0)
    assert producer.flush(30) == 0


def _read(broker: RunningBroker, group: str, at_once: int, is_over: Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "client.id": f"{group}-1",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["flights"])
    while not is_over.is_set():
        if consumer.consume(at_once, STEP_SECONDS * 2):
            consumer.commit(asynchronous=False)
        is_over.wait(STEP_SECONDS * 2)
    consumer.close()


@contextmanager
def departures(broker: RunningBroker, api: httpx.Client) -> Iterator[None]:
    """Flights depart and are read until the block ends."""
    make(api, "flights", 3, **{"retention.ms": "604800000"})
    make(api, "delays.by-hour", 1, **{"cleanup.policy": "compact"})
    make(api, "weather", 2)
    is_over = Event()
    with ThreadPoolExecutor(1 + len(GROUPS)) as pool:
        working = [pool.submit(_depart, broker, is_over)]
        working += [pool.submit(_read, broker, *each, is_over) for each in GROUPS.items()]
        try:
            yield
        finally:
            is_over.set()
            for each in working:
                each.result()
