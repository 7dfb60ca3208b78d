"""The benchmarks: produce, consume and latency.

produce   clients send records. Latency is measured from the send (with --rate, from the due time
          of the record) to the acknowledgement
consume   clients read their partitions from start to end, or up to the limits of the plan. Latency
          is the duration of a poll that returned records
latency   clients send records and consume them. Latency is measured from the send (with --rate,
          from the due time of the record) until a consumer has received the record. Without --rate,
          a client sends the next record when the previous one has arrived or failed, or after
          `ROUND_TRIP_SECONDS`
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle, islice
from threading import Event, Lock
from typing import Any

from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.bench.plan import Pace, Plan
from strandlog.cli.bench.readers import Range, open_reader, ranges_of, size_of
from strandlog.cli.bench.run import Client, Outcome, run_clients
from strandlog.cli.bench.senders import Sender, open_sender
from strandlog.client.api import OpenLog, ReadableLog
from strandlog.clock import stopwatch
from strandlog.errors import DataError

# Prefix of each value in `bench latency`: the run id, the client, and when the record was due.
STAMP = struct.Struct("<8sId")
ARRIVAL_SECONDS = 10.0  # after the last send, how long to wait for another record
ROUND_TRIP_SECONDS = 30.0


def produce(log: OpenLog, topic: str, plan: Plan, measurement: Measurement) -> Outcome:
    """Send records with all clients."""
    values = plan.payloads()
    began = stopwatch()
    clients: list[Client] = []
    for number in range(plan.clients):
        sender = open_sender(log, topic, plan, measurement)
        pace = Pace(plan, number, began)
        clients.append(_producer(sender, pace, plan.chunk, cycle(values)))
    return run_clients(
        clients, measurement, f"produce to {topic}", plan.records, plan.stall_seconds
    )


def _producer(sender: Sender, pace: Pace, chunk: int, values: Iterator[bytes]) -> Client:
    def client(stop: Event) -> None:
        with closing(sender):
            while not stop.is_set() and not pace.is_over:
                if times := pace.due(chunk):
                    sender.send(list(islice(values, len(times))), times)
                else:
                    sender.poll()
                    pace.wait(stop)
            if not stop.is_set():
                sender.finish()

    return client


def fill(log: OpenLog, topic: str, plan: Plan) -> Outcome:
    """Write the records that `bench consume` and `bench spark` read."""
    measurement = Measurement()
    filling = plan._replace(rate=None, clients=1, acks="1")
    values = plan.payloads()
    sender = open_sender(log, topic, filling, measurement)
    client = _producer(sender, Pace(filling, 0, stopwatch()), plan.chunk, cycle(values))
    outcome = run_clients([client], measurement, f"fill {topic}", plan.records, plan.stall_seconds)
    if measurement.errors and outcome.error is None:
        reason, _ = measurement.messages.most_common(1)[0]
        return outcome._replace(error=DataError(f"cannot fill {topic}: {reason}"))
    return outcome


def consume(log: ReadableLog, topic: str, plan: Plan, measurement: Measurement) -> Outcome:
    """Read the topic with all clients."""
    infos = log.describe_topic(topic).partitions
    began = stopwatch()
    budget = _Budget(plan.records)
    clients: list[Client] = []
    for number in range(plan.clients):
        ranges = ranges_of(infos, number, plan.clients)
        if ranges:
            reader = open_reader(log, topic, ranges)
            clients.append(_consumer(reader, plan, budget, measurement, began))
    size = sum(info.end_offset - info.start_offset for info in infos)
    total = size if plan.records is None else min(size, plan.records)
    return run_clients(clients, measurement, f"consume {topic}", total, plan.stall_seconds)


class _Budget:
    """The number of records that the clients together may still read."""

    def __init__(self, records: int | None) -> None:
        self._left = records
        self._lock = Lock()

    def take(self, wanted: int) -> int:
        with self._lock:
            if self._left is None:
                return wanted
            taken = min(wanted, self._left)
            self._left -= taken
            return taken

    @property
    def is_spent(self) -> bool:
        return self._left == 0


def _consumer(
    reader: Any, plan: Plan, budget: _Budget, measurement: Measurement, began: float
) -> Client:
    until = None if plan.seconds is None else began + plan.seconds

    def client(stop: Event) -> None:
        with closing(reader):
            while not (stop.is_set() or budget.is_spent or reader.is_at_end):
                before = stopwatch()
                if until is not None and before >= until:
                    return
                values = reader.read()
                values = values[: budget.take(len(values))]
                if values:
                    measurement.add(len(values), size_of(values), [stopwatch() - before])

    return client


# -- latency -------------------------------------------------------------------------------------


class _Latency:
    """State shared by the producers and consumers of `bench latency`."""

    def __init__(self, plan: Plan, measurement: Measurement) -> None:
        self.run = secrets.token_bytes(8)
        self.plan = plan
        self.measurement = measurement
        self.sending = Measurement()
        self.arrived = [Event() for _ in range(plan.clients)]
        self.all_sent = Event()
        self.producing = plan.clients
        self.lock = Lock()
        self.last_arrival = stopwatch()

    def value(self, client: int, due: float, padding: bytes) -> bytes:
        return STAMP.pack(self.run, client, due) + padding

    def receive(self, values: list[bytes | None]) -> None:
        """Measure the records of this run; ignore other records in the topic."""
        now = stopwatch()
        latencies = []
        size_bytes = 0
        for value in values:
            if value is None or not value.startswith(self.run) or len(value) < STAMP.size:
                continue
            _, client, due = STAMP.unpack_from(value)
            latencies.append(now - due)
            size_bytes += len(value)
            self.arrived[client].set()
        if latencies:
            self.last_arrival = now
            self.measurement.add(len(latencies), size_bytes, latencies)

    def producer_ended(self) -> None:
        with self.lock:
            self.producing -= 1
            if self.producing == 0:
                self.last_arrival = stopwatch()
                self.all_sent.set()

    @property
    def is_over(self) -> bool:
        if not self.all_sent.is_set():
            return False
        if self.measurement.records >= self.sending.records:
            return True
        return stopwatch() - self.last_arrival > ARRIVAL_SECONDS


def latency(log: OpenLog, topic: str, plan: Plan, measurement: Measurement) -> Outcome:
    """Send records and measure the time until a consumer receives them."""
    shared = _Latency(plan, measurement)
    padding = next(iter(plan._replace(size=max(0, plan.size - STAMP.size)).payloads()))
    infos = log.describe_topic(topic).partitions
    clients: list[Client] = []
    for number in range(plan.clients):
        ranges = [
            Range(each.partition, each.end, each.end)
            for each in ranges_of(infos, number, plan.clients)
        ]
        if ranges:
            clients.append(_receiver(open_reader(log, topic, ranges), shared))
    began = stopwatch()
    for number in range(plan.clients):
        sender = open_sender(log, topic, plan, shared.sending, linger_ms=0)
        pace = Pace(plan, number, began)
        clients.append(_stamping_producer(sender, pace, number, shared, padding))
    outcome = run_clients(
        clients, measurement, f"latency through {topic}", plan.records, plan.stall_seconds
    )
    for reason, count in shared.sending.messages.items():
        measurement.add_errors(reason, count)
    missing = shared.sending.records - measurement.records
    if missing > 0 and plan.acks != "0" and not outcome.is_interrupted and outcome.error is None:
        measurement.add_errors("acknowledged, but not received", missing)
    return outcome


def _receiver(reader: Any, shared: _Latency) -> Client:
    def client(stop: Event) -> None:
        with closing(reader):
            while not stop.is_set() and not shared.is_over:
                shared.receive(reader.read())

    return client


def _stamping_producer(
    sender: Sender, pace: Pace, number: int, shared: _Latency, padding: bytes
) -> Client:
    is_paced = shared.plan.rate is not None
    chunk = shared.plan.chunk if is_paced else 1

    def client(stop: Event) -> None:
        try:
            with closing(sender):
                while not stop.is_set() and not pace.is_over:
                    arrived = shared.arrived[number]
                    arrived.clear()
                    times = pace.due(chunk)
                    sender.send([shared.value(number, due, padding) for due in times], times)
                    if is_paced:
                        sender.poll()
                        pace.wait(stop, 0.01)
                    else:
                        _wait_for(arrived, sender, shared, stop)
                if not stop.is_set():
                    sender.finish()
        finally:
            shared.producer_ended()

    return client


def _wait_for(arrived: Event, sender: Sender, shared: _Latency, stop: Event) -> None:
    """Wait until the last record arrives, a send fails, `stop` is set or the timeout expires."""
    until = stopwatch() + ROUND_TRIP_SECONDS
    errors = shared.sending.errors
    while not arrived.wait(0.05) and not stop.is_set() and stopwatch() < until:
        sender.poll()
        if shared.sending.errors > errors:
            return
