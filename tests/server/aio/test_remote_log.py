"""The asyncio API over the wire: a real broker and librdkafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.support.broker_process import emptied

import strandlog
import strandlog.aio
from strandlog import ClosedError, Record, RecordMetadata, TopicNotFoundError, TopicPartition
from strandlog.aio import RemoteLog
from strandlog.testing.server import ServerThread

Run = Callable[[Callable[[RemoteLog], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ServerThread(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def run(broker: ServerThread) -> Run:
    """Run a program with a log on an empty broker that has the topic `t` with two partitions."""

    async def main(program: Callable[[RemoteLog], Coroutine[Any, Any, None]]) -> None:
        async with strandlog.aio.connect(broker.address) as log:
            await log.create_topic("t", 2)
            await program(log)

    def run(program: Callable[[RemoteLog], Coroutine[Any, Any, None]]) -> None:
        with strandlog.connect(broker.address) as log:
            emptied(log)
        asyncio.run(main(program))

    return run


async def fill(log: RemoteLog, count: int) -> None:
    async with log.producer() as producer:
        await producer.send_batch("t", [{"value": b"%d" % n, "partition": 0} for n in range(count)])


def test_records_go_there_and_back(run: Run) -> None:
    async def program(log: RemoteLog) -> None:
        async with log.producer() as producer:
            sent = await asyncio.gather(
                *(producer.send("t", b"%d" % n, b"k", partition=0) for n in range(50))
            )
            assert [each.offset for each in sent] == list(range(50))
        async with log.consumer(["t"], group="g") as consumer:
            found: list[Record] = []
            while len(found) < 50:
                found += await consumer.poll(timeout_ms=10_000)
            assert [record.value for record in found] == [b"%d" % n for n in range(50)]
            assert await consumer.poll() == []
            assert (await consumer.commit())[TopicPartition("t", 0)] == 50
            assert await consumer.committed("t", 0) == 50
        assert await log.topics() == ["t"]
        assert (await log.describe_topic("t")).partitions[0].end_offset == 50

    run(program)


def test_a_failed_send_does_not_affect_the_others(run: Run) -> None:
    async def program(log: RemoteLog) -> None:
        await log.create_topic("small", 1, {"max.message.bytes": "300"})
        async with log.producer() as producer:
            results = await asyncio.gather(
                producer.send("small", b"a" * 150),
                producer.send("small", b"b" * 150),
                producer.send("small", b"c" * 500),
                producer.send("small", b"d", partition=9),
                producer.send("nowhere", b"e"),
                producer.send("t", b"f"),
                return_exceptions=True,
            )
        kinds = [type(result).__name__ for result in results]
        assert kinds == [
            RecordMetadata.__name__,
            RecordMetadata.__name__,
            "MessageTooLargeError",
            TopicNotFoundError.__name__,
            TopicNotFoundError.__name__,
            RecordMetadata.__name__,
        ]

    run(program)


def test_iteration_and_what_it_commits(run: Run) -> None:
    async def program(log: RemoteLog) -> None:
        await fill(log, 20)
        async with log.consumer(["t"], group="g") as consumer:
            async for record in consumer:
                if record.offset == 6:
                    break
            assert await consumer.position("t", 0) == 7
            assert (await consumer.commit())[TopicPartition("t", 0)] == 7
            assert [record.offset for record in await consumer.poll(max_records=2)] == [7, 8]
        async with log.consumer(["t"], group="g", consumer_timeout_ms=0) as consumer:
            assert [record.offset async for record in consumer] == list(range(7, 20))

    run(program)


def test_a_cancelled_poll_loses_no_record(run: Run) -> None:
    async def program(log: RemoteLog) -> None:
        await fill(log, 20)
        async with log.consumer(["t"]) as consumer:
            received: list[int] = []
            for stage in range(1_000):
                task = asyncio.create_task(consumer.poll(1, timeout_ms=10_000))
                for _ in range(stage % 20):
                    await asyncio.sleep(0)
                if stage % 10:
                    task.cancel()
                found = (await asyncio.gather(task, return_exceptions=True))[0]
                if not isinstance(found, BaseException):
                    received += [record.offset for record in found]
                if len(received) == 20:
                    break
            assert received == list(range(20))

    run(program)


@pytest.mark.slow
def test_more_consumers_than_threads_wait_without_blocking_each_other(run: Run) -> None:
    async def program(log: RemoteLog) -> None:
        async def follow(ready: asyncio.Event) -> bytes | None:
            async with log.consumer(["t"], auto_offset_reset="latest") as consumer:
                await consumer.poll()
                ready.set()
                return (await anext(consumer)).value

        events = [asyncio.Event() for _ in range(30)]
        tasks = [asyncio.create_task(follow(event)) for event in events]
        await asyncio.gather(*(event.wait() for event in events))
        await fill(log, 1)
        assert await asyncio.gather(*tasks) == [b"0"] * 30
        ours = [each for each in threading.enumerate() if each.name.startswith("strandlog-aio")]
        assert len(ours) <= 8

    run(program)


def test_closing_wakes_the_polls(broker: ServerThread) -> None:
    async def program() -> None:
        async with strandlog.aio.connect(broker.address) as log:
            if "t" not in await log.topics():
                await log.create_topic("t")
            consumer = await log.consumer(["t"], auto_offset_reset="latest")
            await consumer.poll()
            poll = asyncio.create_task(consumer.poll(timeout_ms=600_000))
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await poll

    asyncio.run(program())


def test_an_unreachable_broker_is_an_error(tmp_path: object) -> None:
    async def program() -> None:
        with pytest.raises(strandlog.UnreachableError):
            await strandlog.aio.connect("127.0.0.1:1", timeout_ms=3_000)

    asyncio.run(program())
