"""Sends the records of many tasks together.

Producers with the same settings share one queue and one synchronous producer. A worker thread
takes the queued calls, writes the single records together and waits for their fsyncs or round
trips; meanwhile the next calls are queued. Sends of one queue reach a partition in the order of the
calls, except that a remote producer can resend a batch that was too large after later records.

    send()      queued ──▶ being written ──▶ acknowledged or failed
                  │cancelled     │cancelled
                  ▼              ▼
                not written    written or failed; the task does not learn which

Each call waits for its own acknowledgement. The queue buffers nothing but the calls in progress.
One write takes at most MAX_WRITE_RECORDS calls, and at most MAX_WRITE_BYTES of single records
(without their headers) or one larger record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from strandlog.aio.workers import Workers
from strandlog.client.arguments import BatchItem
from strandlog.client.stepped import SteppedProducer
from strandlog.model import RecordMetadata, TopicPartition

MAX_WRITE_RECORDS = 2_000
MAX_WRITE_BYTES = 512 * 1024  # below the default of max.message.bytes, 1 MiB
RECORD_OVERHEAD_BYTES = 64
ANSWERS_AT_ONCE = 100

Result = Any  # the result of a call: RecordMetadata, a sequence of them, or None
Written = tuple[list[Result | Exception], set[TopicPartition]]


class Entry:
    """A queued call: a record to send if `work` is None, otherwise the function `work`."""

    __slots__ = ("answer", "item", "size_bytes", "topic", "work")

    def __init__(
        self,
        answer: asyncio.Future[Result],
        topic: str,
        item: BatchItem,
        size_bytes: int,
        work: Callable[[], Result] | None,
    ) -> None:
        self.answer = answer
        self.topic = topic
        self.item = item
        self.size_bytes = size_bytes
        self.work = work


class SendQueue:
    """The calls that wait for one synchronous producer."""

    def __init__(
        self,
        workers: Workers,
        producer: SteppedProducer,
        on_written: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        self.producer = producer
        self._workers = workers
        self._on_written = on_written
        self._waiting: deque[Entry] = deque()
        self._is_writing = False

    def send(self, topic: str, item: BatchItem, size_bytes: int) -> asyncio.Future[RecordMetadata]:
        """Queue one record."""
        return self._put(topic, item, size_bytes + RECORD_OVERHEAD_BYTES, None)

    def call(self, topic: str, work: Callable[[], Result]) -> asyncio.Future[Result]:
        """Queue a call to the synchronous producer, to run after all calls queued before it."""
        return self._put(topic, None, 0, work)

    def flush(self) -> asyncio.Future[None]:
        """Queue a flush of all records queued before it."""
        return self._put("", None, 0, _flush)

    def _put(
        self, topic: str, item: BatchItem, size_bytes: int, work: Callable[[], Result] | None
    ) -> asyncio.Future[Result]:
        answer = self._workers.loop.create_future()
        self._waiting.append(Entry(answer, topic, item, size_bytes, work))
        if not self._is_writing:
            self._is_writing = True
            self._workers.loop.call_soon(self._write_next)  # runs after tasks that are ready now
        return answer

    def _write_next(self) -> None:
        taken = self._take()
        if taken:
            self._workers.submit(
                partial(_write, self.producer, taken), partial(self._written, taken)
            )
        else:
            self._is_writing = False

    def _take(self) -> list[Entry]:
        taken: list[Entry] = []
        size_bytes = 0
        while self._waiting and len(taken) < MAX_WRITE_RECORDS:
            if taken and size_bytes + self._waiting[0].size_bytes > MAX_WRITE_BYTES:
                break
            entry = self._waiting.popleft()
            if not entry.answer.done():  # it is done if the task was cancelled
                taken.append(entry)
                size_bytes += entry.size_bytes
        return taken

    def _written(self, taken: list[Entry], future: Future[Written]) -> None:
        error = future.exception()
        results: Sequence[Result | BaseException]
        if error is None:
            results, partitions = future.result()
            self._on_written(partitions)
        else:
            results = [error] * len(taken)
        self._answer(deque(zip(taken, results, strict=True)))
        self._write_next()

    def _answer(self, outcomes: deque[tuple[Entry, Result | BaseException]]) -> None:
        """Wake the waiting tasks in portions, so that the loop runs other tasks in between."""
        for _ in range(min(len(outcomes), ANSWERS_AT_ONCE)):
            entry, result = outcomes.popleft()
            if entry.answer.done():
                continue
            if isinstance(result, BaseException):
                entry.answer.set_exception(result)
            else:
                entry.answer.set_result(result)
        if outcomes:
            self._workers.loop.call_soon(self._answer, outcomes)


def _write(producer: SteppedProducer, entries: list[Entry]) -> Written:
    """Write the entries, in a worker thread; return their results and the partitions written."""
    results: dict[int, Result | Exception] = {}
    records: dict[str, list[int]] = {}
    flush: int | None = None  # the index of the first flush since the last record or other call
    for index, entry in enumerate(entries):
        if entry.work is None:
            flush = None
            records.setdefault(entry.topic, []).append(index)
        elif entry.work is _flush and flush is not None:
            results[index] = results[flush]
        else:
            _write_records(producer, entries, records, results)
            records = {}
            flush = index if entry.work is _flush else None
            try:
                work = producer.flush if entry.work is _flush else entry.work
                results[index] = work()
            except Exception as error:  # noqa: BLE001 - the task that made the call raises it
                results[index] = error
    _write_records(producer, entries, records, results)
    partitions = {
        TopicPartition(result.topic, result.partition)
        for result in results.values()
        if isinstance(result, RecordMetadata)
    }
    partitions |= {TopicPartition(entry.topic, -1) for entry in entries if entry.work is not None}
    return [results[index] for index in range(len(entries))], partitions


def _write_records(
    producer: SteppedProducer,
    entries: list[Entry],
    records: dict[str, list[int]],
    results: dict[int, Result | Exception],
) -> None:
    for topic, indexes in records.items():
        found = producer.send_each(topic, [entries[index].item for index in indexes])
        results.update(zip(indexes, found, strict=True))


def _flush() -> None:
    """Mark an entry as a flush; `_write` flushes once for several consecutive ones."""
