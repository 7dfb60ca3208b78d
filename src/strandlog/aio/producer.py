"""The asyncio producer: the methods of the synchronous producer, as coroutines.

`send` returns when the record is acknowledged according to `acks`. Sends of concurrent tasks are
written together (send_queue.py), so a thousand tasks can share an fsync. A single task that awaits
each send pays for one fsync or round trip per record and should use `send_batch` instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from strandlog.aio.opening import AsyncClosable
from strandlog.aio.send_queue import SendQueue
from strandlog.aio.workers import Workers, finish
from strandlog.client.arguments import (
    BatchItem,
    GivenHeaders,
    check_bytes,
    checked_headers,
    checked_timestamp,
    listed,
)
from strandlog.errors import ClosedError
from strandlog.model import RecordMetadata


class Producer(AsyncClosable):
    """A producer, created by `Log.producer`. All tasks of the event loop may share it."""

    def __init__(
        self,
        workers: Workers,
        queue: SendQueue,
        on_closed: Callable[[], Awaitable[None]],
    ) -> None:
        self._workers = workers
        self._queue = queue
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        is_open = self._closing is None and not self._workers.is_closing
        shown = f"shares {self._queue.producer!r}" if is_open else "closed"
        return f"<strandlog.aio.Producer, {shown}>"

    @property
    def is_atomic(self) -> bool:
        """Whether `send_batch` checks the size of all its batches before it writes the first."""
        return self._queue.producer.is_atomic

    @property
    def batch_bytes(self) -> int:
        """The recommended number of bytes per `send_batch` call."""
        return self._queue.producer.batch_bytes

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Append one record; return its topic, partition, offset and timestamp.

        If the task is cancelled before the record is handed to a worker thread, the record is not
        written. After that it may be written, although the task does not get its offset.
        """
        self._check()
        check_bytes(value, key)
        item: BatchItem
        if headers or partition is not None or timestamp is not None:
            given: dict[str, Any] = {"value": value, "key": key}
            if headers:
                given["headers"] = checked_headers(headers)
            if partition is not None:
                given["partition"] = partition
            if timestamp is not None:
                given["timestamp"] = checked_timestamp(timestamp)
            item = given
        else:
            item = value if key is None else (key, value)
        size_bytes = len(value or b"") + len(key or b"")
        return await self._queue.send(topic, item, size_bytes)

    async def send_batch(
        self, topic: str, records: Iterable[BatchItem]
    ) -> Sequence[RecordMetadata]:
        """Append many records (embedded: one batch per partition); return their metadata in order.

        A record is a value, a (key, value) pair, or a mapping with `value` and optionally `key`,
        `headers`, `partition` and `timestamp`.
        """
        self._check()
        work = partial(self._queue.producer.send_batch, topic, listed(records))
        sent: Sequence[RecordMetadata] = await self._queue.call(topic, work)
        return sent

    async def send_arrow(self, topic: str, table: Any) -> Sequence[RecordMetadata]:
        """Append the rows of an Arrow table or data frame (embedded: one batch per partition)."""
        self._check()
        work = partial(self._queue.producer.send_arrow, topic, table)
        sent: Sequence[RecordMetadata] = await self._queue.call(topic, work)
        return sent

    async def flush(self) -> None:
        """Wait until all earlier sends are on disk (embedded) or acknowledged (remote)."""
        self._check()
        await self._queue.flush()

    async def close(self) -> None:
        """Wait for the sends in progress, flush, and close the producer.

        This method is idempotent. A task that is cancelled here still waits until the producer is
        closed.
        """
        if self._closing is None:
            if self._workers.is_closed:
                return
            self._workers.check_owner("producer")
            self._closing = self._workers.loop.create_task(self._close())
        await finish(self._closing)

    async def _close(self) -> None:
        try:
            await self._queue.flush()
        finally:
            await self._on_closed()

    def _check(self) -> None:
        self._workers.check("producer")
        if self._closing is not None:
            raise ClosedError("producer")
