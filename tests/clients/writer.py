"""An idempotent producer in a process of its own: `python writer.py CLIENT ADDRESS TOPIC`.

Writes 0, 1, 2 ... to partition 0 until its stdin is closed; then it waits until all of them are
acknowledged and prints how many there were.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

BURST = 50
PAUSE_SECONDS = 0.03
PATIENCE_SECONDS = 60


def bursts() -> Iterator[range]:
    """Numbers to write, until stdin is closed; the caller rests in between."""
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    first = 0
    while not closed.is_set():
        yield range(first, first + BURST)
        first += BURST


def confluent(address: str, topic: str) -> int:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    outcomes: list[Any] = []
    for burst in bursts():
        for number in burst:
            producer.produce(
                topic,
                str(number),
                partition=0,
                on_delivery=lambda error, _: outcomes.append(error),
            )
        producer.poll(0)
        time.sleep(PAUSE_SECONDS)
    left = producer.flush(PATIENCE_SECONDS)
    assert not left, f"{left} were not sent"
    assert not any(outcomes), next(filter(None, outcomes))
    return len(outcomes)


def kafka_python(address: str, topic: str) -> int:
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True, linger_ms=5)
    futures: list[Any] = []
    for burst in bursts():
        futures += [producer.send(topic, b"%d" % number, partition=0) for number in burst]
        time.sleep(PAUSE_SECONDS)
    for future in futures:
        future.get(timeout=PATIENCE_SECONDS)
    producer.close()
    return len(futures)


def aiokafka(address: str, topic: str) -> int:
    from aiokafka import AIOKafkaProducer

    async def run() -> int:
        async with AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, linger_ms=5
        ) as producer:
            futures: list[Any] = []
            for burst in bursts():
                for number in burst:
                    futures.append(await producer.send(topic, b"%d" % number, partition=0))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_SECONDS)
        return len(futures)

    return asyncio.run(run())


CLIENTS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main() -> None:
    client, address, topic = sys.argv[1:]
    sys.stdout.write(f"{CLIENTS[client](address, topic)}\n")


if __name__ == "__main__":
    main()
