"""The broker is killed under load, again and again; a checker says what became of every record.

    python -m tests.soak.broker_kills --rounds 50 [--seed N] [--json]

Three idempotent producers (acks=all) write numbered records under keys of their own; two groups of
two members read them and commit. Each round the broker is killed with kill -9 in the middle of it
and started again. In the end the whole log is read and compared with what the producers got back:

    acknowledged    each acknowledged record is at the offset that its producer got
    once            no record stands there twice
    in order        the numbers of each key ascend
    seen            each group has read every record, in order but for what it read again after
                    a crash, and has committed the end of every partition
"""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.soak.reading import PATIENCE_S, read_partition, run_soak, say
from tests.support.broker_process import BrokerProcess

TOPIC, PARTITIONS, PRODUCERS, MEMBERS, KEYS = "load", 4, 3, 2, 8
GROUPS = ("first", "second")
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}


@dataclass
class Report:
    """What was done, and what was found."""

    kills: int = 0
    acknowledged: int = 0
    failed: int = 0
    in_log: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    read_by_groups: int = 0
    read_again: int = 0
    unseen: int = 0
    uncommitted: int = 0
    longest_restart_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        wrong = self.lost + self.duplicated + self.out_of_order + self.unseen + self.uncommitted
        return self.acknowledged > 0 and not wrong + self.failed


@dataclass
class Load:
    """One producer: writes until it is stopped, and keeps its acknowledgements."""

    number: int
    bootstrap: str
    stop: threading.Event
    placed: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    failures: int = 0

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": PATIENCE_S * 1000,
                "queue.buffering.max.messages": 5000,
            }
        )
        count = 0
        while not self.stop.is_set():
            key = f"{self.number}-{count % KEYS}"
            try:
                producer.produce(TOPIC, b"%d" % count, key.encode(), on_delivery=self._told)
                count += 1
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
            if count % 100 == 0:
                time.sleep(0.01)
        self.failures += producer.flush(PATIENCE_S)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures += 1
            return
        name = ((message.key() or b"").decode(), int(message.value() or b""))
        offset, partition = message.offset(), message.partition()
        assert offset is not None
        assert partition is not None
        self.placed[name] = (partition, offset)


@dataclass
class Member:
    """One member of a group: reads and commits until it is stopped."""

    group: str
    bootstrap: str
    stop: threading.Event
    seen: dict[int, list[int]] = field(default_factory=dict)

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
            }
        )
        consumer.subscribe([TOPIC])
        while not self.stop.is_set():
            messages = [m for m in consumer.consume(500, 0.2) if m.error() is None]
            for message in messages:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.seen.setdefault(partition, []).append(offset)
            if messages:
                self._commit(consumer)
        self._commit(consumer)
        consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the broker is away, or the group is rebalancing: the next one will do


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self._rng = random.Random(seed)
        self._broker = BrokerProcess(folder / "data", SETTINGS)

    def run(self, rounds: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        address = self._broker.address
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_S)
        stop_loads, stop_members = threading.Event(), threading.Event()
        loads = [Load(number, address, stop_loads) for number in range(PRODUCERS)]
        members = [Member(group, address, stop_members) for group in GROUPS for _ in range(MEMBERS)]
        runs = [*(load.run for load in loads), *(member.run for member in members)]
        threads = [threading.Thread(target=run) for run in runs]
        for thread in threads:
            thread.start()
        try:
            for number in range(rounds):
                time.sleep(self._rng.uniform(0.3, 1.5))
                self._kill()
                placed = sum(len(load.placed) for load in loads)
                say(f"round {number + 1} of {rounds}: {placed} acknowledged")
            time.sleep(1)
            stop_loads.set()
            for thread in threads[:PRODUCERS]:
                thread.join()
            log = read_log(address)
            self._wait_for_groups(members, log)
        finally:
            stop_loads.set()
            stop_members.set()
            for thread in threads:
                thread.join()
        self._judge(loads, members, log)
        self._broker.stop()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _kill(self) -> None:
        self._broker.stop(SIGKILL)
        began = time.monotonic()
        self._broker.start()
        took = round(time.monotonic() - began, 2)
        self.report.longest_restart_seconds = max(self.report.longest_restart_seconds, took)
        self.report.kills += 1

    def _wait_for_groups(
        self, members: list[Member], log: dict[int, list[tuple[str, int]]]
    ) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._unseen(members, log):
            time.sleep(0.5)

    def _unseen(self, members: list[Member], log: dict[int, list[tuple[str, int]]]) -> int:
        count = 0
        for group in GROUPS:
            for partition, records in log.items():
                seen: set[int] = set()
                for member in members:
                    if member.group == group:
                        seen |= set(member.seen.get(partition, ()))
                count += len(set(range(len(records))) - seen)
        return count

    def _judge(
        self,
        loads: list[Load],
        members: list[Member],
        log: dict[int, list[tuple[str, int]]],
    ) -> None:
        report = self.report
        report.failed = sum(load.failures for load in loads)
        report.in_log = sum(map(len, log.values()))
        for load in loads:
            report.acknowledged += len(load.placed)
            for name, (partition, offset) in load.placed.items():
                records = log[partition]
                if offset >= len(records) or records[offset] != name:
                    report.lost += 1
        everything = [name for records in log.values() for name in records]
        report.duplicated = len(everything) - len(set(everything))
        for records in log.values():
            last: dict[str, int] = {}
            for key, number in records:
                report.out_of_order += number <= last.get(key, -1)
                last[key] = number
        report.unseen = self._unseen(members, log)
        for member in members:
            for offsets in member.seen.values():
                report.read_by_groups += len(offsets)
                report.read_again += len(offsets) - len(set(offsets))
        report.uncommitted = self._uncommitted(log)

    def _uncommitted(self, log: dict[int, list[tuple[str, int]]]) -> int:
        """How many partitions a group has not committed to their end."""
        count = 0
        for group in GROUPS:
            consumer = Consumer({"bootstrap.servers": self._broker.address, "group.id": group})
            wanted = [TopicPartition(TOPIC, partition) for partition in log]
            for place in consumer.committed(wanted, PATIENCE_S):
                count += place.offset != len(log[place.partition])
            consumer.close()
        return count


def read_log(bootstrap: str) -> dict[int, list[tuple[str, int]]]:
    """(key, number) of every record, by partition; offsets have no gaps here."""
    log: dict[int, list[tuple[str, int]]] = {}
    for partition in range(PARTITIONS):
        records = log[partition] = []
        for message in read_partition(bootstrap, TOPIC, partition):
            assert message.offset() == len(records), "offsets have no gaps here"
            records.append(((message.key() or b"").decode(), int(message.value() or b"")))
    return log


if __name__ == "__main__":
    sys.exit(run_soak(Soak, "Kill the broker under load and check everything.", "rounds"))
