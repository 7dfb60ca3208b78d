"""An embedded log whose disk and clock a test controls."""

from __future__ import annotations

from strandlog import Consumer, Log, Record
from strandlog.testing import FakeClock, SimulatedFiles


class EmbeddedHarness:
    """A log in a folder on a simulated disk, with ways to stop and restart it."""

    def __init__(self) -> None:
        self.disk = SimulatedFiles()
        self.clock = FakeClock()
        self.settings: dict[str, object] = {}
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        """The open log; opens the folder on first use."""
        if self._log is None or self._log.is_closed:
            self._log = Log("data", self.settings, clock=self.clock, files=self.disk)
        return self._log

    def reopen(self) -> Log:
        """Stop cleanly and start again."""
        self.log.close()
        return self.log

    def kill(self) -> Log:
        """Open the folder as `kill -9` leaves it."""
        return self.use(self.disk.after_kill())

    def lose_power(self) -> Log:
        """Open the folder after a power cut that loses everything unsynced."""
        return self.use(self.disk.after_crash(next(iter(self.disk.crash_states(budget=1)))))

    def use(self, disk: SimulatedFiles) -> Log:
        """Open the folder on another disk."""
        self.disk = disk
        self._log = None
        return self.log

    def run_maintenance(self) -> Log:
        """Run maintenance once, without a restart."""
        self.log.run_maintenance()
        return self.log

    def advance(self, ms: int) -> None:
        """Advance the clock in steps of a second and run maintenance after each."""
        while ms > 0:
            step = min(ms, 1000)
            self.clock.advance(step)
            self.log.run_maintenance()
            ms -= step

    def send(self, topic: str, *values: bytes, partition: int | None = None) -> None:
        """Send values, one by one, without keys."""
        producer = self.log.producer()
        for value in values:
            producer.send(topic, value, partition=partition)

    def values(self, topic: str) -> list[bytes | None]:
        """All values of the topic, ordered by partition and offset."""
        records = drain(self.log.consumer([topic]))
        return [record.value for record in sorted(records, key=place)]

    def count_steps(self, operation: str, path_part: str = "") -> int:
        """How many times an operation was done to paths that contain `path_part`."""
        return sum(
            step.operation == operation and path_part in step.path for step in self.disk.trace
        )


def place(record: Record) -> tuple[str, int, int]:
    """The position of a record, as a sort key."""
    return record.topic, record.partition, record.offset


def drain(consumer: Consumer, max_records: int = 500) -> list[Record]:
    """Poll until a poll returns nothing."""
    found: list[Record] = []
    while records := consumer.poll(max_records):
        found += records
    return found


def numbered(count: int) -> list[bytes]:
    """b"0", b"1", …"""
    return [str(number).encode() for number in range(count)]


def member(
    embedded: EmbeddedHarness, *topics: str, group: str = "g", **options: object
) -> Consumer:
    """A consumer of topic t (or others) in group g (or another)."""
    return embedded.log.consumer(topics or ["t"], group=group, **options)  # type: ignore[arg-type]


def owned(*members: Consumer) -> list[int]:
    """The partition numbers of all members, sorted."""
    return sorted(tp.partition for each in members for tp in each.assignment)


def read_values(*members: Consumer) -> list[bytes | None]:
    """Poll each member once, commit, and return all values in numerical order."""
    found = []
    for each in members:
        found += [record.value for record in each.poll()]
        each.commit()
    return sorted(found, key=lambda value: int(value or b"0"))
