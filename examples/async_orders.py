"""Handles orders with asyncio, in one process: `python examples/async_orders.py` (two seconds).

Two hundred customers place orders at the same time, and three workers of one group handle them.
One worker is cancelled in the middle of its work; the others take over its partitions. In the end
every order has been handled: none is lost, and only those that the cancelled worker had not
committed are handled twice.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import tempfile
import time
from pathlib import Path

import strandlog.aio

CUSTOMERS = 200
ORDERS = 20  # per customer
WORKERS = 3


async def place_orders(producer: strandlog.aio.Producer, customer: int) -> None:
    for number in range(ORDERS):
        order = b"customer %d, order %d" % (customer, number)
        await producer.send("orders", order, key=b"%d" % customer)


async def handle_orders(
    log: strandlog.aio.Log, handled: collections.Counter[bytes], is_done: asyncio.Event
) -> None:
    async with log.consumer(["orders"], group="workers") as consumer:
        while True:
            for record in await consumer.poll(max_records=100, timeout_ms=1_000):
                handled[record.value or b""] += 1
            await consumer.commit()
            if len(handled) == CUSTOMERS * ORDERS:
                is_done.set()


async def run(folder: Path) -> bool:
    handled: collections.Counter[bytes] = collections.Counter()
    is_done = asyncio.Event()
    start = time.perf_counter()
    async with strandlog.aio.open(folder) as log:
        await log.create_topic("orders", partitions=6)
        workers = [
            asyncio.create_task(handle_orders(log, handled, is_done)) for _ in range(WORKERS)
        ]
        async with log.producer() as producer:
            customers = [
                asyncio.create_task(place_orders(producer, customer))
                for customer in range(CUSTOMERS)
            ]
            while len(handled) < CUSTOMERS * ORDERS // 4:
                await asyncio.sleep(0.001)
            workers[0].cancel()
            print(f"cancelled a worker after {len(handled):,} orders")
            await asyncio.gather(*customers)
        await is_done.wait()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    seconds = time.perf_counter() - start
    twice = sum(count - 1 for count in handled.values())
    print(
        f"{CUSTOMERS} customers placed {CUSTOMERS * ORDERS:,} orders and {WORKERS} workers handled "
        f"{len(handled):,} of them in {seconds:.1f} s, {twice} of them twice"
    )
    return len(handled) == CUSTOMERS * ORDERS


def main() -> int:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-orders-") as name:
        is_complete = asyncio.run(run(Path(name) / "data"))
    print("every order was handled" if is_complete else "orders are missing")
    return 0 if is_complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
