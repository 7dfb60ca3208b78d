"""The methods of `LogService`.

Each is a coroutine in the broker's own event loop. A streaming reader (`consuming.py`) is served
message by message: `write` comes back when gRPC has taken one, so a reader that does not read holds
itself up, with some messages in memory, and nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from grpc import StatusCode

from strandlog.broker.catalog import Topic
from strandlog.broker.group_member import CommitRequest
from strandlog.config.topic_settings import TOPIC_SETTINGS
from strandlog.errors import StrandlogError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceServicer
from strandlog.server.core import ServerCore
from strandlog.server.grpc.consuming import messages_of
from strandlog.server.grpc.statuses import status_of
from strandlog.server.verbs import (
    ACKS_NONE,
    DEFAULT_READ_BYTES,
    NewRecord,
    Writing,
    fetch,
)
from strandlog.server.waiting import done_in_steps, group_durable, visible

logger = logging.getLogger(__name__)

FOLLOW_WAIT_MS = 10_000  # how long one look at the end waits; then the next one
LARGEST_OFFSET = 2**63 - 1

Answer = TypeVar("Answer")


class LogServicer(LogServiceServicer):
    """The log, as gRPC clients see it."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._broker = core.broker
        self._writing = Writing(core)

    async def _answer(self, context: Any, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """What the work gives, or its error as a status."""
        try:
            return await work()
        except StrandlogError as error:
            await context.abort(status_of(error), str(error))
        except Exception as error:
            logger.exception("a gRPC call went wrong")
            await context.abort(StatusCode.INTERNAL, f"{type(error).__name__}: see the log")
        raise AssertionError("abort raises")

    # -- records -------------------------------------------------------------------------------

    async def Produce(
        self, request: log_pb2.ProduceRequest, context: Any
    ) -> log_pb2.ProduceResponse:
        async def work() -> log_pb2.ProduceResponse:
            records = [_new_record(record) for record in request.records]
            partition = request.partition if request.HasField("partition") else None
            places = await self._writing.append(request.topic, partition, records, request.acks)
            if request.acks == ACKS_NONE:
                return log_pb2.ProduceResponse()
            return log_pb2.ProduceResponse(
                offsets=[place.offset for place in places],
                partitions=[place.partition for place in places],
            )

        return await self._answer(context, work)

    async def Consume(self, request: log_pb2.ConsumeRequest, context: Any) -> None:
        await self._answer(context, lambda: self._stream(request, context))

    async def _stream(self, request: log_pb2.ConsumeRequest, context: Any) -> None:
        tp = TopicPartition(request.topic, request.partition)
        first = offset = min(request.offset, LARGEST_OFFSET)
        end = None if request.follow else await self._end(tp, request.read_committed)
        while end is None or offset < end or offset == first:
            found = await fetch(
                self._core,
                tp,
                offset,
                max_bytes=request.max_bytes or DEFAULT_READ_BYTES,
                wait_ms=FOLLOW_WAIT_MS if request.follow else 0,
                committed=request.read_committed,
            )
            before = offset
            async for some in messages_of(self._core, found, offset, request.max_bytes):
                for message in some.messages:
                    await context.write(message)
                offset = some.next_offset
            if offset == before and not request.follow:
                return

    async def _end(self, tp: TopicPartition, committed: bool) -> int:
        """Where a reader that does not follow ends: behind everything written before it came."""
        log = self._broker.catalog.log(*tp)
        await visible(self._core, [log])
        return log.last_stable_offset if committed else log.high_watermark

    # -- topics --------------------------------------------------------------------------------

    async def CreateTopic(
        self, request: log_pb2.CreateTopicRequest, context: Any
    ) -> log_pb2.CreateTopicResponse:
        async def work() -> log_pb2.CreateTopicResponse:
            steps = self._broker.creating_topic(
                request.name, request.num_partitions or None, dict(request.config)
            )
            topic = await done_in_steps(self._core, "CreateTopic", steps)
            return log_pb2.CreateTopicResponse(topic=_metadata(topic))

        return await self._answer(context, work)

    async def ListTopics(
        self, request: log_pb2.ListTopicsRequest, context: Any
    ) -> log_pb2.ListTopicsResponse:
        del request, context
        catalog = self._broker.catalog
        topics = [catalog.topic(name) for name in catalog.names()]
        return log_pb2.ListTopicsResponse(
            topics=[_metadata(topic) for topic in topics if not topic.is_internal]
        )

    async def DescribeTopic(
        self, request: log_pb2.DescribeTopicRequest, context: Any
    ) -> log_pb2.DescribeTopicResponse:
        async def work() -> log_pb2.DescribeTopicResponse:
            await visible(self._core, self._broker.catalog.logs(request.name))
            topic = self._broker.catalog.topic(request.name)
            return log_pb2.DescribeTopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    log_pb2.PartitionMetadata(
                        partition=log.tp.partition,
                        start_offset=log.log_start_offset,
                        end_offset=log.high_watermark,
                        size_bytes=log.segments.size_bytes,
                    )
                    for log in self._broker.catalog.logs(topic.name)
                ],
                config={
                    name: TOPIC_SETTINGS[name].format(value) for name, value in topic.config.items()
                },
            )

        return await self._answer(context, work)

    async def DeleteTopic(
        self, request: log_pb2.DeleteTopicRequest, context: Any
    ) -> log_pb2.DeleteTopicResponse:
        async def work() -> log_pb2.DeleteTopicResponse:
            steps = self._core.deleting_topic(request.name)
            await done_in_steps(self._core, "DeleteTopic", steps)
            return log_pb2.DeleteTopicResponse()

        return await self._answer(context, work)

    # -- groups --------------------------------------------------------------------------------

    async def CommitOffset(
        self, request: log_pb2.CommitOffsetRequest, context: Any
    ) -> log_pb2.CommitOffsetResponse:
        async def work() -> log_pb2.CommitOffsetResponse:
            tp = TopicPartition(request.topic, request.partition)
            self._broker.catalog.log(*tp)  # a mistake in the name is told
            offset = OffsetAndMetadata(
                min(request.offset, LARGEST_OFFSET), metadata=request.metadata
            )
            self._broker.groups.commit_offsets(
                CommitRequest(group_id=request.group, offsets={tp: offset})
            )
            await group_durable(self._core, request.group)
            return log_pb2.CommitOffsetResponse()

        return await self._answer(context, work)

    async def FetchOffset(
        self, request: log_pb2.FetchOffsetRequest, context: Any
    ) -> log_pb2.FetchOffsetResponse:
        async def work() -> log_pb2.FetchOffsetResponse:
            tp = TopicPartition(request.topic, request.partition)
            self._broker.catalog.log(*tp)
            found = self._broker.groups.fetch_offsets(request.group, [tp])[tp]
            if found is None:
                return log_pb2.FetchOffsetResponse()
            return log_pb2.FetchOffsetResponse(offset=found.offset, metadata=found.metadata)

        return await self._answer(context, work)


def _metadata(topic: Topic) -> log_pb2.TopicMetadata:
    return log_pb2.TopicMetadata(name=topic.name, partitions=range(topic.partitions))


def _new_record(record: log_pb2.Record) -> NewRecord:
    return NewRecord(
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        [
            (header.key, header.value if header.HasField("value") else None)
            for header in record.headers
        ],
        record.timestamp if record.HasField("timestamp") else None,
    )
