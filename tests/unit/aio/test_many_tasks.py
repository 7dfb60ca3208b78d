"""A thousand producers and a thousand consumers in one event loop, with four threads."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.support.async_log import Run

from strandlog.aio import Log
from strandlog.aio.log import WORKER_THREADS

TASKS = 1_000
PARTITIONS = 50
RECORDS = 3  # of each producer


@pytest.mark.slow
def test_a_thousand_producers_and_consumers(run: Run) -> None:
    async def program(log: Log) -> None:
        await log.create_topic("many", PARTITIONS)
        waiting = 0

        async def consume(number: int) -> list[bytes | None]:
            nonlocal waiting
            found: list[bytes | None] = []
            async with log.consumer() as consumer:
                await consumer.assign([("many", number % PARTITIONS)])
                waiting += 1
                async for record in consumer:
                    found.append(record.value)
                    if len(found) == RECORDS * TASKS // PARTITIONS:
                        break
            return found

        async def produce(number: int) -> None:
            async with log.producer() as producer:
                for step in range(RECORDS):
                    value = b"%d-%d" % (number, step)
                    await producer.send("many", value, partition=number % PARTITIONS)

        consumers = [asyncio.create_task(consume(number)) for number in range(TASKS)]
        while waiting < TASKS:
            await asyncio.sleep(0)
        await asyncio.gather(*(produce(number) for number in range(TASKS)))
        found = await asyncio.gather(*consumers)
        for number, values in enumerate(found):
            assert sorted(map(str, values)) == sorted(
                str(b"%d-%d" % (producer, step))
                for producer in range(number % PARTITIONS, TASKS, PARTITIONS)
                for step in range(RECORDS)
            )
        ours = [each for each in threading.enumerate() if each.name.startswith("strandlog-aio")]
        assert len(ours) <= WORKER_THREADS
        assert len(log.waiting) == 0

    run(program)
