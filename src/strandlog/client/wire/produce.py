"""Sends raw batches to partition leaders, in order per partition.

    send(tp, batch)    queues a batch, and sends the queued batches once they reach
                       SEND_FROM_BYTES; waits for responses only if `buffer.memory` is full
    flush()            waits for all batches; returns the result of each partition

A request carries at most one batch per partition, as Kafka requires; the number of requests in
flight per broker is limited (`max.in.flight.requests.per.connection`). After a retriable error,
the sender waits until no batch of the partition is in flight, and then resends the failed batches
in order: this preserves the order and the sequence numbers of an idempotent producer. Without a
producer id, delivery is at least once: a batch whose response was lost can be written twice, and a
retried batch can be written after later ones.

A fatal error of a partition affects only that partition: its queued batches are dropped. If a
broker rejects a connection, for example a login, `send` or `flush` raises the error, and the
sender must not be used again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from strandlog.client.wire.cluster import Cluster, RetriableBrokerError, broker_error
from strandlog.client.wire.connection import Reply
from strandlog.clock import Clock, pause
from strandlog.errors import CorruptRecordError, StrandlogError, UnreachableError
from strandlog.model import Buffer, TopicPartition
from strandlog.protocol.kafka.api import PRODUCE
from strandlog.protocol.kafka.produce_fetch_client import parse_produce_response, produce_request
from strandlog.protocol.kafka.produce_fetch_server import ProduceAnswer

CORRUPT_MESSAGE = 2
DUPLICATE_SEQUENCE = 46
SEND_FROM_BYTES = 1024 * 1024


class ProduceResult(NamedTuple):
    """The result of the batches of one partition."""

    base_offset: int  # the base offset of the first batch, or -1 if it is unknown
    batch_count: int  # number of batches written
    error: StrandlogError | None  # why the other batches failed


class _Batch(NamedTuple):
    """A batch and its number within its partition."""

    number: int
    data: Buffer


class _PartitionQueue:
    """The batches of one partition."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.waiting: deque[_Batch] = deque()
        self.to_resend: list[_Batch] = []
        self.taken = 0
        self.in_flight = 0
        self.base_offset = -1
        self.batch_count = 0
        self.error: StrandlogError | None = None
        self.not_before_ms = 0
        self.deadline_ms: int | None = None  # the delivery deadline; None while there is no error

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.to_resend or self.in_flight)

    def take(self, data: Buffer) -> None:
        self.waiting.append(_Batch(self.taken, data))
        self.taken += 1

    def may_send(self, now_ms: int) -> bool:
        if self.to_resend and not self.in_flight:
            # Sort by number: a batch that cannot be sent can fail before earlier ones in flight.
            self.waiting.extendleft(sorted(self.to_resend, key=lambda each: -each.number))
            self.to_resend.clear()
        if self.in_flight and not self.batch_count:
            # Wait for the response to the first batch: a new leader could reject the first batch
            # and accept the second, because it has no earlier sequence number to detect the gap.
            return False
        return bool(self.waiting) and not self.to_resend and now_ms >= self.not_before_ms

    def give_up(self, error: StrandlogError) -> int:
        """Set the error, drop the batches that are not in flight and return their total size."""
        dropped = sum(len(batch.data) for batch in (*self.waiting, *self.to_resend))
        self.error = self.error or error
        self.waiting.clear()
        self.to_resend.clear()
        return dropped


class _Request(NamedTuple):
    node_id: int
    reply: Reply
    batches: list[tuple[_PartitionQueue, _Batch]]


class BatchSender:
    """Sends the batches of one producer, from one thread."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._transactional_id = transactional_id
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._requests: deque[_Request] = deque()
        self._new_bytes = 0  # queued since the last send
        self._buffered_bytes = 0
        options = cluster.options
        self._most_requests = options.number("max.in.flight.requests.per.connection")
        self._most_request_bytes = options.number("max.request.size")
        self._most_buffered_bytes = options.number("buffer.memory")

    def send(self, tp: TopicPartition, batch: Buffer) -> None:
        """Queue a batch; its bytes must not change until `flush`."""
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = _PartitionQueue(tp)
        if queue.error is not None:
            return  # flush returns the error
        queue.take(batch)
        self._new_bytes += len(batch)
        self._buffered_bytes += len(batch)
        if self._new_bytes >= SEND_FROM_BYTES:
            self._send_ready()
        while self._buffered_bytes > self._most_buffered_bytes:
            self._step()

    def flush(self) -> dict[TopicPartition, ProduceResult]:
        """Wait for all batches since the last `flush`; the results contain the errors."""
        while not all(queue.is_done for queue in self._queues.values()):
            self._step()
        found = {
            tp: ProduceResult(queue.base_offset, queue.batch_count, queue.error)
            for tp, queue in self._queues.items()
        }
        self._queues.clear()
        return found

    def _step(self) -> None:
        """Send the batches that are ready, then wait for one reply or until a retry is due."""
        self._send_ready()
        if self._requests:
            self._take(self._requests.popleft())
            return
        waiting = [queue.not_before_ms for queue in self._queues.values() if not queue.is_done]
        if waiting:
            pause(max(0, min(waiting) - self._clock.monotonic_ms()) / 1000)

    # -- sending ---------------------------------------------------------------------------------

    def _send_ready(self) -> None:
        self._new_bytes = 0
        is_sending = True
        while is_sending:
            is_sending = False
            for node_id, queues in self._ready_queues().items():
                under_way = sum(1 for each in self._requests if each.node_id == node_id)
                if under_way < self._most_requests:
                    self._send_request(node_id, queues)
                    is_sending = True

    def _ready_queues(self) -> dict[int, list[_PartitionQueue]]:
        now_ms = self._clock.monotonic_ms()
        ready: dict[int, list[_PartitionQueue]] = {}
        for queue in self._queues.values():
            if queue.may_send(now_ms):
                try:
                    ready.setdefault(self._cluster.leader_of(queue.tp), []).append(queue)
                except UnreachableError as error:
                    self._try_later(queue, error)
                except StrandlogError as error:
                    self._buffered_bytes -= queue.give_up(error)
        return ready

    def _send_request(self, node_id: int, queues: list[_PartitionQueue]) -> None:
        size = 0
        batches: list[tuple[_PartitionQueue, _Batch]] = []
        topics: dict[str, list[tuple[int, Buffer]]] = {}
        for queue in queues:
            batch = queue.waiting[0]
            if batches and size + len(batch.data) > self._most_request_bytes:
                break
            size += len(batch.data)
            batches.append((queue, queue.waiting.popleft()))
            topics.setdefault(queue.tp.topic, []).append((queue.tp.partition, batch.data))
            queue.in_flight += 1
        try:
            connection = self._cluster.connection_to(node_id)
            version = connection.version(PRODUCE.key)
            body = produce_request(
                version, self._transactional_id, self._acks, self._timeout_ms, topics
            )
            self._requests.append(_Request(node_id, connection.send(PRODUCE.key, body), batches))
        except UnreachableError as error:
            for queue, batch in batches:
                self._answered(queue, batch, error)

    # -- answers ---------------------------------------------------------------------------------

    def _take(self, request: _Request) -> None:
        answers: dict[TopicPartition, ProduceAnswer] = {}
        failure: StrandlogError | None = None
        try:
            frame, position = request.reply.wait(self._timeout_ms)
            for topic, answer in parse_produce_response(request.reply.version, frame, position):
                answers[TopicPartition(topic, answer.partition)] = answer
        except UnreachableError as error:
            failure = error
        for queue, batch in request.batches:
            given = answers.get(queue.tp)
            self._answered(queue, batch, failure or self._error_of(queue, given), given)

    def _error_of(
        self, queue: _PartitionQueue, answer: ProduceAnswer | None
    ) -> StrandlogError | None:
        if answer is None:
            return RetriableBrokerError(
                f"writing to {queue.tp}: the response omits the partition", -1
            )
        code = answer.error_code
        if code in {0, DUPLICATE_SEQUENCE}:
            return None
        text = f"writing to {queue.tp}"
        if queue.to_resend:
            # Earlier batches must be resent first, and then this one, whatever its error is.
            return RetriableBrokerError(text, code)
        found = broker_error(code, text, answer.error_message, needs="WRITE on the topic")
        if code == CORRUPT_MESSAGE:
            return CorruptRecordError(f"{found}; the batch is damaged: rebuild it")
        return found

    def _answered(
        self,
        queue: _PartitionQueue,
        batch: _Batch,
        error: StrandlogError | None,
        answer: ProduceAnswer | None = None,
    ) -> None:
        queue.in_flight -= 1
        if error is None:
            if batch.number == 0 and answer is not None:
                queue.base_offset = answer.base_offset
            queue.batch_count += 1
            queue.deadline_ms = None
        elif queue.error is None and isinstance(error, UnreachableError):
            queue.to_resend.append(batch)
            self._try_later(queue, error)
            return
        else:
            self._buffered_bytes -= queue.give_up(error)
        self._buffered_bytes -= len(batch.data)

    def _try_later(self, queue: _PartitionQueue, error: UnreachableError) -> None:
        options, now_ms = self._cluster.options, self._clock.monotonic_ms()
        self._cluster.forget_topic(queue.tp.topic)
        queue.not_before_ms = now_ms + options.number("retry.backoff.ms")
        if queue.deadline_ms is None:
            queue.deadline_ms = now_ms + options.number("delivery.timeout.ms")
        elif now_ms >= queue.deadline_ms:
            text = f"{error} (retried for {options.number('delivery.timeout.ms')} ms)"
            self._buffered_bytes -= queue.give_up(UnreachableError(text, error.code))
