"""No call blocks the event loop, and each log belongs to one loop and one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.async_log import Run, background, blocked, turns

import strandlog.aio
from strandlog import AlreadyOpenError, ClosedError
from strandlog.aio import Consumer, Log, Producer

Call = Callable[[Log, Producer, Consumer], Coroutine[Any, Any, object]]
CALLS: dict[str, Call] = {
    "topics": lambda log, producer, consumer: log.topics(),
    "create_topic": lambda log, producer, consumer: log.create_topic("new"),
    "compact": lambda log, producer, consumer: log.compact("t"),
    "groups": lambda log, producer, consumer: log.groups(),
    "problems": lambda log, producer, consumer: log.problems(),
    "flush": lambda log, producer, consumer: log.flush(),
    "open a producer": lambda log, producer, consumer: _opened(log.producer(acks=1)),
    "open a consumer": lambda log, producer, consumer: _opened(log.consumer(["t"])),
    "send": lambda log, producer, consumer: producer.send("t", b"v"),
    "send_batch": lambda log, producer, consumer: producer.send_batch("t", [b"v"]),
    "producer.flush": lambda log, producer, consumer: producer.flush(),
    "producer.close": lambda log, producer, consumer: producer.close(),
    "poll": lambda log, producer, consumer: consumer.poll(),
    "commit": lambda log, producer, consumer: consumer.commit(),
    "committed": lambda log, producer, consumer: consumer.committed("t", 0),
    "position": lambda log, producer, consumer: consumer.position("t", 0),
    "assignment": lambda log, producer, consumer: consumer.assignment(),
    "seek_to_time": lambda log, producer, consumer: consumer.seek_to_time(0),
    "consumer.close": lambda log, producer, consumer: consumer.close(),
    "close": lambda log, producer, consumer: log.close(),
}


async def _opened(opening: strandlog.aio.Opening[Any]) -> None:
    async with opening:
        pass


@pytest.mark.parametrize("name", CALLS)
def test_the_loop_goes_on_while_a_call_waits_for_the_log(run: Run, name: str) -> None:
    """The lock is held, as during a slow fsync or a compaction; a test that blocked would hang."""

    async def program(log: Log) -> None:
        producer, consumer = await log.producer(), await log.consumer(["t"], group="g")
        with blocked(log):
            task = asyncio.create_task(CALLS[name](log, producer, consumer))
            await turns()
            assert not task.done()
        await task

    run(program)


def test_closing_a_log_completes_sends_and_wakes_polls(tmp_path: Path) -> None:
    async def program() -> None:
        log = await strandlog.aio.open(tmp_path / "data")
        await log.create_topic("t")
        producer = await log.producer()
        consumers = [await log.consumer(["t"]) for _ in range(3)]
        polls = [asyncio.create_task(each.poll(timeout_ms=600_000)) for each in consumers]
        while len(log.waiting) < 3:
            await asyncio.sleep(0)
        with blocked(log):
            sends = [asyncio.create_task(producer.send("t", b"v"))]
            await turns()  # the first one is with a worker thread, the others are in the queue
            sends += [asyncio.create_task(producer.send("t", b"v")) for _ in range(9)]
            await turns()
            closing = asyncio.create_task(log.close())
            await turns()
        await closing
        await log.close()
        assert [sent.offset for sent in await asyncio.gather(*sends)] == list(range(10))
        for outcome in await asyncio.gather(*polls, return_exceptions=True):
            assert isinstance(outcome, ClosedError | list)
        for call in (log.topics(), producer.send("t", b"v"), consumers[0].poll()):
            with pytest.raises(ClosedError, match="is closed; open a new one"):
                await call
        await producer.close()
        await consumers[0].close()

    asyncio.run(program())


def test_a_poll_that_finds_nothing_is_woken_by_the_end_of_the_log(tmp_path: Path) -> None:
    async def program() -> None:
        async with strandlog.aio.open(tmp_path / "data") as log:
            await log.create_topic("t")
            consumer = await log.consumer(["t"])
            poll = asyncio.create_task(consumer.poll(timeout_ms=600_000))
            while not len(log.waiting):
                await asyncio.sleep(0)
        with pytest.raises(ClosedError, match="this consumer is closed"):
            await poll

    asyncio.run(program())


def test_a_second_event_loop_gets_a_clear_error(tmp_path: Path) -> None:
    async def opened() -> tuple[Log, Producer, Consumer]:
        log = await strandlog.aio.open(tmp_path / "data")
        await log.create_topic("t")
        return log, await log.producer(), await log.consumer(["t"])

    with asyncio.Runner() as first, asyncio.Runner() as second:
        log, producer, consumer = first.run(opened())
        for call in (log.topics(), producer.send("t", b"v"), consumer.poll(), log.close()):
            with pytest.raises(RuntimeError, match="belongs to another event loop; open a log"):
                second.run(call)
        first.run(log.close())


def test_a_forked_child_gets_a_clear_error(tmp_path: Path) -> None:
    async def opened() -> Log:
        log = await strandlog.aio.open(tmp_path / "data")
        await log.create_topic("t")
        return log

    async def use(log: Log) -> str:
        try:
            await log.topics()
        except ClosedError as error:
            return str(error)
        return "no error"

    with asyncio.Runner() as runner:
        log = runner.run(opened())
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(write, asyncio.run(use(log)).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with open(read, "rb") as answers:  # noqa: PTH123 - a descriptor
            answer = answers.read().decode()
        assert "belongs to the parent process" in answer
        assert runner.run(log.topics()) == ["t"]
        runner.run(log.close())


def test_a_folder_that_is_open_is_an_error_and_leaves_no_threads(tmp_path: Path) -> None:
    async def program() -> None:
        async with strandlog.aio.open(tmp_path / "data") as log:
            with pytest.raises(AlreadyOpenError):
                await strandlog.aio.open(tmp_path / "data")
            async with strandlog.aio.read(tmp_path / "data") as reader:
                await log.create_topic("t")
                assert await reader.topics() == ["t"]
                async with (
                    reader.consumer(["t"]) as consumer,
                    background(consumer.poll(timeout_ms=600_000)) as poll,
                    log.producer() as producer,
                ):
                    await producer.send("t", b"v")
                    assert [record.value for record in await poll] == [b"v"]

    asyncio.run(program())


def test_nothing_is_opened_before_it_is_entered_or_awaited(run: Run, tmp_path: Path) -> None:
    async def program(log: Log) -> None:
        strandlog.aio.open(tmp_path / "other")
        log.consumer(["t"], group="g")
        log.producer()
        assert not (tmp_path / "other").exists()
        assert await log.groups() == []

    run(program)
