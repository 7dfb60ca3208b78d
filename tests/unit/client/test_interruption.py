"""Ctrl-C at any line: the program can continue to use the log.

A tracer raises KeyboardInterrupt at the n-th line that strandlog executes, for every n, as the
interpreter may do when a signal arrives. Tests of the lock use `SignalCheck` instead, because the
interpreter never handles a signal at the start of a `with` line that releases a lock.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain, member, numbered
from tests.support.examples import is_quick

import strandlog
from strandlog import Consumer
from strandlog.config.setting import MAX_LONG
from strandlog.testing.disk.faults import Step

PACKAGE = strandlog.__file__.removesuffix("__init__.py")
SPARED = ("testing/", "errors.py")


class Interrupter:
    """Raises at one line; `has_struck` tells whether there were so many."""

    def __init__(self, at_line: int) -> None:
        self.lines_left = at_line
        self.has_struck = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupter | None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.removeprefix(PACKAGE).startswith(SPARED):
            return None
        if name.endswith(SPARED):
            return None
        if event == "line" and not self.has_struck:
            self.lines_left -= 1
            if self.lines_left < 0:
                self.has_struck = True
                raise KeyboardInterrupt
        return self


class SignalCheck:
    """Raises at one of the points where CPython handles signals: the start of a Python function and
    the return of a C function. Includes those of `threading`, which the lock uses."""

    def __init__(self, at_point: int) -> None:
        self.points_left = at_point
        self.has_struck = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        is_ours = name.startswith(PACKAGE) and not name.removeprefix(PACKAGE).startswith(SPARED)
        if event in ("call", "c_return") and (is_ours or name == threading.__file__):
            self.points_left -= 1
            if self.points_left < 0 and not self.has_struck:
                self.has_struck = True
                raise KeyboardInterrupt


@contextmanager
def signal_at(point: int) -> Iterator[SignalCheck]:
    check = SignalCheck(point)
    sys.setprofile(check)
    try:
        yield check
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)


@contextmanager
def interrupted_at(line: int) -> Iterator[Interrupter]:
    interrupter = Interrupter(line)
    before = sys.gettrace()
    sys.settrace(interrupter)
    try:
        yield interrupter
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def lines_to_try(deed: Callable[[int], bool]) -> int:
    """Calls `deed` with one line after the other until it is not interrupted; skips some lines."""
    chance = random.Random(7)
    every_line, longest_step = (20, 60) if is_quick() else (150, 24)
    line = 0
    while deed(line):
        line += 1 if line < every_line else chance.randrange(1, longest_step)
    return line


def test_interrupted_sends_lose_nothing_that_was_acknowledged(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2, {"segment.bytes": 1024})
    acknowledged: dict[tuple[int, int], bytes] = {}
    counter = itertools.count()

    def send(acks: str | int) -> None:
        value = b"%d" % next(counter) + bytes(100)
        meta = embedded.log.producer(acks).send("t", value)  # type: ignore[arg-type]
        assert (meta.partition, meta.offset) not in acknowledged, "an offset was given twice"
        acknowledged[meta.partition, meta.offset] = value

    for acks in ("all", 0):

        def interrupt(line: int, acks: str | int = acks) -> bool:
            with interrupted_at(line) as interrupter:
                send(acks)
            for _ in range(3):
                send(acks)
            return interrupter.has_struck

        assert lines_to_try(interrupt) > 100
    for reopen in (embedded.run_maintenance, embedded.kill, embedded.reopen):
        reopen()
        found = {(r.partition, r.offset): r.value for r in drain(embedded.log.consumer(["t"]))}
        assert {place: found.get(place) for place in acknowledged} == acknowledged
    assert embedded.log.problems == []


def test_interrupted_batches_are_stored_as_a_whole_or_not_at_all(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)

    def interrupt(line: int) -> bool:
        producer = embedded.log.producer(acks=1)
        with interrupted_at(line) as interrupter:
            producer.send_batch("t", [b"%d" % line] * 6)
        metas = producer.send_batch("t", [b"whole"] * 6)
        found = {(r.partition, r.offset): r.value for r in drain(embedded.log.consumer(["t"]))}
        assert [found[meta.partition, meta.offset] for meta in metas] == [b"whole"] * 6
        return interrupter.has_struck

    assert lines_to_try(interrupt) > 100
    values = embedded.values("t")
    for value in set(values):
        assert values.count(value) % 3 == 0


def test_an_interrupted_poll_returns_its_records_again(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    embedded.send("t", *numbered(9))

    def interrupt(line: int) -> bool:
        consumer = embedded.log.consumer(["t"])
        taken: list[bytes | None] = []
        with interrupted_at(line) as interrupter:
            taken += [record.value for record in consumer.poll()]
        taken += [record.value for record in drain(consumer)]
        assert sorted(value or b"" for value in taken) == numbered(9), f"line {line}"
        return interrupter.has_struck

    assert lines_to_try(interrupt) > 100


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["compact", "enforce_retention", "run_maintenance"])
def test_interrupted_maintenance_is_repeated(embedded: EmbeddedHarness, deed: str) -> None:
    config = {"segment.bytes": 1024, "retention.bytes": 3000, "cleanup.policy": "compact,delete"}
    embedded.log.create_topic("t", config=config)
    producer = embedded.log.producer()
    for number in range(40):
        producer.send("t", b"%d" % number + bytes(100), b"k%d" % (number % 3))
    whole = embedded.disk.after_kill()

    def interrupted_clean(line: int) -> int:
        """How many lines were left when it was done, if it was not interrupted."""
        log = embedded.use(whole.after_kill())
        embedded.clock.advance(600_000)
        with interrupted_at(line) as interrupter:
            getattr(log, deed)(*([] if deed == "run_maintenance" else ["t"]))
        assert log.producer().send("t", b"last", b"k").offset == 40
        for _ in (embedded.log, embedded.reopen()):
            records = drain(embedded.log.consumer(["t"]))
            assert records[-1].value == b"last"
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            last = {r.key: r.value for r in records if r.offset < 40}
            assert not last or last[b"k0"] == b"39" + bytes(100)
        return 0 if interrupter.has_struck else interrupter.lines_left

    many = 10**6
    total = many - interrupted_clean(many)
    assert total > 500
    for line in random.Random(3).sample(range(total), 120):
        assert not interrupted_clean(line)


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["run_maintenance", "flush", "poll"])
def test_an_interrupted_flush_blocks_no_later_flush(deed: str) -> None:
    """Otherwise the next thread would wait for the end of a flush that no thread executes."""

    def interrupt(line: int) -> bool:
        embedded = EmbeddedHarness()
        log = embedded.log
        log.create_topic("t", 3)
        consumer = log.consumer(["t"])
        log.producer(acks=1).send_batch("t", numbered(3))
        embedded.clock.advance(2_000 if deed == "run_maintenance" else 0)
        with interrupted_at(line) as interrupter:
            getattr(consumer if deed == "poll" else log, deed)()
        assert not log.broker.is_flushing(log.context), f"line {line}"
        embedded.clock.advance(2_000)
        log.run_maintenance()
        embedded.lose_power()
        assert sorted(value or b"" for value in embedded.values("t")) == numbered(3), f"line {line}"
        return interrupter.has_struck

    line = 0
    while interrupt(line):
        line += 5 if is_quick() else 2
    assert line > 100


def test_an_interrupted_commit_may_be_repeated(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", *numbered(3))

    def interrupt(line: int) -> bool:
        consumer = member(embedded)
        consumer.seek("t", 0, line % 3)
        with interrupted_at(line) as interrupter:
            consumer.commit()
        consumer.seek("t", 0, 3)
        consumer.commit()
        consumer.close()
        embedded.reopen()
        assert [at.offset for at in embedded.log.committed_offsets("g").values()] == [3]
        return interrupter.has_struck

    assert lines_to_try(interrupt) > 50


LOCKED_CALLS: dict[str, Callable[[EmbeddedHarness, Consumer], object]] = {
    "assignment": lambda _, consumer: consumer.assignment,
    "close_consumer": lambda embedded, _: embedded.log.consumer(["t"]).close(),
    "delete_records": lambda embedded, _: embedded.log.delete_records("t", 0, 1),
    "describe_topic": lambda embedded, _: embedded.log.describe_topic("t"),
    "flush": lambda embedded, _: embedded.log.flush(),
    "poll": lambda _, consumer: consumer.poll(),
    "problems": lambda embedded, _: embedded.log.problems,
    "send": lambda embedded, _: embedded.log.producer().send("t", b"v"),
    "send_batch": lambda embedded, _: embedded.log.producer().send_batch("t", [b"v", b"w"]),
}


@pytest.mark.parametrize("call", LOCKED_CALLS)
def test_other_threads_do_not_wait_forever_after_an_interrupted_call(
    embedded: EmbeddedHarness, call: str
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"first")
    lock = embedded.log.lock
    consumer = embedded.log.consumer(["t"])

    def is_free() -> bool:
        if lock.acquire(blocking=False):
            lock.release()
            return True
        return False

    def interrupt(point: int) -> bool:
        consumer.seek_all(MAX_LONG)
        embedded.log.producer(acks=1).send("t", b"unflushed")
        with signal_at(point) as check:
            LOCKED_CALLS[call](embedded, consumer)
        assert others.submit(is_free).result(), f"the lock is held after point {point}"
        return check.has_struck

    with ThreadPoolExecutor(1) as others:
        points = lines_to_try(interrupt)
    assert points > 2


def test_an_interrupted_wait_raises_keyboard_interrupt(embedded: EmbeddedHarness) -> None:
    """If the interrupt left the lock released, the end of the `with` block would raise
    RuntimeError."""
    log = embedded.log

    def interrupt(point: int) -> bool:
        with signal_at(point) as check, log.lock:
            log.wait(1)
        return check.has_struck

    assert lines_to_try(interrupt) > 5


def test_delete_records_works_after_an_interrupted_delete_records(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")

    def interrupt(line: int) -> bool:
        producer = embedded.log.producer(acks=1)
        end = [producer.send("t", b"v").offset for _ in range(3)][-1]
        with interrupted_at(line) as interrupter:
            embedded.log.delete_records("t", 0, end - 1)
        embedded.log.delete_records("t", 0, end)
        assert embedded.log.describe_topic("t").partitions[0].start_offset == end
        return interrupter.has_struck

    assert lines_to_try(interrupt) > 100


def test_an_interrupted_delete_records_deletes_nothing_later(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer(acks=1)
    for value in numbered(5):
        producer.send("t", value)

    def interrupt_fsync(step: Step) -> None:
        if step.operation == "sync":
            embedded.disk.watch(None)
            raise KeyboardInterrupt

    embedded.disk.watch(interrupt_fsync)
    with pytest.raises(KeyboardInterrupt):
        embedded.log.delete_records("t", 0, 3)
    embedded.advance(60_000)
    embedded.send("t", b"5")
    assert embedded.values("t") == numbered(6)


@pytest.mark.slow
def test_a_second_close_releases_the_folder_after_an_interrupted_close() -> None:
    def interrupt(point: int) -> bool:
        embedded = EmbeddedHarness()
        log = embedded.log
        log.create_topic("t")
        member(embedded)
        log.producer(acks=1).send("t", b"v")
        with signal_at(point) as check:
            log.close()
        log.close()
        assert embedded.reopen().topics() == ["t"], f"point {point}"  # raises if still locked
        return check.has_struck

    assert lines_to_try(interrupt) > 100
