"""Handlers for Metadata and DescribeTopicPartitions.

Metadata creates a missing topic if the request, `auto.create.topics.enable` and the client's
permissions allow it and the name is valid. One node leads every partition, so the partition rows of
a topic depend only on the number of partitions. The encoded rows are cached by count and version,
because clients of large topics request them often.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any
from uuid import UUID

from strandlog.broker.access.permission import CLUSTER, CREATE, DESCRIBE, TOPIC
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.broker.topics.topic import INTERNAL_TOPICS, Topic
from strandlog.errors import (
    AuthorizationError,
    InvalidRequestError,
    LeaderNotAvailableError,
    StrandlogError,
)
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.server.kafka.api import NODE_ID, kafka_api
from strandlog.server.kafka.request import Request

CREATE_TOPIC = (CREATE.on(CLUSTER), CREATE.on(TOPIC))

NOT_ASKED_FOR = -2147483648
TOPIC_IDS_FROM = 12


@kafka_api(
    api.METADATA,
    versions=(0, 13),
    requires=[DESCRIBE.on(TOPIC), CREATE_TOPIC],
    summary=(
        "Lists topics, partitions and the broker to connect to; creates missing topics on demand."
    ),
    notes=(
        "CREATE is required only if a topic is created. One node leads every partition; cluster "
        "and topic ids are stable. From version 12, requests can identify topics by id."
    ),
)
def metadata(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    # Duplicates are dropped: a short request could name a large topic thousands of times.
    wanted = None if body.topics is None else dict.fromkeys(body.topics)
    failures: dict[str, StrandlogError] = {}
    missing = yield from _topics_to_create(broker, request, body, wanted, failures)
    limit = broker.settings.auto_create_topics_max_per_request
    over_limit = LeaderNotAvailableError(
        f"one request can create at most {limit} topics (auto.create.topics.max.per.request)"
    )
    failures |= dict.fromkeys(missing[limit:], over_limit)
    if not missing:
        yield from _describe(broker, request, body, wanted, failures)
        return

    def created(failed: dict[str, StrandlogError]) -> None:
        if request.meter is not None:
            request.meter.add(broker.mutation_delay_ms(request.context))
        request.in_slices(_describe(broker, request, body, wanted, failures | failed))

    creating = broker.create_missing_topics(request.context, missing[:limit])
    request.when_done(creating, created, in_line=True)


def _topics_to_create(
    broker: Broker,
    request: Request,
    body: Any,
    wanted: dict[Any, None] | None,
    failures: dict[str, StrandlogError],
) -> Work[list[str]]:
    """Return the requested topics that do not exist and may be created on demand. For each missing
    topic that the client may not see or create, add an error to `failures`."""
    may_create = getattr(body, "allow_auto_topic_creation", True)
    missing: dict[str, None] = {}
    if may_create and wanted and broker.settings.auto_create_topics_enable:
        for each in wanted:
            yield yield_control
            name = each.name
            if name is None or getattr(each, "topic_id", None) is not None:
                continue
            if name in INTERNAL_TOPICS or broker.has_topic(request.context, name):
                continue
            try:
                broker.check_access(request.context, DESCRIBE.on(TOPIC), name)
                broker.check_access(request.context, CREATE_TOPIC, name)
                missing[name] = None
            except AuthorizationError as error:
                failures[name] = error
    return list(missing)


def _describe(
    broker: Broker,
    request: Request,
    body: Any,
    wanted: dict[Any, None] | None,
    failures: dict[str, StrandlogError],
) -> Work[None]:
    context = request.context
    topics: list[dict[str, Any]] = []
    if wanted is None or (request.version == 0 and not wanted):
        for name in broker.topic_names(context):
            if broker.has_topic(context, name):  # the topic may have been deleted
                topics.append(_topic(broker.topic(context, name), request.version))
            yield yield_control
    else:
        for topic in wanted:
            topics.append(_wanted_topic(broker, request, topic, failures))
            yield yield_control
    if getattr(body, "include_topic_authorized_operations", False):
        for row in topics:
            if not row["error_code"]:
                row["topic_authorized_operations"] = broker.authorized_operations(
                    context, TOPIC, row["name"]
                )
            yield yield_control
    host, port = request.advertised
    yield from request.replying(
        {
            "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_id": broker.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
            "cluster_authorized_operations": cluster_operations(broker, request, body),
        }
    )


def cluster_operations(broker: Broker, request: Request, body: Any) -> int:
    """Return the operations that the client may perform on the cluster, as a bit field: 0 if the
    client may not describe the cluster, `NOT_ASKED_FOR` if the request does not ask for it."""
    if not getattr(body, "include_cluster_authorized_operations", False):
        return NOT_ASKED_FOR
    if not broker.has_access(request.context, DESCRIBE.on(CLUSTER)):
        return 0
    return broker.authorized_operations(request.context, CLUSTER)


def _wanted_topic(
    broker: Broker, request: Request, wanted: Any, failures: dict[str, StrandlogError]
) -> dict[str, Any]:
    topic_id: UUID | None = getattr(wanted, "topic_id", None)
    name: str | None = wanted.name
    try:
        if name is None or topic_id is not None:
            if request.version < TOPIC_IDS_FROM or topic_id is None:
                raise InvalidRequestError("this version requires topic names")
            topic = broker.topic(request.context, topic_id)
        elif name in failures:
            raise failures[name]
        else:
            topic = broker.topic(request.context, name)
        return _topic(topic, request.version)
    except StrandlogError as error:
        if name is None and request.version < TOPIC_IDS_FROM:
            name = ""  # not nullable in older responses
        return {"error_code": error.kafka_code, "name": name, "topic_id": topic_id}


def _topic(topic: Topic, version: int) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": topic.is_internal,
        "partitions": _encoded_partitions(version, topic.partitions),
        "topic_authorized_operations": NOT_ASKED_FOR,
    }


@lru_cache(maxsize=64)
def _encoded_partitions(version: int, count: int) -> bytes:
    rows = [partition_row(number) for number in range(count)]
    return array_encoder(api.METADATA.key, version, "topics", "partitions")(rows)


def partition_row(number: int) -> dict[str, Any]:
    """Return the entry for a partition; its leader and only replica is this node."""
    return {
        "error_code": 0,
        "partition_index": number,
        "leader_id": NODE_ID,
        "leader_epoch": 0,
        "replica_nodes": [NODE_ID],
        "isr_nodes": [NODE_ID],
        "offline_replicas": [],
    }


# -- paging ----------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    requires=[DESCRIBE.on(TOPIC)],
    summary="Describes topics with many partitions, page by page.",
)
def describe_topic_partitions(broker: Broker, request: Request) -> Work[None]:
    """Return one page of partitions. The cursor in the response is the start of the next page, or
    null after the last page."""
    body = yield from request.reading()
    context = request.context
    names = sorted({topic.name for topic in body.topics}) or broker.topic_names(context)
    cursor, first = body.cursor, 0
    if cursor is not None:
        if cursor.partition_index < 0:
            invalid = {"error_code": InvalidRequestError.kafka_code, "name": cursor.topic_name}
            request.reply({"topics": [invalid]})
            return
        names = names[bisect_left(names, cursor.topic_name) :]
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    limit = broker.settings.max_request_partition_size_limit
    left = min(max(body.response_partition_limit, 1), limit)
    topics: list[dict[str, Any]] = []
    next_cursor = None
    for name in names:
        yield yield_control
        if not left:
            next_cursor = {"topic_name": name, "partition_index": first}
            break
        try:
            topic = broker.topic(context, name)
        except StrandlogError as error:
            topics.append({"error_code": error.kafka_code, "name": name})
            continue
        end = min(topic.partitions, first + left)
        operations = broker.authorized_operations(context, TOPIC, name)
        topics.append(_page_of(topic, first, end, operations))
        left -= max(end - first, 0)
        if end < topic.partitions:
            next_cursor = {"topic_name": name, "partition_index": end}
            break
        first = 0
    yield from request.replying({"topics": topics, "next_cursor": next_cursor})


def _page_of(topic: Topic, first: int, end: int, operations: int) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": topic.is_internal,
        "topic_authorized_operations": operations,
        "partitions": [
            {**partition_row(number), "eligible_leader_replicas": [], "last_known_elr": []}
            for number in range(first, end)
        ],
    }
