"""A cancelled task loses no record and leaves nothing open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.async_log import Run, background, blocked, turns
from tests.support.waiting import eventually_in_loop

import strandlog
import strandlog.aio
from strandlog import TopicPartition
from strandlog.aio import Log


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_poll_that_is_cancelled_while_it_reads_loses_no_record(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer:
            await producer.send_batch("t", [{"value": b"v", "partition": 0}] * 10)
        async with log.consumer(["t"], group="g") as consumer:
            with blocked(log):
                task = asyncio.create_task(consumer.poll(max_records=4))
                await turns()
                await cancelled(task)
            # The read has ended in the background; its records are neither lost nor committed.
            assert await consumer.position("t", 0) == 0
            assert TopicPartition("t", 0) not in {
                tp for tp, offset in (await consumer.commit()).items() if offset
            }
            first = await consumer.poll(max_records=3)
            assert [record.offset for record in first] == [0, 1, 2]
            assert (await consumer.commit())[TopicPartition("t", 0)] == 3
            assert [record.offset for record in await consumer.poll()] == [3]
            assert [record.offset for record in await consumer.poll()] == [4, 5, 6, 7, 8, 9]

    run(program)


def test_a_poll_that_is_cancelled_when_its_records_arrive_loses_none(run: Run) -> None:
    """The cancellation reaches the task in the same iteration of the loop as the records."""

    async def program(log: Log) -> None:
        async with log.producer() as producer, log.consumer(["t"]) as consumer:
            await producer.send("t", b"v", partition=0)
            task = asyncio.create_task(consumer.poll())
            while not consumer._ahead:
                await asyncio.sleep(0)
            await cancelled(task)
            assert [record.value for record in await consumer.poll()] == [b"v"]

    run(program)


@pytest.mark.slow  # compiles kernels
def test_a_table_of_a_cancelled_poll_is_read_again(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer, log.consumer(["t"]) as consumer:
            await producer.send_batch("t", [{"value": b"v", "partition": 1}] * 3)
            with blocked(log):
                task = asyncio.create_task(consumer.poll_arrow())
                await turns()
                await cancelled(task)
            assert [record.offset for record in await consumer.poll()] == [0, 1, 2]

    pytest.importorskip("pyarrow")
    run(program)


@pytest.mark.slow  # compiles kernels
def test_a_poll_that_is_cancelled_when_its_table_arrives_loses_no_record(run: Run) -> None:
    """The cancellation reaches the task in the same iteration of the loop as the table."""

    async def program(log: Log) -> None:
        async with log.producer() as producer, log.consumer(["t"]) as consumer:
            await producer.send_batch("t", [{"value": b"v", "partition": 1}] * 3)
            task = asyncio.create_task(consumer.poll_arrow())
            while not log.workers._running:
                await asyncio.sleep(0)
            while log.workers._running:
                await asyncio.sleep(0)
            await cancelled(task)
            assert [record.offset for record in await consumer.poll()] == [0, 1, 2]

    pytest.importorskip("pyarrow")
    run(program)


def test_a_waiting_poll_with_a_time_out_around_it(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.consumer(["t"]) as consumer, log.producer() as producer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await consumer.poll(timeout_ms=600_000)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.01)
            assert len(log.waiting) == 0
            await producer.send("t", b"v")
            assert [record.value for record in await consumer.poll()] == [b"v"]

    run(program)


def test_a_send_that_is_cancelled_in_the_queue_is_not_written(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer:
            with blocked(log):
                taken = asyncio.create_task(producer.send("t", b"taken", partition=0))
                await turns()
                queued = asyncio.create_task(producer.send("t", b"queued", partition=0))
                kept = asyncio.create_task(producer.send("t", b"kept", partition=0))
                await turns()
                await cancelled(taken)  # its record is with a worker thread: it is written
                await cancelled(queued)
            await kept
        async with log.consumer(["t"]) as consumer:
            assert [record.value for record in await consumer.poll()] == [b"taken", b"kept"]

    run(program)


def test_a_cancelled_call_ends_before_the_next_one_starts(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer, log.consumer(["t"]) as consumer:
            await producer.send_batch("t", [{"value": b"v", "partition": 0}] * 10)
            with blocked(log):
                seek = asyncio.create_task(consumer.seek("t", 0, 5))
                await turns()
                await cancelled(seek)
                position = asyncio.create_task(consumer.position("t", 0))
                await turns()
                assert not position.done()
            assert await position == 5

    run(program)


def test_a_consumer_that_is_cancelled_while_it_opens_leaves_no_member(run: Run) -> None:
    async def program(log: Log) -> None:
        with blocked(log):

            async def consume() -> None:
                async with log.consumer(["t"], group="g"):
                    raise AssertionError("not reached")

            task = asyncio.create_task(consume())
            await turns()
            await cancelled(task)
        await log.workers.idle()
        assert not (await log.describe_group("g")).members

    run(program)


def test_a_log_that_is_cancelled_while_it_opens_releases_its_folder(tmp_path: Path) -> None:
    async def program() -> None:
        async def work() -> None:
            async with strandlog.aio.open(tmp_path / "data"):
                raise AssertionError("not reached")

        task = asyncio.create_task(work())
        await turns(2)
        await cancelled(task)

        def is_free() -> bool:
            try:
                strandlog.open(tmp_path / "data").close()
            except strandlog.AlreadyOpenError:
                return False
            return True

        await eventually_in_loop(is_free, "the folder is free")

    asyncio.run(program())


def test_a_task_that_is_cancelled_while_it_closes_leaves_nothing_open(tmp_path: Path) -> None:
    async def program() -> None:
        log = await strandlog.aio.open(tmp_path / "data")
        await log.create_topic("t")

        async def work() -> None:
            async with log, log.consumer(["t"], group="g"), log.producer() as producer:
                await producer.send("t", b"v")

        with blocked(log):
            task = asyncio.create_task(work())
            await turns()
            task.cancel()  # during the send: the `async with` blocks end
            await turns()
            task.cancel()  # while they close
            await turns()
        with pytest.raises(asyncio.CancelledError):
            await task
        with strandlog.open(tmp_path / "data") as again:  # the folder is free
            assert not again.describe_group("g").members

    asyncio.run(program())


def test_tasks_that_are_cancelled_at_random_lose_no_record(run: Run) -> None:
    """Polls and sends are cancelled in all stages: each acknowledged record is read once."""

    async def program(log: Log) -> None:
        acknowledged: set[bytes] = set()
        received: list[bytes] = []
        async with log.producer(acks=1) as producer, log.consumer(["t"]) as consumer:

            async def produce() -> None:
                for number in range(300):
                    value = b"%d" % number
                    task = asyncio.create_task(producer.send("t", value))
                    await turns(number % 7)
                    task.cancel()
                    if not isinstance(
                        (await asyncio.gather(task, return_exceptions=True))[0], BaseException
                    ):
                        acknowledged.add(value)
                await producer.send("t", b"end")

            async with background(produce()):
                stage = 0
                while b"end" not in received:
                    stage += 1
                    task = asyncio.create_task(consumer.poll(3, timeout_ms=10_000))
                    await turns(stage % 11)
                    if stage % 5:
                        task.cancel()
                    found = (await asyncio.gather(task, return_exceptions=True))[0]
                    if not isinstance(found, BaseException):
                        received += [record.value or b"" for record in found]
            while records := await consumer.poll():
                received += [record.value or b"" for record in records]
        assert len(received) == len(set(received))
        assert acknowledged <= set(received)

    run(program)
