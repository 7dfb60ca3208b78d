"""The asyncio consumer: polls that wait, iteration, positions of what the program received."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.async_log import Run, background, turns
from tests.support.waiting import eventually_in_loop

import strandlog.aio
from strandlog import ClosedError, Record, StorageError, TopicPartition
from strandlog.aio import Consumer, Log
from strandlog.client.stepped import Step


async def fill(log: Log, count: int, partition: int = 0) -> None:
    async with log.producer() as producer:
        items = [{"value": b"%d" % n, "partition": partition} for n in range(count)]
        await producer.send_batch("t", items)


def test_a_poll_without_time_out_returns_what_is_there(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.consumer(["t"]) as consumer:
            assert await consumer.poll() == []
            await fill(log, 3)
            assert [record.value for record in await consumer.poll()] == [b"0", b"1", b"2"]
            assert await consumer.poll(timeout_ms=5) == []

    run(program)


def test_a_send_wakes_a_waiting_poll(run: Run) -> None:
    async def program(log: Log) -> None:
        async with (
            log.consumer(["t"]) as consumer,
            background(consumer.poll(timeout_ms=600_000)) as waiting,
        ):
            while not len(log.waiting):
                await asyncio.sleep(0)
            await fill(log, 1)
            assert [record.value for record in await waiting] == [b"0"]

    run(program)


def test_another_task_can_commit_and_seek_while_a_poll_waits(run: Run) -> None:
    async def program(log: Log) -> None:
        await fill(log, 3)
        async with log.consumer(["t"], group="g") as consumer:
            await consumer.poll()
            async with background(consumer.poll(timeout_ms=600_000)) as waiting:
                await turns()
                assert (await consumer.commit())[TopicPartition("t", 0)] == 3
                await consumer.seek("t", 0, 2)
                assert [record.value for record in await waiting] == [b"2"]

    run(program)


def test_iteration_waits_for_the_next_record_or_ends(run: Run) -> None:
    async def program(log: Log) -> None:
        await fill(log, 3)
        async with log.consumer(["t"], consumer_timeout_ms=0) as consumer:
            assert [record.value async for record in consumer] == [b"0", b"1", b"2"]
        found: list[Record] = []

        async def follow(consumer: Consumer) -> None:
            async for record in consumer:
                found.append(record)
                if len(found) == 4:
                    return

        async with log.consumer(["t"]) as consumer, background(follow(consumer)) as following:
            while len(found) < 3:
                await asyncio.sleep(0)
            await fill(log, 1)
            await following
        assert len(found) == 4

    run(program)


def test_a_commit_covers_the_records_that_the_program_received(run: Run) -> None:
    """The consumer reads ahead for `async for`; what it has read ahead is not committed."""

    async def program(log: Log) -> None:
        await fill(log, 100)
        async with log.consumer(["t"], group="g") as consumer:
            async for record in consumer:
                if record.offset == 6:
                    break
            assert await consumer.position("t", 0) == 7
            assert (await consumer.commit())[TopicPartition("t", 0)] == 7
            assert [record.offset for record in await consumer.poll(max_records=2)] == [7, 8]
            assert await consumer.position("t", 0) == 9
            await consumer.seek("t", 0, 50)
            assert (await anext(consumer)).offset == 50
            await consumer.assign([("t", 0)])
            assert (await anext(consumer)).offset == 51
            await consumer.seek_all(10)
            assert await consumer.position("t", 0) == 10
        assert (await log.committed_offsets("g"))[TopicPartition("t", 0)].offset == 7

    run(program)


@pytest.mark.parametrize("ends_with_an_error", [False, True])
def test_auto_commit_commits_what_the_program_asked_to_go_beyond(
    run: Run, ends_with_an_error: bool
) -> None:
    async def program(log: Log) -> None:
        await fill(log, 100)
        with contextlib.suppress(ZeroDivisionError):
            async with log.consumer(["t"], group="g", auto_commit=True) as consumer:
                async for record in consumer:
                    if record.offset == 6:
                        if ends_with_an_error:
                            raise ZeroDivisionError
                        break
        expected = 6 if ends_with_an_error else 7
        assert (await log.committed_offsets("g"))[TopicPartition("t", 0)].offset == expected

    run(program)


def test_members_of_a_group_share_the_partitions(run: Run) -> None:
    async def program(log: Log) -> None:
        found: dict[str, list[int]] = {"a": [], "b": []}

        async def member(name: str, consumer: Consumer) -> None:
            async for record in consumer:
                found[name].append(record.partition)
                await consumer.commit()

        async with (
            log.consumer(["t"], group="g") as first,
            background(member("a", first)),
            log.consumer(["t"], group="g") as second,
            background(member("b", second)),
        ):
            while not (len(await first.assignment()) == len(await second.assignment()) == 1):
                await asyncio.sleep(0)
            for partition in (0, 1):
                await fill(log, 5, partition)
            while len(found["a"]) < 5 or len(found["b"]) < 5:
                await asyncio.sleep(0)
        assert sorted([*found["a"], *found["b"]]) == [0] * 5 + [1] * 5
        assert len(set(found["a"])) == len(set(found["b"])) == 1

    run(program)


def test_the_partitions_of_a_closed_member_go_to_the_others(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.consumer(["t"], group="g") as first:
            second = await log.consumer(["t"], group="g")
            async with background(first.poll(timeout_ms=600_000)) as waiting:
                await second.close()
                await fill(log, 1, partition=0)
                await waiting
                assert len(await first.assignment()) == 2

    run(program)


def test_a_member_that_waits_stays_in_its_group(tmp_path: Path) -> None:
    async def program() -> None:
        settings = {"group.min.session.timeout.ms": "100"}
        async with strandlog.aio.open(tmp_path / "data", settings) as log:
            await log.create_topic("t")
            async with log.consumer(["t"], group="g", max_poll_interval_ms=300) as consumer:
                await consumer.poll()
                before = await log.describe_group("g")
                assert await consumer.poll(timeout_ms=1_000) == []
                assert await log.describe_group("g") == before

    asyncio.run(program())


def test_tasks_that_share_a_consumer_get_each_record_once(run: Run) -> None:
    async def program(log: Log) -> None:
        await fill(log, 1_000)
        found: list[int] = []
        async with log.consumer(["t"], consumer_timeout_ms=0) as consumer:

            async def read() -> None:
                while records := await consumer.poll(max_records=10):
                    found.extend(record.offset for record in records)

            await asyncio.gather(*(read() for _ in range(5)))
            while records := await consumer.poll():
                found.extend(record.offset for record in records)
        assert sorted(found) == list(range(1_000))

    run(program)


def test_closing_a_consumer_wakes_its_polls(run: Run) -> None:
    async def program(log: Log) -> None:
        consumer = await log.consumer(["t"])
        async with background(consumer.poll(timeout_ms=600_000)) as waiting:
            while not len(log.waiting):
                await asyncio.sleep(0)
            await consumer.close()
            await consumer.close()
            with pytest.raises(ClosedError, match="this consumer is closed"):
                await waiting
        with pytest.raises(ClosedError):
            await consumer.poll()

    run(program)


@pytest.mark.slow  # compiles kernels
class HeldStep:
    """The first step of a consumer, held in its thread after it has found no records."""

    def __init__(self, consumer: Consumer) -> None:
        self.count = 0
        self._has_looked = threading.Event()
        self._may_end = threading.Event()
        self._step = consumer._consumer.step
        consumer._consumer.step = self._look  # type: ignore[method-assign]

    def _look(self, *args: Any, **options: Any) -> Step:
        found = self._step(*args, **options)
        self.count += 1
        self._has_looked.set()
        assert self._may_end.wait(60)
        return found

    async def has_looked(self) -> None:
        await asyncio.to_thread(self._has_looked.wait, 60)

    def end(self) -> None:
        self._may_end.set()


def test_a_poll_ends_at_once_if_its_consumer_is_closed_during_a_step(run: Run) -> None:
    """It noticed that only when it looked again, up to a second later."""

    async def program(log: Log) -> None:
        consumer = await log.consumer(["t"])
        step = HeldStep(consumer)
        async with background(consumer.poll(timeout_ms=600_000)) as waiting:
            await step.has_looked()
            async with background(consumer.close()) as closing:
                await turns()
                step.end()
                await eventually_in_loop(waiting.done, "the poll ends")
                with pytest.raises(ClosedError):
                    await waiting
                await closing

    run(program)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_poll_looks_again_at_once_if_a_topic_is_changed_during_a_step(
    run: Run, is_deleted: bool
) -> None:
    """It noticed new partitions only when it looked again, up to a second later."""

    async def program(log: Log) -> None:
        await log.create_topic("other")
        async with log.consumer(["t"]) as consumer:
            step = HeldStep(consumer)
            async with background(consumer.poll(timeout_ms=600_000)):
                await step.has_looked()
                if is_deleted:
                    await log.delete_topic("other")
                else:
                    await log.alter_topic("t", partitions=3)
                step.end()
                await eventually_in_loop(lambda: step.count > 1, "the consumer looks again")

    run(program)


def test_a_closed_consumer_leaves_nothing_in_the_log(run: Run) -> None:
    async def program(log: Log) -> None:
        before = dict(log.waiting._changed)
        for _ in range(3):
            async with log.consumer(["t"]) as consumer:
                await consumer.seek_all(0)
        assert log.waiting._changed == before

    run(program)


def test_an_arrow_poll_with_a_timeout_returns_all_available_rows(run: Run) -> None:
    async def program(log: Log) -> None:
        await fill(log, 10)
        async with log.consumer(["t"]) as consumer:
            table = await consumer.poll_arrow(timeout_ms=10_000)
            assert table.column("offset").to_pylist() == list(range(10))
            waiting = asyncio.create_task(consumer.poll_arrow(timeout_ms=10_000))
            await asyncio.sleep(0)
            await fill(log, 3)
            assert (await waiting).column("offset").to_pylist() == [10, 11, 12]
            assert (await consumer.poll_arrow(timeout_ms=1)).num_rows == 0

    pytest.importorskip("pyarrow")
    run(program)


@pytest.mark.slow  # compiles kernels
def test_an_arrow_table_has_the_records_that_are_ahead_first(run: Run) -> None:
    async def program(log: Log) -> None:
        await fill(log, 10)
        async with log.consumer(["t"]) as consumer:
            assert (await anext(consumer)).offset == 0
            table = await consumer.poll_arrow(timeout_ms=10)
            assert table.column("offset").to_pylist() == list(range(1, 10))
            await consumer.seek_all(3)
            assert (await consumer.poll_arrow()).column("offset").to_pylist() == [*range(3, 10)]
        async with log.producer() as producer:
            await producer.send_arrow("t", table.select(["value"]))

    pytest.importorskip("pyarrow")
    run(program)


def test_a_consumer_that_fails_to_close_does_not_lose_the_commits_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_failed, may_continue = threading.Event(), threading.Event()

    def fail(_: object) -> None:
        has_failed.set()
        raise StorageError("no disk")

    async def main() -> None:
        log = await strandlog.aio.open(tmp_path)
        await log.create_topic("t")
        await fill(log, 3)
        failing = await log.consumer(["t"])
        other = await log.consumer(["t"], group="g", auto_commit=True)
        assert len(await other.poll()) == 3
        close_before = other._consumer.close_before

        def close_late(undelivered: Mapping[TopicPartition, int]) -> None:
            may_continue.wait()
            close_before(undelivered)

        monkeypatch.setattr(failing._consumer, "close_before", fail)
        monkeypatch.setattr(other._consumer, "close_before", close_late)
        closing = asyncio.create_task(log.close())
        await asyncio.to_thread(has_failed.wait)
        for _ in range(20):
            await log.workers.run(lambda: None)
        may_continue.set()
        with pytest.raises(StorageError, match="no disk"):
            await closing

    asyncio.run(main())
    with strandlog.read(tmp_path) as log:
        assert log.committed_offsets("g")[TopicPartition("t", 0)].offset == 3
