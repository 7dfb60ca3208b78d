"""Read, process, write with transactions while clients and the broker are killed.

    python -m tests.soak.transaction_kills --kills 50 [--seed N] [--json]

Two workers (exactly_once_worker.py) turn numbers into squares while numbers keep coming. At random
moments one of them, or the broker, is killed with kill -9 and started again. In the end every
number must be there exactly once for a reader of committed records, in the order of its key.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.soak.exactly_once_worker import INPUT, OUTPUT
from tests.soak.reading import PATIENCE_S, read_partition, run_soak, say
from tests.support.broker_process import BrokerProcess

PARTITIONS = 3
KEYS = 30
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "3",
}


@dataclass
class Report:
    """What was done, and what was found."""

    worker_kills: int = 0
    broker_kills: int = 0
    numbers: int = 0
    squares: int = 0
    missing: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    written: int = 0  # squares, of aborted transactions too
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return self.numbers > 0 and not self.missing + self.duplicated + self.out_of_order


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self._rng = random.Random(seed)
        self._folder = folder
        self._broker = BrokerProcess(folder / "data", SETTINGS)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, kills: int) -> Report:
        began = time.monotonic()
        self._broker.start()
        admin = AdminClient({"bootstrap.servers": self._broker.address})
        for future in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1) for name in (INPUT, OUTPUT)]
        ).values():
            future.result(PATIENCE_S)
        feeder = Producer(
            {
                "bootstrap.servers": self._broker.address,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
            }
        )
        try:
            for number in range(2):
                self._start_worker(f"worker-{number}")
            for kill in range(kills):
                # All the time, so that a kill finds every process at work.
                for _ in range(self._rng.randint(5, 75)):
                    self._feed(feeder, self._rng.randint(5, 40))
                    time.sleep(0.02)
                self._kill()
                say(f"kill {kill + 1} of {kills}: {self.report.numbers} numbers")
            assert feeder.flush(PATIENCE_S) == 0, "not every number was taken"
            self._finish()
        finally:
            for process in self._workers.values():
                process.kill()
                process.wait()
            self._broker.stop()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _start_worker(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.soak.exactly_once_worker"]
        with (self._folder / f"{name}.err").open("ab") as errors:
            self._workers[name] = subprocess.Popen(
                [*command, self._broker.address, name], stderr=errors, stdout=errors
            )

    def _feed(self, feeder: Producer, count: int) -> None:
        for _ in range(count):
            number = self.report.numbers
            feeder.produce(INPUT, b"%d" % number, b"key-%d" % (number % KEYS))
            self.report.numbers += 1
        feeder.poll(0)

    def _kill(self) -> None:
        self._revive()
        if self._rng.random() < 0.5:
            self._broker.stop(SIGKILL)
            self._broker.start()
            self.report.broker_kills += 1
        else:
            name = self._rng.choice(sorted(self._workers))
            self._workers[name].kill()
            self._workers[name].wait()
            self._start_worker(name)
            self.report.worker_kills += 1

    def _revive(self) -> None:
        """A worker that was fenced or gave up has ended."""
        for name, process in list(self._workers.items()):
            if process.poll() is not None:
                self._start_worker(name)

    def _finish(self) -> None:
        """Let the workers catch up, then count."""
        deadline = time.monotonic() + PATIENCE_S
        found: list[tuple[int, int]] = []
        while time.monotonic() < deadline:
            self._revive()
            found = read_squares(self._broker.address)
            if len({number for number, _ in found}) >= self.report.numbers:
                time.sleep(2)  # a duplicate may be on its way
                found = read_squares(self._broker.address)
                break
            time.sleep(1)
        for partition in range(PARTITIONS):
            everything = read_partition(self._broker.address, OUTPUT, partition, "read_uncommitted")
            self.report.written += sum(1 for _ in everything)
        self._judge(found)

    def _judge(self, found: list[tuple[int, int]]) -> None:
        report = self.report
        report.squares = len(found)
        distinct = {number for number, _ in found}
        report.missing = len(set(range(report.numbers)) - distinct)
        report.duplicated = len(found) - len(distinct)
        last_of_key: dict[int, int] = {}
        for number, square in found:
            assert square == number * number, f"{number} became {square}"
            if number <= last_of_key.get(number % KEYS, -1):
                report.out_of_order += 1
            last_of_key[number % KEYS] = number


def read_squares(bootstrap: str) -> list[tuple[int, int]]:
    """All squares that a reader of committed records sees, partition by partition."""
    found: list[tuple[int, int]] = []
    for partition in range(PARTITIONS):
        for message in read_partition(bootstrap, OUTPUT, partition):
            number, square = (message.value() or b"").split()
            found.append((int(number), int(square)))
    return found


if __name__ == "__main__":
    sys.exit(run_soak(Soak, "Kill clients and broker of an exactly-once loop.", "kills"))
