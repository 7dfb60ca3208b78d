"""Workloads over prepared frames and many connections, and the time of a rebalance.

A client library would hide the broker here: the connections send the same Produce request again
and again, and only the responses are counted or timed.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer

from benchmarks.kafka.brokers import Broker
from benchmarks.wire import connect, produce_request, receive

TOPIC = "connections"
SECONDS = 2.0
RATE_SECONDS = 3.0
JOIN_SECONDS = 60


def closed_loop(ensure: Callable[..., bool], count: int) -> Callable[[Broker], float]:
    """Produce requests per second of `count` connections with one request in flight each."""

    def measure(broker: Broker) -> float:
        ensure(broker, TOPIC, 1)
        frame = produce_request(TOPIC, 1)
        connections = [connect(broker.address) for _ in range(count)]
        try:
            return _rate(connections, frame)
        finally:
            for connection in connections:
                connection.close()

    return measure


def _rate(connections: list[socket.socket], frame: bytes) -> float:
    """A response to such a request is so short that one read returns all of it."""
    responses = 0
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.sendall(frame)
        began = time.perf_counter()
        end = began + SECONDS
        while (now := time.perf_counter()) < end:
            for key, _ in selector.select(timeout=1):
                if not key.data.recv(4096):
                    raise ConnectionError("the broker closed a connection")
                responses += 1
                key.data.sendall(frame)
    return responses / (now - began)


def latency_at_rate(ensure: Callable[..., bool], rate: int) -> Callable[[Broker], float]:
    """The 99th percentile of the milliseconds from the scheduled time of a Produce request with
    acks=1 until its response, at a fixed rate on one connection.

    The time counts from the schedule, so that a broker that stops for a while pays for every
    request that was due meanwhile.
    """

    def measure(broker: Broker) -> float:
        ensure(broker, TOPIC, 1)
        frame, count = produce_request(TOPIC, 1), int(rate * RATE_SECONDS)
        with connect(broker.address) as connection:
            began = time.perf_counter() + 0.05
            sender = threading.Thread(target=_send_at, args=(connection, frame, began, rate, count))
            sender.start()
            took = []
            for number in range(count):
                receive(connection)
                took.append(time.perf_counter() - (began + number / rate))
            sender.join()
        return 1000 * sorted(took)[count * 99 // 100]

    return measure


def _send_at(connection: socket.socket, frame: bytes, began: float, rate: int, count: int) -> None:
    for number in range(count):
        if (wait := began + number / rate - time.perf_counter()) > 0:
            time.sleep(wait)
        connection.sendall(frame)


def rebalance(ensure: Callable[..., bool], partitions: int) -> Callable[[Broker], float]:
    """Seconds from the subscription of a second member until both members have half of the
    partitions."""
    calls = 0

    def measure(broker: Broker) -> float:
        nonlocal calls
        calls += 1
        topic = f"rebalance-{partitions}"
        ensure(broker, topic, partitions)
        config = {
            "bootstrap.servers": broker.address,
            "group.id": f"{topic}-{calls}",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 10_000,
            "log_level": 3,
        }
        first, second = Consumer(config), Consumer(config)
        try:
            first.subscribe([topic])
            _poll_until([first], [partitions])
            began = time.perf_counter()
            second.subscribe([topic])
            _poll_until([first, second], [partitions // 2, partitions // 2])
            return time.perf_counter() - began
        finally:
            first.close()
            second.close()

    return measure


def _poll_until(members: list[Consumer], counts: list[int]) -> None:
    end = time.monotonic() + JOIN_SECONDS
    while [len(member.assignment()) for member in members] != counts:
        for member in members:
            member.poll(0.01)
        if time.monotonic() > end:
            raise TimeoutError("the members did not get their partitions")
