"""Handlers for ListOffsets and OffsetForLeaderEpoch.

Both wait until all records written to the partitions before the request are visible to readers,
including those written with acks=1, or until the disk fails or takes too long. A ListOffsets
request that asks only for earliest offsets does not wait.

The leader of a partition never changes, so the only leader epoch is 0 (KIP-320). It ends at the
high watermark. The response depends on the epoch in the request:

    -1              unknown: -1, -1
    below -1        the same epoch, log start offset
    0               0, high watermark
    above 0         unknown: -1, -1

If the current leader epoch that a request gives for a partition is neither 0 nor -1 (none), the
partition gets FENCED_LEADER_EPOCH for an older epoch, or UNKNOWN_LEADER_EPOCH for a newer one.
"""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.permission import CLUSTER, CLUSTER_ACTION, DESCRIBE, TOPIC
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.runtime import Work, yield_control
from strandlog.errors import InvalidRequestError, StrandlogError, UnsupportedVersionError
from strandlog.model import IsolationLevel
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Asked, Request, answered, asked_once

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
# Special timestamps, and the first version of ListOffsets that supports them.
SPECIAL_TIMESTAMPS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
AT_THE_START = (EARLIEST, EARLIEST_LOCAL)  # need not wait until appended records are visible


@kafka_api(
    api.LIST_OFFSETS,
    versions=(1, 11),
    requires=[DESCRIBE.on(TOPIC)],
    summary=(
        "Finds the earliest or latest offset, the offset of the largest timestamp, or the first "
        "record at or after a time."
    ),
    notes="The special timestamps of tiered storage work as in Kafka without tiered storage.",
)
def list_offsets(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics, lambda topic: topic.partitions, lambda part: int(part.partition_index)
    )
    ends = {
        name: {number: part for number, part in rows.items() if part.timestamp not in AT_THE_START}
        for name, rows in asked.topics.items()
    }
    partitions = yield from existing_partitions(broker, request.context, ends)
    is_committed = getattr(body, "isolation_level", 0) == IsolationLevel.READ_COMMITTED
    isolation = IsolationLevel.of(committed=is_committed)

    def look_up(_: None) -> None:
        work = _offset_rows(broker, request, asked, isolation)
        request.in_decoder(work, lambda topics: request.reply_in_slices({"topics": topics}))

    request.when_done(broker.make_visible(request.context, partitions), look_up)


def existing_partitions(
    broker: Broker, context: RequestContext, asked: dict[str, dict[int, Any]]
) -> Work[list[tuple[str, int]]]:
    """Return the requested partitions that exist."""
    found = []
    for name, rows in asked.items():
        try:
            count = broker.topic(context, name).partitions
        except StrandlogError:
            count = 0
        for number in rows:
            if 0 <= number < count:
                found.append((name, number))
            yield yield_control
    return found


def _offset_rows(
    broker: Broker, request: Request, asked: Asked, isolation: IsolationLevel
) -> Work[list[dict[str, Any]]]:
    """Build the rows of the response; a lookup by timestamp may have to decode a large batch."""
    topics = []
    for name, rows in asked.topics.items():
        partitions = []
        for number, part in rows.items():
            yield yield_control
            try:
                if (name, number) in asked.repeated:
                    raise InvalidRequestError(f"{name}-{number} is named more than once")
                _check_timestamp(part.timestamp, request.version)
                epoch = getattr(part, "current_leader_epoch", -1)
                timestamp, offset = yield from broker.list_offset(
                    request.context, name, number, part.timestamp, isolation, epoch
                )
                found = {
                    "error_code": 0,
                    "timestamp": timestamp,
                    "offset": offset,
                    "leader_epoch": 0 if offset >= 0 else -1,
                }
            except StrandlogError as error:
                found = {"error_code": error.kafka_code, "timestamp": -1, "offset": -1}
            partitions.append({"partition_index": number, **found})
        topics.append({"name": name, "partitions": partitions})
    return topics


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < SPECIAL_TIMESTAMPS.get(timestamp, version + 1):
        raise UnsupportedVersionError(
            f"version {version} of ListOffsets does not support timestamp {timestamp}"
        )


@kafka_api(
    api.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=[(CLUSTER_ACTION.on(CLUSTER), DESCRIBE.on(TOPIC))],
    summary="Returns the end offset of a leader epoch; the only epoch is 0.",
)
def offset_for_leader_epoch(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics,
        lambda topic: topic.partitions,
        lambda part: int(part.partition),
        lambda topic: str(topic.topic),
    )
    partitions = yield from existing_partitions(broker, request.context, asked.topics)
    request.when_done(
        broker.make_visible(request.context, partitions),
        lambda _: request.in_slices(_epoch_ends(broker, request, asked)),
    )


def _epoch_ends(broker: Broker, request: Request, asked: Asked) -> Work[None]:
    def answer(topic: str, number: int, part: Any) -> dict[str, Any]:
        epoch, end_offset = broker.epoch_end_offset(
            request.context, topic, number, part.leader_epoch, part.current_leader_epoch
        )
        return {"leader_epoch": epoch, "end_offset": end_offset}

    topics = yield from answered(asked, answer, "partition", "topic")
    yield from request.replying({"topics": topics})
