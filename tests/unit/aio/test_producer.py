"""The asyncio producer: records of many tasks in few batches, each with its own result."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.async_log import Run, blocked, turns

from strandlog import ClosedError, MessageTooLargeError, RecordMetadata, TopicNotFoundError
from strandlog.aio import Log
from strandlog.clock import SystemClock

BATCH_HEADER_BYTES = 61


async def values(log: Log, topic: str = "t") -> list[bytes | None]:
    async with log.consumer([topic]) as consumer:
        return [record.value for record in await consumer.poll(max_records=10_000)]


def test_send_returns_the_metadata_of_the_record(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer:
            sent = await producer.send(
                "t", b"v", b"k", headers={"h": b"x"}, partition=1, timestamp=log_time
            )
            assert sent == RecordMetadata("t", 1, 0, log_time)
            assert (await producer.send("t", None, b"k", partition=1)).offset == 1
            batch = await producer.send_batch("t", [b"a", (b"k", b"b"), {"value": b"c"}])
            assert len(batch) == 3
            await producer.flush()
        async with log.consumer(["t"]) as consumer:
            await consumer.assign([("t", 1)])
            first, second = (await consumer.poll())[:2]
            assert (first.key, first.value, first.headers) == (b"k", b"v", (("h", b"x"),))
            assert (second.key, second.value) == (b"k", None)

    log_time = SystemClock().now_ms()
    run(program)


def test_concurrent_sends_share_batches(run: Run) -> None:
    async def program(log: Log) -> None:
        producers = [await log.producer() for _ in range(20)]
        before = log._log.broker.metrics.produced_bytes
        with blocked(log):
            sends = [
                asyncio.create_task(producer.send("t", b"%d" % n, partition=n % 2))
                for n, producer in enumerate(producers)
            ]
            await turns()
        sent = await asyncio.gather(*sends)
        assert [each.offset for each in sent] == [n // 2 for n in range(20)]
        written = log._log.broker.metrics.produced_bytes - before
        assert written < 20 * BATCH_HEADER_BYTES

    run(program)


def test_a_rejected_record_does_not_affect_the_others(run: Run) -> None:
    async def program(log: Log) -> None:
        await log.create_topic("small", 1, {"max.message.bytes": "200"})
        async with log.producer() as producer:
            with blocked(log):
                sends = [
                    asyncio.create_task(producer.send(topic, value, partition=partition))
                    for topic, value, partition in [
                        ("small", b"1", None),
                        ("small", b"x" * 500, None),
                        ("small", b"2" * 100, None),
                        ("small", b"3" * 100, None),
                        ("small", b"4", 7),
                        ("nowhere", b"5", None),
                        ("t", b"6", 0),
                    ]
                ]
                await turns()
            results = await asyncio.gather(*sends, return_exceptions=True)
        kinds = [type(result) for result in results]
        assert kinds == [
            RecordMetadata,
            MessageTooLargeError,
            RecordMetadata,
            RecordMetadata,
            TopicNotFoundError,
            TopicNotFoundError,
            RecordMetadata,
        ]
        assert await values(log, "small") == [b"1", b"2" * 100, b"3" * 100]

    run(program)


def test_sends_of_one_task_keep_their_order(run: Run) -> None:
    async def program(log: Log) -> None:
        async with log.producer(acks=1) as producer:
            tasks = [
                asyncio.create_task(producer.send("t", b"%d" % n, partition=0))
                for n in range(5_000)
            ]
            batch = asyncio.create_task(
                producer.send_batch("t", [{"value": b"last", "partition": 0}])
            )
            await asyncio.gather(*tasks, batch)
        assert await values(log) == [*(b"%d" % n for n in range(5_000)), b"last"]

    run(program)


@pytest.mark.parametrize(
    "arguments",
    [{"value": "text"}, {"value": b"v", "key": 1}, {"value": b"v", "headers": {"h": "x"}}],
)
def test_a_wrong_type_is_an_error_of_the_call(run: Run, arguments: dict[str, object]) -> None:
    async def program(log: Log) -> None:
        async with log.producer() as producer:
            with pytest.raises(TypeError):
                await producer.send("t", **arguments)  # type: ignore[arg-type]

    run(program)


def test_a_closed_producer_sends_nothing_and_others_go_on(run: Run) -> None:
    async def program(log: Log) -> None:
        first, second = await log.producer(), await log.producer()
        await first.close()
        await first.close()
        with pytest.raises(ClosedError, match="this producer is closed"):
            await first.send("t", b"v")
        await second.send("t", b"v")
        await second.close()
        async with log.producer() as third:
            await third.send("t", b"v")

    run(program)


def test_wrong_arguments_of_a_producer_are_reported_when_it_opens(run: Run) -> None:
    async def program(log: Log) -> None:
        for _ in range(2):
            with pytest.raises(Exception, match="acks"):
                await log.producer(acks="some")  # type: ignore[arg-type]

    run(program)


def test_a_call_before_the_opening_names_what_is_missing(run: Run) -> None:
    async def program(log: Log) -> None:
        with pytest.raises(AttributeError, match="before it is open: use `async with` or `await`"):
            await log.producer().send("t", b"v")  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="use `async with`, not `with`"), log.producer():  # type: ignore[attr-defined]
            pass

    run(program)
