"""Measures the asyncio API next to the synchronous one: `python -m benchmarks.asyncio_api`.

    sends       100-byte records, one call per record. The synchronous API sends them one after the
                other, or from 100 threads; the asyncio API from one task, or from 1,000
    polls       100-byte records, by poll and by iteration
    loop        1,000 producers and 1,000 consumers in one event loop, and how late a task wakes up
                that sleeps for 1 ms, while thousands of tasks are ready at the same time

The synchronous API is measured first, then the other; a figure is the best of three rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import strandlog
import strandlog.aio
from benchmarks.measure import Row, best_rate, print_table, write_json
from strandlog.client.api import OpenLog
from strandlog.testing.server import ServerThread

VALUE = b"x" * 100
TASKS = 1_000
THREADS = 100
RECORDS = 200_000
ROUNDS = 3
PARTITIONS = 50


def sync_sends(log: OpenLog, name: str, count: int) -> list[Row]:
    """Measure sends of the synchronous API: one thread, and many."""

    def send(records: int) -> None:
        for _ in range(records):
            producer.send("sends", VALUE)

    def in_threads() -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(send, [count // THREADS] * THREADS))

    with log.producer() as producer:
        one = best_rate(count // 10, lambda: send(count // 10), ROUNDS)
        many = best_rate(count, in_threads, ROUNDS)
    return [
        Row(f"{name}, sync, 1 thread: send acks=all", one, "records/s"),
        Row(f"{name}, sync, {THREADS} threads: send acks=all", many, "records/s"),
    ]


async def async_sends(
    log: strandlog.aio.Log | strandlog.aio.RemoteLog, name: str, count: int
) -> list[Row]:
    """Measure sends of the asyncio API: one task, and many."""

    async def send(records: int) -> None:
        for _ in range(records):
            await producer.send("sends", VALUE)

    async def in_tasks() -> None:
        await asyncio.gather(*(send(count // TASKS) for _ in range(TASKS)))

    async with log.producer() as producer:
        one = await best(count // 20, lambda: send(count // 20))
        many = await best(count, in_tasks)
    return [
        Row(f"{name}, asyncio, 1 task: send acks=all", one, "records/s"),
        Row(f"{name}, asyncio, {TASKS:,} tasks: send acks=all", many, "records/s"),
    ]


async def best(count: int, action: Any) -> float:
    """Return the best rate of several rounds, like `best_rate`."""
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        await action()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def fill(log: OpenLog) -> None:
    log.create_topic("sends", 3)
    log.create_topic("polls", 1)
    with log.producer() as producer:
        for _ in range(RECORDS // 5_000):
            producer.send_batch("polls", [VALUE] * 5_000)


def sync_polls(log: OpenLog, name: str) -> list[Row]:
    def poll() -> None:
        with log.consumer(["polls"]) as consumer:
            found = 0
            while found < RECORDS:
                found += len(consumer.poll(timeout_ms=1_000))

    def iterate() -> None:
        with log.consumer(["polls"]) as consumer:
            for found, _ in enumerate(consumer, start=1):
                if found == RECORDS // 4:
                    break

    return [
        Row(f"{name}, sync: poll", best_rate(RECORDS, poll, ROUNDS), "records/s"),
        Row(f"{name}, sync: for", best_rate(RECORDS // 4, iterate, ROUNDS), "records/s"),
    ]


async def async_polls(log: strandlog.aio.Log | strandlog.aio.RemoteLog, name: str) -> list[Row]:
    async def poll() -> None:
        async with log.consumer(["polls"]) as consumer:
            found = 0
            while found < RECORDS:
                found += len(await consumer.poll(timeout_ms=1_000))

    async def iterate() -> None:
        async with log.consumer(["polls"]) as consumer:
            found = 0
            async for _ in consumer:
                found += 1
                if found == RECORDS:
                    break

    return [
        Row(f"{name}, asyncio: poll", await best(RECORDS, poll), "records/s"),
        Row(f"{name}, asyncio: async for", await best(RECORDS, iterate), "records/s"),
    ]


async def many_tasks(
    log: strandlog.aio.Log | strandlog.aio.RemoteLog, name: str, consumers: int, records: int = 10
) -> list[Row]:
    """Measure many producers and consumers in one loop, all waiting for each other's records."""
    await log.create_topic("many", PARTITIONS)
    ready = 0
    all_ready = asyncio.Event()
    gaps: list[float] = []

    async def watch() -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - before - 0.001)
            before = now

    async def consume(number: int) -> int:
        nonlocal ready
        found = 0
        async with log.consumer() as consumer:
            await consumer.assign([("many", number % PARTITIONS)])
            await consumer.poll()
            ready += 1
            if ready == consumers:
                all_ready.set()
            async for _ in consumer:
                found += 1
                if found == records * TASKS // PARTITIONS:
                    break
        return found

    async def produce(number: int) -> None:
        async with log.producer() as producer:
            for _ in range(records):
                await producer.send("many", VALUE, partition=number % PARTITIONS)

    tasks = [asyncio.create_task(consume(number)) for number in range(consumers)]
    await all_ready.wait()
    watching = asyncio.create_task(watch())
    start = time.perf_counter()
    await asyncio.gather(*(produce(number) for number in range(TASKS)))
    sent = time.perf_counter() - start
    found = sum(await asyncio.gather(*tasks))
    taken = time.perf_counter() - start
    watching.cancel()
    label = f"{name}, {TASKS:,} producers and {consumers:,} consumers"
    return [
        Row(f"{label}: sent", TASKS * records / sent, "records/s"),
        Row(f"{label}: received", found / taken, "records/s"),
        Row(f"{label}: delay of the loop, p99", sorted(gaps)[len(gaps) * 99 // 100] * 1000, "ms"),
        Row(f"{label}: delay of the loop, longest", max(gaps) * 1000, "ms"),
    ]


def embedded_rows(folder: Path) -> list[Row]:
    """Measure embedded logs."""

    async def asynchronous() -> list[Row]:
        async with strandlog.aio.open(folder / "aio") as log:
            rows = await async_sends(log, "embedded", 40_000) + await async_polls(log, "embedded")
            return rows + await many_tasks(log, "embedded", TASKS)

    with strandlog.open(folder / "aio") as log:
        fill(log)
    with strandlog.open(folder / "sync") as log:
        fill(log)
        rows = sync_sends(log, "embedded", 40_000) + sync_polls(log, "embedded")
    return rows + _run(asynchronous())


def remote_rows(folder: Path, consumers: int) -> list[Row]:
    """Measure logs over the wire, with a broker in this process."""

    async def asynchronous(address: str) -> list[Row]:
        async with strandlog.aio.connect(address) as log:
            rows = await async_sends(log, "wire", 40_000) + await async_polls(log, "wire")
            return rows + await many_tasks(log, "wire", consumers)

    with ServerThread(folder / "broker") as server:
        with strandlog.connect(server.address) as log:
            fill(log)
            rows = sync_sends(log, "wire", 40_000) + sync_polls(log, "wire")
        return rows + _run(asynchronous(server.address))


def _run(program: Coroutine[Any, Any, list[Row]]) -> list[Row]:
    return asyncio.run(program)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the asyncio API with the synchronous one."
    )
    parser.add_argument("--wire", action="store_true", help="also measure over the wire")
    parser.add_argument("--wire-consumers", type=int, default=100, metavar="N")
    parser.add_argument("--json", type=Path, default=Path("out/bench-asyncio.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-bench-") as name:
        print("measuring embedded logs …", file=sys.stderr, flush=True)
        rows = embedded_rows(Path(name))
        if options.wire:
            print("measuring over the wire …", file=sys.stderr, flush=True)
            rows += remote_rows(Path(name), options.wire_consumers)
    print_table(rows)
    write_json(rows, options.json)
    print(f"\nwritten to {options.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
