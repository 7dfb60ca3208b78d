"""Reads numbers, writes their squares, exactly once: the loop that the soak kills.

    python -m tests.soak.exactly_once_worker BOOTSTRAP NAME

Consume from `numbers` in the group `squares`, write to `squares` in a transaction together with the
offsets, again and again. Whatever goes wrong aborts the transaction and goes back to what was
committed, or ends the process if the producer was fenced; its parent starts it again.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

INPUT, OUTPUT, GROUP = "numbers", "squares", "squares"
BATCH = 50
PATIENCE_S = 20.0


def main(bootstrap: str, name: str) -> None:
    faulthandler.register(signal.SIGUSR1)  # tells where it stands
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 3000,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 10_000,
            # With "rebootstrap" librdkafka 2.15 forgets the only broker when it is away, keeps it
            # as the coordinator of the group all the same, and waits for it for ever.
            "metadata.recovery.strategy": "none",
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 200,
        }
    )
    with_patience(lambda: producer.init_transactions(PATIENCE_S))
    consumer.subscribe([INPUT])
    while True:
        messages = [m for m in consumer.consume(BATCH, 0.2) if m.error() is None]
        if messages:
            squares = [(m.key(), int(m.value() or b"")) for m in messages]
            write(producer, consumer, squares)


def with_patience(action: object) -> None:
    """Try again for as long as the broker is away."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            action()  # type: ignore[operator]
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def write(producer: Producer, consumer: Consumer, squares: list[tuple[bytes | None, int]]) -> None:
    """One transaction: the squares and the offsets behind what they were made of."""
    producer.begin_transaction()
    try:
        for key, number in squares:
            producer.produce(OUTPUT, b"%d %d" % (number, number * number), key)
        producer.flush(1)
        time.sleep(random.uniform(0, 0.05))  # written and not committed: a good moment to be killed
        positions = [
            place for place in consumer.position(consumer.assignment()) if place.offset >= 0
        ]
        metadata = consumer.consumer_group_metadata()
        with_patience(lambda: producer.send_offsets_to_transaction(positions, metadata, PATIENCE_S))
        with_patience(lambda: producer.commit_transaction(PATIENCE_S))
    except KafkaException as error:
        if error.args[0].fatal():
            raise
        with_patience(lambda: producer.abort_transaction(PATIENCE_S))
        go_back(consumer)


def go_back(consumer: Consumer) -> None:
    """To what the group has committed, or to the beginning."""
    assigned = [TopicPartition(place.topic, place.partition) for place in consumer.assignment()]
    if not assigned:
        return
    for place in consumer.committed(assigned, PATIENCE_S):
        place.offset = max(place.offset, 0)
        consumer.seek(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
