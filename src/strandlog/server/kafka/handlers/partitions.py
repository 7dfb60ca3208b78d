"""What partitions are like: OffsetForLeaderEpoch, DescribeLogDirs, DescribeTopicPartitions.

Leader epochs (KIP-320). One node has led every partition since its first record, so there is one
epoch, 0, and it ends where readers end. For the epoch that a client asks about:

    -1              nothing is known: -1, -1
    below 0         what came before the first epoch ends where the log starts
    0               0, high watermark, once all that was written before the request is durable
    above 0         nothing is known: -1, -1

A client that believes in another current leader is told so before: FENCED_LEADER_EPOCH for an older
one, UNKNOWN_LEADER_EPOCH for a newer one.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Any

from strandlog.broker.topics.catalog import Topic
from strandlog.errors import StrandlogError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import CLUSTER, CLUSTER_ACTION, DESCRIBE, TOPIC, kafka_api
from strandlog.server.kafka.handlers.asked import Asked, answered, asked_once, existing_logs
from strandlog.server.kafka.handlers.cluster import (
    ALL_OPERATIONS_ON_TOPIC,
    partition_row,
)
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.server.kafka.refusals import (
    FencedLeaderEpochError,
    InvalidRequestError,
    UnknownLeaderEpochError,
)
from strandlog.server.kafka.request import Request
from strandlog.storage.folder.identity import uuid_of
from strandlog.storage.partition.log import LEADER_EPOCH, PartitionLog
from strandlog.storage.work import Steps, breathe

NO_EPOCH = -1
NO_OFFSET = -1


# -- leader epochs -------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=[(CLUSTER_ACTION.on(CLUSTER), DESCRIBE.on(TOPIC))],
    summary="Returns the end offset of a leader epoch; the only epoch is 0.",
)
def offset_for_leader_epoch(door: KafkaDoor, request: Request) -> Steps[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics,
        lambda topic: topic.partitions,
        lambda part: int(part.partition),
        lambda topic: str(topic.topic),
    )
    logs = yield from existing_logs(door, asked)
    answer = partial(_ends_of_epochs, door, request, asked)
    door.when_visible(request, logs, lambda: door.in_slices(request, answer()))


def _ends_of_epochs(door: KafkaDoor, request: Request, asked: Asked) -> Steps[None]:
    def answer(topic: str, number: int, part: Any) -> dict[str, Any]:
        log = door.broker.catalog.log(topic, number)
        check_leader_epoch(part.current_leader_epoch)
        epoch, end_offset = _end_of_epoch(log, part.leader_epoch)
        return {"leader_epoch": epoch, "end_offset": end_offset}

    topics = yield from answered(asked, answer, "partition", "topic")
    yield from request.replying({"topics": topics})


def check_leader_epoch(believed: int) -> None:
    """Raise when a client believes in another leader than there is."""
    if believed in (NO_EPOCH, LEADER_EPOCH):
        return
    if believed < LEADER_EPOCH:
        raise FencedLeaderEpochError(f"leader epoch {believed} is over; ask for Metadata again")
    raise UnknownLeaderEpochError(f"leader epoch {believed} has not begun; ask for Metadata again")


def _end_of_epoch(log: PartitionLog, epoch: int) -> tuple[int, int]:
    if epoch == LEADER_EPOCH:
        return epoch, log.high_watermark
    if epoch == NO_EPOCH or epoch > LEADER_EPOCH:
        return NO_EPOCH, NO_OFFSET
    return epoch, log.log_start_offset


# -- folders -------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_LOG_DIRS,
    versions=(1, 4),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Returns bytes per partition, and the size and free space of the disk.",
)
def describe_log_dirs(door: KafkaDoor, request: Request) -> Steps[None]:
    """How large each partition is, and how much room the disk has."""
    wanted = (yield from request.reading()).topics
    catalog, log_dir = door.broker.catalog, door.broker.log_dir
    numbers_of: dict[str, Any] = dict.fromkeys(catalog.names())
    if wanted is not None:
        asked = yield from asked_once(
            (row for row in wanted if row.topic in catalog),
            lambda row: row.partitions,
            name_of=lambda row: str(row.topic),
        )
        numbers_of = dict(asked.topics)
    topics = []
    for name, numbers in numbers_of.items():
        rows = []
        for number, log in enumerate(catalog.logs(name) if name in catalog else ()):
            if numbers is None or number in numbers:
                rows.append(_size_row(number, log))
                yield breathe
        topics.append({"name": name, "partitions": rows})
    result: dict[str, Any] = {"log_dir": log_dir.path, "topics": topics}
    try:
        result["total_bytes"] = log_dir.files.total_bytes(log_dir.path)
        result["usable_bytes"] = log_dir.files.free_bytes(log_dir.path)
    except StrandlogError as error:
        result["error_code"] = error.kafka_code
    yield from request.replying({"results": [result]})


def _size_row(number: int, log: PartitionLog) -> dict[str, Any]:
    return {
        "partition_index": number,
        "partition_size": log.segments.size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }


# -- topics, page by page ------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=[DESCRIBE.on(TOPIC)],
    summary="Describes topics with many partitions, page by page.",
)
def describe_topic_partitions(door: KafkaDoor, request: Request) -> Steps[None]:
    """Topics by name, some partitions at a time; the cursor says where the next page begins."""
    body = yield from request.reading()
    catalog = door.broker.catalog
    names = sorted({topic.name for topic in body.topics}) or catalog.names()
    cursor, first = body.cursor, 0
    if cursor is not None:
        if cursor.partition_index < 0:
            refused = {"error_code": InvalidRequestError.kafka_code, "name": cursor.topic_name}
            request.reply({"topics": [refused]})
            return
        names = names[bisect_left(names, cursor.topic_name) :]
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    limit = door.broker.settings.max_request_partition_size_limit
    left = min(max(body.response_partition_limit, 1), limit)
    topics: list[dict[str, Any]] = []
    next_cursor = None
    for name in names:
        yield breathe
        if not left:
            next_cursor = {"topic_name": name, "partition_index": first}
            break
        try:
            topic = catalog.topic_asked_for(name)
        except StrandlogError as error:
            topics.append({"error_code": error.kafka_code, "name": name})
            continue
        end = min(topic.partitions, first + left)
        topics.append(_page_of(topic, first, end))
        left -= max(end - first, 0)
        if end < topic.partitions:
            next_cursor = {"topic_name": name, "partition_index": end}
            break
        first = 0
    yield from request.replying({"topics": topics, "next_cursor": next_cursor})


def _page_of(topic: Topic, first: int, end: int) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.is_internal,
        "topic_authorized_operations": ALL_OPERATIONS_ON_TOPIC,
        "partitions": [
            {**partition_row(number), "eligible_leader_replicas": [], "last_known_elr": []}
            for number in range(first, end)
        ],
    }
