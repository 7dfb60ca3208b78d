"""The methods of LogService.

Each method is a coroutine that runs in the broker's event loop. It takes and returns messages as
bytes; `calls.py` receives the calls and sends the errors. Consume writes its messages one at a time
(`consume.py`): `write` returns when gRPC has accepted the message. Messages that clients have not
yet received share a budget (`grpc.queued.max.response.bytes`).

A client that exceeds its request quota gets RESOURCE_EXHAUSTED from every method but Consume; other
quotas have this effect on Produce and on the methods that change topics. Consume pauses while the
client exceeds its request quota or consumer_byte_rate, because clients would only reopen a stream
that ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from strandlog.broker.access.permission import DESCRIBE_CONFIGS, TOPIC
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.topics.topic import Topic
from strandlog.config.limits.grpc import GRPC_CONSUME_MESSAGE_BYTES
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import StrandlogError
from strandlog.model import Acks, OffsetAndMetadata, TopicPartition
from strandlog.protocol.rpc import log_pb2
from strandlog.server.background import as_future
from strandlog.server.grpc.calls import Calls, encoded, small
from strandlog.server.grpc.consume import messages_of
from strandlog.server.grpc.produce_request import read_produce
from strandlog.server.metered import charged
from strandlog.server.peer_budget import Hold, PeerBudget
from strandlog.server.record_io import (
    IN_LOOP_RECORDS,
    RecordPosition,
    RecordProducer,
    fetch,
)

FOLLOW_WAIT_MS = 10_000  # how long a fetch at the end of the log waits before it is repeated
QUOTA_CHECK_MS = 1000
LARGEST_OFFSET = 2**63 - 1
ACKS = {0: Acks.NONE, 1: Acks.LEADER, 2: Acks.ALL}  # by their numbers in log.proto
IN_LOOP_REQUEST_BYTES = 1024  # a larger Produce request is decoded in a thread
# Threads that decode Produce requests and build Consume messages; each competes with the event loop
# for the GIL.
THREADS = 2
COPIES_OF_A_READ = 3  # copies in memory: the batches, their records and the messages
PARTITIONS_AT_A_TIME = 500  # partitions described before the event loop runs again


class LogService:
    """The gRPC service of one broker."""

    def __init__(self, broker: Broker) -> None:
        settings = broker.settings
        self._broker = broker
        self._producer = RecordProducer(broker)
        self._threads = asyncio.Semaphore(THREADS)
        self._unread = PeerBudget(
            settings.grpc_queued_max_response_bytes, settings.grpc_stall_timeout_ms / 1000
        )

    def handlers(self, calls: Calls) -> dict[str, grpc.RpcMethodHandler]:
        """Return the handlers by method name."""
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

    async def Produce(self, context: RequestContext, data: bytes) -> bytes:
        max_records = self._broker.settings.grpc_request_max_records
        if len(data) <= IN_LOOP_REQUEST_BYTES:
            request, records = read_produce(data, max_records)
        else:
            async with self._threads:
                request, records = await asyncio.to_thread(read_produce, data, max_records)
        partition = request.partition if request.HasField("partition") else None
        acks = ACKS[request.acks]
        positions = await self._producer.produce(context, request.topic, partition, records, acks)
        if acks is Acks.NONE:
            return b""
        if len(positions) <= IN_LOOP_RECORDS:
            return _produce_response(positions)
        return await asyncio.to_thread(_produce_response, positions)

    async def Consume(self, context: RequestContext, data: bytes, call: Any) -> None:
        request = small(log_pb2.ConsumeRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        first = offset = min(request.offset, LARGEST_OFFSET)
        committed = not request.include_uncommitted
        topic = self._broker.topic(context, request.topic)
        end = None if request.follow else await self._end(context, tp, committed)
        while end is None or offset < end or offset == first:
            before = offset
            some = self._send_some(context, request, topic, offset, call)
            offset = await charged(self._broker, context, some)
            if offset == before and not request.follow:
                return

    async def _send_some(
        self,
        context: RequestContext,
        request: log_pb2.ConsumeRequest,
        topic: Topic,
        offset: int,
        call: Any,
    ) -> int:
        """Send the records of one fetch and return the offset after them."""
        max_bytes = min(request.max_bytes or GRPC_CONSUME_MESSAGE_BYTES, GRPC_CONSUME_MESSAGE_BYTES)
        if request.follow:  # wait before acquiring memory, because the wait may be long
            await self._wait_for_records(context, request, topic, offset)
        await self._wait_for_quota(context)
        hold = await self._unread.acquire(COPIES_OF_A_READ * max_bytes)
        try:
            found = await fetch(
                self._broker,
                context,
                topic,
                request.partition,
                offset,
                max_bytes=max_bytes,
                committed=not request.include_uncommitted,
            )
            batch_bytes = self._broker.settings.decompressed_max_bytes
            async for some in messages_of(found, offset, max_bytes, batch_bytes, self._threads):
                hold.resize(len(found.data) + 2 * sum(map(len, some.messages)))  # gRPC copies them
                await _write_all(call, some.messages, hold)
                offset = some.next_offset
        finally:
            hold.release()
        return offset

    async def _wait_for_records(
        self,
        context: RequestContext,
        request: log_pb2.ConsumeRequest,
        topic: Topic,
        offset: int,
    ) -> None:
        """Wait until there is a record at the offset, but at most `FOLLOW_WAIT_MS`."""
        await fetch(
            self._broker,
            context,
            topic,
            request.partition,
            offset,
            max_bytes=1,
            wait_ms=FOLLOW_WAIT_MS,
            committed=not request.include_uncommitted,
            is_charged=False,  # these records are not sent
        )

    async def _wait_for_quota(self, context: RequestContext) -> None:
        """Wait while the client exceeds a quota; check again every `QUOTA_CHECK_MS`, because a
        quota may be changed during the wait."""
        delay_ms = self._broker.stream_delay_ms(context)
        self._broker.metrics.throttled_requests += delay_ms > 0
        while delay_ms:
            await asyncio.sleep(min(delay_ms, QUOTA_CHECK_MS) / 1000)
            delay_ms = self._broker.stream_delay_ms(context)

    async def _end(self, context: RequestContext, tp: TopicPartition, committed: bool) -> int:
        """Return the end offset of a stream that does not follow the log.

        The stream includes all records that were written before the call; with `committed`, only
        those before the first open transaction.
        """
        self._broker.partition_state(context, *tp)  # raises if the partition does not exist
        await as_future(self._broker.make_visible(context, [tp]))
        return self._broker.partition_state(context, *tp).readable_end(committed=committed)

    # -- topics --------------------------------------------------------------------------------

    async def CreateTopic(self, context: RequestContext, data: bytes) -> bytes:
        request = small(log_pb2.CreateTopicRequest, data)
        created = self._broker.create_topic(
            context, request.name, request.num_partitions or None, dict(request.config)
        )
        topic = await as_future(created)
        return encoded(log_pb2.CreateTopicResponse(topic=_metadata(topic)))

    async def ListTopics(self, context: RequestContext, data: bytes) -> bytes:
        small(log_pb2.ListTopicsRequest, data)
        response = log_pb2.ListTopicsResponse()
        until_pause = PARTITIONS_AT_A_TIME
        for topic in self._broker.topics(context):
            if not topic.is_internal:
                response.topics.append(_metadata(topic))
                until_pause -= topic.partitions
            if until_pause <= 0:
                until_pause = PARTITIONS_AT_A_TIME
                await asyncio.sleep(0)
        return encoded(response)

    async def DescribeTopic(self, context: RequestContext, data: bytes) -> bytes:
        request = small(log_pb2.DescribeTopicRequest, data)
        broker = self._broker
        topic = broker.topic(context, request.name)
        partitions = [(topic.name, number) for number in range(topic.partitions)]
        await as_future(broker.make_visible(context, partitions))
        config = {}
        if broker.has_access(context, DESCRIBE_CONFIGS.on(TOPIC), topic.name):
            config = {
                name: TOPIC_SETTINGS[name].format(value) for name, value in topic.config.items()
            }
        response = log_pb2.DescribeTopicResponse(
            name=topic.name, topic_id=topic.topic_id, config=config
        )
        for first in range(0, topic.partitions, PARTITIONS_AT_A_TIME):
            end = first + PARTITIONS_AT_A_TIME
            for state in broker.partition_states(context, topic.name, first, end):
                response.partitions.append(
                    log_pb2.PartitionMetadata(
                        partition=state.partition,
                        start_offset=state.start_offset,
                        end_offset=state.high_watermark,
                        size_bytes=state.size_bytes,
                    )
                )
            await asyncio.sleep(0)
        return encoded(response)

    async def DeleteTopic(self, context: RequestContext, data: bytes) -> bytes:
        request = small(log_pb2.DeleteTopicRequest, data)
        await as_future(self._broker.delete_topic(context, request.name))
        return encoded(log_pb2.DeleteTopicResponse())

    # -- groups --------------------------------------------------------------------------------

    async def CommitOffset(self, context: RequestContext, data: bytes) -> bytes:
        request = small(log_pb2.CommitOffsetRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        offset = OffsetAndMetadata(min(request.offset, LARGEST_OFFSET), metadata=request.metadata)
        commit = CommitRequest(group_id=request.group, offsets={tp: offset})
        await as_future(self._broker.commit_offsets(context, commit, all_or_nothing=True))
        return encoded(log_pb2.CommitOffsetResponse())

    async def FetchOffset(self, context: RequestContext, data: bytes) -> bytes:
        request = small(log_pb2.FetchOffsetRequest, data)
        tp = TopicPartition(request.topic, request.partition)
        self._broker.partition_state(context, *tp)  # raises if the partition does not exist
        found = self._broker.fetch_offsets(context, request.group, [tp])[tp]
        if isinstance(found, StrandlogError):
            raise found
        if found is None:
            return encoded(log_pb2.FetchOffsetResponse())
        response = log_pb2.FetchOffsetResponse(offset=found.offset, metadata=found.metadata)
        return encoded(response)


async def _write_all(call: Any, messages: list[bytes], hold: Hold) -> None:
    """Pass messages to gRPC one at a time, each after gRPC has accepted the previous one."""
    messages.reverse()
    while messages:
        message = messages.pop()
        with hold.waiting_for_peer():
            await call.write(message)
        hold.resize(hold.size - 2 * len(message))


def _metadata(topic: Topic) -> log_pb2.TopicMetadata:
    return log_pb2.TopicMetadata(name=topic.name, partitions=range(topic.partitions))


def _produce_response(positions: list[RecordPosition]) -> bytes:
    response = log_pb2.ProduceResponse(
        offsets=[position.offset for position in positions],
        partitions=[position.partition for position in positions],
    )
    return encoded(response)
