"""The methods of `LogService`.

Each is a coroutine in the broker's own event loop that takes and gives messages as bytes; how calls
are received and refused is in `calls.py`. A streaming reader (`consuming.py`) is served message by
message: `write` returns when gRPC has taken one. The messages that clients have not taken share a
budget (`grpc.queued.max.response.bytes`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.topics.catalog import Topic
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.model import Acks, OffsetAndMetadata, TopicPartition
from strandlog.protocol.rpc import log_pb2
from strandlog.server.awaiting import done_in_steps, group_durable, visible
from strandlog.server.core import ServerCore
from strandlog.server.grpc.calls import Calls, encoded, small
from strandlog.server.grpc.consume import messages_of
from strandlog.server.grpc.produce_request import read_produce
from strandlog.server.peer_budget import Hold, PeerBudget
from strandlog.server.record_io import (
    IN_LOOP_RECORDS,
    Place,
    Writing,
    fetch,
)

FOLLOW_WAIT_MS = 10_000  # how long one look at the end waits; then the next one
LARGEST_OFFSET = 2**63 - 1
ACKS = {0: Acks.NONE, 1: Acks.LEADER, 2: Acks.ALL}  # by their numbers in log.proto
MAX_MESSAGE_BYTES = 1024 * 1024  # of a message of Consume, unless a single record is larger
IN_LOOP_REQUEST_BYTES = 1024  # a larger Produce is taken apart in a thread
THREADS = 2  # that encode and decode; each competes with the event loop for the interpreter
COPIES_OF_A_READ = 3  # a read in memory: the batches, their records, the messages
PARTITIONS_AT_A_TIME = 500  # described before the event loop gets its turn


class LogService:
    """The log, as gRPC clients see it."""

    def __init__(self, core: ServerCore) -> None:
        settings = core.broker.settings
        self._core = core
        self._broker = core.broker
        self._writing = Writing(core)
        self._threads = asyncio.Semaphore(THREADS)
        self._unread = PeerBudget(
            settings.grpc_queued_max_response_bytes, settings.grpc_stall_timeout_ms / 1000
        )

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler]:
        """The handler of each method, by its name."""
        unary = (
            self.Produce,
            self.CreateTopic,
            self.ListTopics,
            self.DescribeTopic,
            self.DeleteTopic,
            self.CommitOffset,
            self.FetchOffset,
        )
        found = {method.__name__: calls.unary(method) for method in unary}
        return {**found, "Consume": calls.streaming(self.Consume)}

    # -- records -------------------------------------------------------------------------------

    async def Produce(self, data: bytes) -> bytes:
        most = self._broker.settings.grpc_request_max_records
        if len(data) <= IN_LOOP_REQUEST_BYTES:
            request, records = read_produce(data, most)
        else:
            async with self._threads:
                request, records = await asyncio.to_thread(read_produce, data, most)
        partition = request.partition if request.HasField("partition") else None
        acks = ACKS[request.acks]
        places = await self._writing.append(request.topic, partition, records, acks)
        if acks is Acks.NONE:
            return b""
        if len(places) <= IN_LOOP_RECORDS:
            return _told_places(places)
        return await asyncio.to_thread(_told_places, places)

    async def Consume(self, data: bytes, context: Any) -> None:
        request = small(log_pb2.ConsumeRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        first = offset = min(request.offset, LARGEST_OFFSET)
        end = None if request.follow else await self._end(tp, request.read_committed)
        while end is None or offset < end or offset == first:
            before = offset
            offset = await self._send_some(request, tp, offset, context)
            if offset == before and not request.follow:
                return

    async def _send_some(
        self, request: log_pb2.ConsumeRequest, tp: TopicPartition, offset: int, context: Any
    ) -> int:
        """Send what one fetch finds; the offset after it."""
        max_bytes = min(request.max_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        if request.follow:  # without memory, for it may take long
            await self._something_at(request, tp, offset)
        hold = await self._unread.acquire(COPIES_OF_A_READ * max_bytes)
        try:
            found = await fetch(
                self._core, tp, offset, max_bytes=max_bytes, committed=request.read_committed
            )
            async for some in messages_of(self._core, found, offset, max_bytes, self._threads):
                hold.resize(len(found.data) + 2 * sum(map(len, some.messages)))  # gRPC copies
                await _write_all(context, some.messages, hold)
                offset = some.next_offset
        finally:
            hold.release()
        return offset

    async def _something_at(
        self, request: log_pb2.ConsumeRequest, tp: TopicPartition, offset: int
    ) -> None:
        """Until there is something to read, or a while."""
        await fetch(
            self._core,
            tp,
            offset,
            max_bytes=1,
            wait_ms=FOLLOW_WAIT_MS,
            committed=request.read_committed,
        )

    async def _end(self, tp: TopicPartition, committed: bool) -> int:
        """Where a reader that does not follow ends: behind everything written before it came."""
        log = self._broker.catalog.log(*tp)
        await visible(self._core, [log])
        return log.last_stable_offset if committed else log.high_watermark

    # -- topics --------------------------------------------------------------------------------

    async def CreateTopic(self, data: bytes) -> bytes:
        request = small(log_pb2.CreateTopicRequest, data)
        steps = self._broker.topic_admin.create(
            request.name, request.num_partitions or None, dict(request.config)
        )
        topic = await done_in_steps(self._core, "CreateTopic", steps)
        return encoded(log_pb2.CreateTopicResponse(topic=_metadata(topic)))

    async def ListTopics(self, data: bytes) -> bytes:
        small(log_pb2.ListTopicsRequest, data)
        catalog = self._broker.catalog
        response = log_pb2.ListTopicsResponse()
        until_turn = PARTITIONS_AT_A_TIME
        for name in catalog.names():
            if name in catalog and not (topic := catalog.topic(name)).is_internal:
                response.topics.append(_metadata(topic))
                until_turn -= topic.partitions
            if until_turn <= 0:
                until_turn = PARTITIONS_AT_A_TIME
                await asyncio.sleep(0)
        return encoded(response)

    async def DescribeTopic(self, data: bytes) -> bytes:
        request = small(log_pb2.DescribeTopicRequest, data)
        await visible(self._core, self._broker.catalog.logs(request.name))
        topic = self._broker.catalog.topic(request.name)
        response = log_pb2.DescribeTopicResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            config={
                name: TOPIC_SETTINGS[name].format(value) for name, value in topic.config.items()
            },
        )
        for number, log in enumerate(list(self._broker.catalog.logs(topic.name)), 1):
            response.partitions.append(
                log_pb2.PartitionMetadata(
                    partition=log.tp.partition,
                    start_offset=log.log_start_offset,
                    end_offset=log.high_watermark,
                    size_bytes=log.segments.size_bytes,
                )
            )
            if number % PARTITIONS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return encoded(response)

    async def DeleteTopic(self, data: bytes) -> bytes:
        request = small(log_pb2.DeleteTopicRequest, data)
        steps = self._core.deleting_topic(request.name)
        await done_in_steps(self._core, "DeleteTopic", steps)
        return encoded(log_pb2.DeleteTopicResponse())

    # -- groups --------------------------------------------------------------------------------

    async def CommitOffset(self, data: bytes) -> bytes:
        request = small(log_pb2.CommitOffsetRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        self._broker.catalog.log(*tp)  # an unknown partition is an error, not a new offset
        offset = OffsetAndMetadata(min(request.offset, LARGEST_OFFSET), metadata=request.metadata)
        self._broker.group_coordinator.commit_offsets(
            CommitRequest(group_id=request.group, offsets={tp: offset})
        )
        await group_durable(self._core, request.group)
        return encoded(log_pb2.CommitOffsetResponse())

    async def FetchOffset(self, data: bytes) -> bytes:
        request = small(log_pb2.FetchOffsetRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        self._broker.catalog.log(*tp)
        found = self._broker.group_coordinator.fetch_offsets(request.group, [tp])[tp]
        if found is None:
            return encoded(log_pb2.FetchOffsetResponse())
        response = log_pb2.FetchOffsetResponse(offset=found.offset, metadata=found.metadata)
        return encoded(response)


async def _write_all(context: Any, messages: list[bytes], hold: Hold) -> None:
    """Hand messages to gRPC, the next one when the client has taken the last."""
    messages.reverse()
    while messages:
        message = messages.pop()
        with hold.waiting_for_peer():
            await context.write(message)
        hold.resize(hold.size - 2 * len(message))


def _metadata(topic: Topic) -> log_pb2.TopicMetadata:
    return log_pb2.TopicMetadata(name=topic.name, partitions=range(topic.partitions))


def _told_places(places: list[Place]) -> bytes:
    response = log_pb2.ProduceResponse(
        offsets=[place.offset for place in places],
        partitions=[place.partition for place in places],
    )
    return encoded(response)
