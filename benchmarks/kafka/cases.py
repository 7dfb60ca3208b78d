"""The workloads of the comparison. Each takes a running broker and returns one figure.

All clients are librdkafka's (confluent-kafka), except for single-record requests and latencies, for
which a client library would hide the broker: those send prepared frames over a socket. A workload
creates its topic on the first call and is called again in every round.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.end_to_end import Route
from benchmarks.kafka.brokers import KAFKA, KAFKA_FSYNC, KINDS, STRANDLOG, Broker, Kind
from benchmarks.kafka.connections import closed_loop, latency_at_rate, rebalance
from benchmarks.wire import PARTITIONS, connect, new_producer, pipelined_rate, produce_request
from benchmarks.wire import create_topic as create

PLAIN_KINDS = (STRANDLOG, KAFKA)
POLL_EVERY = 10_000
LATENCY_RECORDS = 400
MANY_PRODUCERS = 10
ERRORS_ONLY = 3  # librdkafka logs a warning per partition while Kafka creates them


@dataclass(frozen=True, slots=True)
class Case:
    """A workload, and the brokers that it compares: the first one of `kinds` with the others.

    Cases with the same `series` measure the same workload at different sizes.
    """

    name: str
    unit: str
    measure: Callable[[Broker], float]
    higher_is_better: bool = True
    kinds: tuple[Kind, ...] = PLAIN_KINDS
    series: str = ""
    size: int = 0


class Topics:
    """Creates each topic once per broker."""

    def __init__(self) -> None:
        self._made: set[tuple[str, str]] = set()

    def ensure(self, broker: Broker, name: str, partitions: int = PARTITIONS) -> bool:
        """Create a topic unless it was created before. Return whether it is new."""
        if (broker.address, name) in self._made:
            return False
        create(broker.address, name, partitions)
        self._made.add((broker.address, name))
        return True


def _producer(broker: Broker, **config: Any) -> Producer:
    target = {"bootstrap.servers": broker.address, "log_level": ERRORS_ONLY}
    return new_producer(target, **config)


def _values(size: int, count: int = 1000) -> list[bytes]:
    """Values that compress to about a third, as JSON of an application does."""
    source = random.Random(size)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz0123456789", k=8)) for _ in range(99)]
    return [b" ".join(source.choices(words, k=size // 9 + 1))[:size] for _ in range(count)]


def produce(topics: Topics, size: int, count: int, **config: Any) -> Callable[[Broker], float]:
    """Records per second of one producer with default batching."""
    values = _values(size)
    topic = "produce-" + "-".join(str(each) for each in (size, *config.values()))

    def measure(broker: Broker) -> float:
        topics.ensure(broker, topic)
        producer = _producer(broker, **config)
        _send(producer, topic, values, PARTITIONS)  # connects and fetches the metadata
        began = time.perf_counter()
        _send(producer, topic, values, count)
        return count / (time.perf_counter() - began)

    return measure


def _send(producer: Producer, topic: str, values: list[bytes], count: int) -> None:
    kinds = len(values)
    for number in range(count):
        producer.produce(topic, values[number % kinds], partition=number % PARTITIONS)
        if not number % POLL_EVERY:
            producer.poll(0)
    assert producer.flush(300) == 0, "the broker did not acknowledge all records"


def keyed(topics: Topics, partitions: int, count: int) -> Callable[[Broker], float]:
    """Records per second of one producer whose keys select among many partitions."""
    topic, value = f"keyed-{partitions}", b"x" * 100

    def measure(broker: Broker) -> float:
        topics.ensure(broker, topic, partitions)
        producer = _producer(broker, acks="1")
        producer.produce(topic, value, key=b"0")
        assert producer.flush(300) == 0
        began = time.perf_counter()
        for number in range(count):
            producer.produce(topic, value, key=b"%d" % number)
            if not number % POLL_EVERY:
                producer.poll(0)
        assert producer.flush(300) == 0
        return count / (time.perf_counter() - began)

    return measure


def consume(topics: Topics, size: int, count: int) -> Callable[[Broker], float]:
    """Records per second of one consumer that reads a topic from its start."""
    topic, values = f"consume-{size}", _values(size)

    def measure(broker: Broker) -> float:
        if topics.ensure(broker, topic):
            _send(_producer(broker, acks="1"), topic, values, count)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1_000_000,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        left, began = count, 0.0
        while left:
            found = len(consumer.consume(min(left, POLL_EVERY), 1.0))
            if found and not began:
                began = time.perf_counter()
            left -= found
        took = time.perf_counter() - began
        consumer.close()
        return count / took

    return measure


def single_record_requests(topics: Topics) -> Callable[[Broker], float]:
    """Produce requests with one record each per second, 32 in flight on one connection."""

    def measure(broker: Broker) -> float:
        topics.ensure(broker, "single", 1)
        with connect(broker.address) as connection:
            return pipelined_rate(connection, produce_request("single", 1))

    return measure


def many_producers(topics: Topics, records_each: int) -> Callable[[Broker], float]:
    """Records per second of ten producers with acks=all that do not wait to fill a batch."""
    value = b"x" * 100

    def measure(broker: Broker) -> float:
        topics.ensure(broker, "many")
        producers = [
            _producer(broker, acks="all", **{"linger.ms": 0}) for _ in range(MANY_PRODUCERS)
        ]
        for producer in producers:
            _send(producer, "many", [value], PARTITIONS)
        threads = [
            threading.Thread(target=_send, args=(producer, "many", [value], records_each))
            for producer in producers
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return MANY_PRODUCERS * records_each / (time.perf_counter() - began)

    return measure


def end_to_end() -> tuple[Callable[[Broker], float], Callable[[Broker], float]]:
    """The median and the 99th percentile of the milliseconds from a send with acks=1 to the receipt
    by a waiting consumer."""
    routes: dict[str, Route] = {}

    def sorted_ms(broker: Broker) -> list[float]:
        if broker.address not in routes:
            routes[broker.address] = Route(broker.address)
        route = routes[broker.address]
        return sorted(1000 * route.seconds() for _ in range(LATENCY_RECORDS))

    def median(broker: Broker) -> float:
        return sorted_ms(broker)[LATENCY_RECORDS // 2]

    def percentile(broker: Broker) -> float:
        return sorted_ms(broker)[LATENCY_RECORDS * 99 // 100]

    return median, percentile


def processor_time(topics: Topics, count: int) -> Callable[[Broker], float]:
    """Processor seconds of the broker per gigabyte of 1 KB records produced."""
    produced = produce(topics, 1000, count, **{"acks": "1", "client.id": "cpu"})

    def measure(broker: Broker) -> float:
        before = broker.cpu_seconds()
        produced(broker)
        return (broker.cpu_seconds() - before) / (count * 1000 / 1e9)

    return measure


def all_cases(scale: float) -> list[Case]:
    """All workloads. `scale` multiplies the numbers of records."""
    topics = Topics()

    def records(count: int) -> int:
        return max(100, int(count * scale))

    latency, high_latency = end_to_end()
    rate = "records/s"
    cases = [
        Case(f"produce {label}, acks=1", rate, produce(topics, size, records(count), acks="1"))
        for label, size, count in (
            ("100 B", 100, 400_000),
            ("1 KB", 1000, 200_000),
            ("100 KB", 100_000, 3000),
        )
    ]
    acks_all = produce(topics, 1000, records(200_000), acks="all")
    cases.append(Case("produce 1 KB, acks=all", rate, acks_all, kinds=KINDS))
    for codec in ("lz4", "zstd", "gzip"):
        config = {"acks": "1", "compression.type": codec}
        count = 50_000 if codec == "gzip" else 200_000  # gzip takes the client ten times as long
        measure = produce(topics, 1000, records(count), **config)
        cases.append(Case(f"produce 1 KB, {codec}", rate, measure))
    cases += [
        Case("consume 100 B", rate, consume(topics, 100, records(800_000))),
        Case("consume 1 KB", rate, consume(topics, 1000, records(400_000))),
        Case("single-record requests", "requests/s", single_record_requests(topics)),
        *(
            Case(
                f"keyed, {count:,} partitions",
                rate,
                keyed(topics, count, records(100_000)),
                series="keyed produce by partitions",
                size=count,
            )
            for count in (10, 100, 1000, 4000)
        ),
        *(
            Case(
                f"{count} connection{'s' if count > 1 else ''}, one request in flight each",
                "requests/s",
                closed_loop(topics.ensure, count),
                series="requests by connections",
                size=count,
            )
            for count in (1, 10, 100, 500)
        ),
        *(
            Case(
                f"latency at {rate_per_s:,} requests/s, p99",
                "ms",
                latency_at_rate(topics.ensure, rate_per_s),
                higher_is_better=False,
            )
            for rate_per_s in (100, 1000, 5000)
        ),
        Case(
            "rebalance of 100 partitions between two members",
            "s",
            rebalance(topics.ensure, 100),
            higher_is_better=False,
        ),
        Case(
            "10 producers, acks=all, linger 0",
            rate,
            many_producers(topics, records(10_000)),
            kinds=(STRANDLOG, KAFKA_FSYNC, KAFKA),
        ),
        Case("end to end, p50", "ms", latency, higher_is_better=False, kinds=KINDS[:3]),
        Case("end to end, p99", "ms", high_latency, higher_is_better=False, kinds=KINDS[:3]),
        Case(
            "processor time per GB",
            "s",
            processor_time(topics, records(200_000)),
            higher_is_better=False,
        ),
    ]
    return cases
