"""A member of a group in a process of its own: `python member.py CLIENT ADDRESS TOPIC GROUP
SESSION_MS [INSTANCE]`.

Prints one JSON object a line: {"assigned": [...]} each time the group gave it partitions, and
{"read": [...]} after it committed what it read. Ends cleanly on SIGTERM; SIGKILL is the other way.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

HEARTBEAT_MS = 300


class Wanted(NamedTuple):
    """The command line."""

    client: str
    address: str
    topic: str
    group: str
    session_ms: int
    instance: str | None = None


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def assigned(partitions: Iterable[Any]) -> None:
    say(assigned=sorted(each.partition for each in partitions))


def confluent(wanted: Wanted, stop: Stop) -> None:
    from confluent_kafka import Consumer, KafkaException

    config: dict[str, Any] = {
        "bootstrap.servers": wanted.address,
        "group.id": wanted.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": wanted.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
    }
    if wanted.instance is not None:
        config["group.instance.id"] = wanted.instance
    consumer = Consumer(config)
    consumer.subscribe([wanted.topic], on_assign=lambda _, partitions: assigned(partitions))
    while not stop.asked:
        found = [message for message in consumer.consume(100, 0.1) if message.error() is None]
        if found:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException:
                continue  # the group reads the messages again
            say(read=[message.value().decode() for message in found])
    consumer.close()


def kafka_python(wanted: Wanted, stop: Stop) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import CommitFailedError, KafkaConnectionError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, given: Any) -> None:
            assigned(given)

    consumer = KafkaConsumer(
        bootstrap_servers=wanted.address,
        group_id=wanted.group,
        group_instance_id=wanted.instance,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=wanted.session_ms,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([wanted.topic], listener=Listener())
    while not stop.asked:
        # Long: when this ends in the middle of a rebalance, 3.0.12 now and then loses the answer of
        # the coordinator, and does nothing from then on.
        try:
            polled = consumer.poll(timeout_ms=2000)
        except KafkaConnectionError:
            continue  # it tells of a broker that is away now and then, and finds it again
        found = [record for each in polled.values() for record in each]
        if found:
            try:
                consumer.commit()
            except CommitFailedError:
                continue  # the group reads the records again
            say(read=[record.value.decode() for record in found])
    consumer.close()


def aiokafka(wanted: Wanted, stop: Stop) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import CommitFailedError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, given: Any) -> None:
            assigned(given)

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=wanted.address,
            group_id=wanted.group,
            group_instance_id=wanted.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=wanted.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([wanted.topic], listener=Listener())
        await consumer.start()
        while not stop.asked:
            batch = await consumer.getmany(timeout_ms=100)
            found = [record for each in batch.values() for record in each]
            if found:
                try:
                    await consumer.commit()
                except CommitFailedError:
                    continue  # the group reads the records again
                say(read=[record.value.decode() for record in found])
        await consumer.stop()

    asyncio.run(run())


# A commit fails if the session has ended, which a busy machine can cause. Clients go on, as an
# application has to, and report nothing as read.
CLIENTS = {"confluent": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main() -> None:
    client, address, topic, group, session_ms, *instance = sys.argv[1:]
    wanted = Wanted(client, address, topic, group, int(session_ms), *instance)
    CLIENTS[client](wanted, Stop())


if __name__ == "__main__":
    main()
