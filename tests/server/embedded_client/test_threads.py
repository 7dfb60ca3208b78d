"""Producers and consumers side by side on real files: nothing lost, nothing twice, order kept."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

import strandlog
from strandlog import ClosedError, Log, Record
from strandlog.errors import GroupError

PATIENCE_S = 30


class Crew:
    """Threads whose errors fail the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[[], None], count: int = 1) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.errors.append(error)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]


def send_numbers(log: Log, name: str, count: int, acks: str | int) -> None:
    """Values name-0, name-1, …, all with the key name, one by one and in batches."""
    with log.producer(acks) as producer:  # type: ignore[arg-type]
        number = 0
        while number < count:
            if number % 3:
                producer.send("t", f"{name}-{number}".encode(), name.encode())
                number += 1
            else:
                end = min(number + 5, count)
                pairs = [(name.encode(), f"{name}-{n}".encode()) for n in range(number, end)]
                producer.send_batch("t", pairs)
                number = end


def check_complete(records: list[Record], names: list[str], count: int) -> None:
    """Every value once, and those of one key in order."""
    expected = Counter(f"{name}-{n}".encode() for name in names for n in range(count))
    assert Counter(record.value for record in records) == expected


def check_order(records: list[Record]) -> None:
    last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
    for record in records:
        assert record.offset > last[record.topic, record.partition]
        last[record.topic, record.partition] = record.offset


@pytest.mark.parametrize("acks", [0, "all"])
def test_producers_and_a_lone_consumer(tmp_path: Path, acks: str | int) -> None:
    names, count = ["a", "b", "c", "d"], 300
    found: list[Record] = []
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 3, {"segment.bytes": 8192})

        def consume() -> None:
            with log.consumer(["t"]) as consumer:
                while len(found) < len(names) * count:
                    found.extend(consumer.poll(max_records=37, timeout_ms=200))

        crew = Crew()
        crew.start(consume)
        for name in names:
            crew.start(lambda name=name: send_numbers(log, name, count, acks))  # type: ignore[misc]
        crew.finish()
    check_complete(found, names, count)
    check_order(found)


def test_a_group_of_threads_gets_every_record_once(tmp_path: Path) -> None:
    """Each member commits after each poll; members come and go while records come in."""
    names, count = ["a", "b", "c"], 400
    found: list[Record] = []
    rejected = 0
    lock = threading.Lock()
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 4)

        def consume(polls: int | None = None) -> None:
            nonlocal rejected
            with log.consumer(["t"], group="g") as consumer:
                while polls is None or polls > 0:
                    polls = None if polls is None else polls - 1
                    records = consumer.poll(max_records=23, timeout_ms=20)
                    try:
                        consumer.commit()
                    except GroupError:
                        rejected += 1
                        continue
                    with lock:
                        found.extend(records)
                        if len(found) >= len(names) * count:
                            return

        crew = Crew()
        for name in names:
            crew.start(lambda name=name: send_numbers(log, name, count, 1))  # type: ignore[misc]
        crew.start(consume, count=2)
        for _ in range(5):
            crew.start(lambda: consume(polls=4), count=1)
        crew.finish()
    assert rejected == 0, "a member that commits after each poll never commits too late"
    check_complete(found, names, count)


def test_topics_are_created_and_deleted_while_others_send(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2)

        def churn() -> None:
            for number in range(15):
                name = f"short-{number % 2}"
                log.create_topic(name, 2)
                log.producer().send_batch(name, [b"a", b"b"])
                assert len(log.consumer([name]).poll()) == 2
                log.delete_topic(name)

        def clean() -> None:
            for _ in range(15):
                log.compact("t")
                log.enforce_retention("t")
                log.run_maintenance()

        crew = Crew()
        crew.start(churn)
        crew.start(clean)
        for name in ("a", "b"):
            crew.start(lambda name=name: send_numbers(log, name, 100, "all"))  # type: ignore[misc]
        crew.finish()
        assert log.topics() == ["t"]
    with strandlog.open(tmp_path / "data") as log:
        assert log.problems == []
        last = {record.key: record.value for record in log.consumer(["t"]).poll()}
        assert last == {b"a": b"a-99", b"b": b"b-99"}


def test_close_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    log = strandlog.open(tmp_path / "data")
    log.create_topic("t", 2)
    is_busy = threading.Event()

    def send() -> None:
        try:
            producer = log.producer(acks="all")
        except ClosedError:
            return  # a late starter
        number = 0
        while True:
            value = f"{threading.get_ident()}-{number}".encode()
            try:
                producer.send("t", value)
            except ClosedError:
                return
            acknowledged.append(value)
            number += 1
            if len(acknowledged) > 20:
                is_busy.set()

    crew = Crew()
    crew.start(send, count=4)
    assert is_busy.wait(PATIENCE_S)
    log.close()
    crew.finish()
    with strandlog.open(tmp_path / "data") as again:
        assert again.problems == []
        values = Counter(record.value for record in again.consumer(["t"]).poll(max_records=10**6))
    assert values == Counter(acknowledged)
