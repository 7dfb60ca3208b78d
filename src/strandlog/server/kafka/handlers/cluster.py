"""Who is there and what does it speak: ApiVersions, Metadata, FindCoordinator, DescribeCluster."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from strandlog.broker.catalog import Topic
from strandlog.errors import StrandlogError, TopicNotFoundError
from strandlog.protocol.kafka.versions import APIS
from strandlog.server.kafka.door import NODE_ID, KafkaDoor
from strandlog.server.kafka.request import Request
from strandlog.storage.identity import uuid_of

UNKNOWN_TOPIC_ID = 100
NO_OPERATIONS = -2147483648
COORDINATOR_GROUP, COORDINATOR_TRANSACTION = 0, 1
COORDINATOR_NOT_AVAILABLE = 15


def api_versions(door: KafkaDoor, request: Request) -> None:
    del door
    request.body()
    keys = [
        {
            "api_key": api.key,
            "min_version": api.first if api.advertised_first is None else api.advertised_first,
            "max_version": api.last,
        }
        for api in APIS
    ]
    request.reply({"error_code": 0, "api_keys": keys})


def metadata(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    wanted = body.topics
    catalog = door.broker.catalog
    if wanted is None or (request.version == 0 and not wanted):
        topics = [_topic(catalog.topic(name)) for name in catalog.names()]
    else:
        may_create = getattr(body, "allow_auto_topic_creation", True)
        topics = [_wanted_topic(door, topic, may_create=may_create) for topic in wanted]
    host, port = door.advertised(request.connection)
    request.reply(
        {
            "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_id": door.broker.log_dir.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
        }
    )


def _wanted_topic(door: KafkaDoor, wanted: Any, *, may_create: bool) -> dict[str, Any]:
    topic_id: UUID | None = getattr(wanted, "topic_id", None)
    name: str | None = wanted.name
    if name is None and topic_id is not None:
        found = topic_with_id(door, topic_id)
        if found is None:
            return {"error_code": UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id}
        return _topic(found)
    name = name or ""
    try:
        return _topic(door.broker.catalog.topic(name))
    except TopicNotFoundError as missing:
        if not (may_create and door.broker.settings.auto_create_topics_enable):
            return {"error_code": missing.kafka_code, "name": name}
    try:
        return _topic(door.broker.create_topic(name))
    except StrandlogError as error:
        return {"error_code": error.kafka_code, "name": name}


def topic_with_id(door: KafkaDoor, topic_id: UUID) -> Topic | None:
    """The topic that has this id."""
    catalog = door.broker.catalog
    for name in catalog.names():
        topic = catalog.topic(name)
        if uuid_of(topic.topic_id) == topic_id:
            return topic
    return None


def _topic(topic: Topic) -> dict[str, Any]:
    partitions = [
        {
            "error_code": 0,
            "partition_index": number,
            "leader_id": NODE_ID,
            "leader_epoch": 0,
            "replica_nodes": [NODE_ID],
            "isr_nodes": [NODE_ID],
            "offline_replicas": [],
        }
        for number in range(topic.partitions)
    ]
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "topic_authorized_operations": NO_OPERATIONS,
    }


def find_coordinator(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    host, port = door.advertised(request.connection)
    key_type = getattr(body, "key_type", COORDINATOR_GROUP)
    answer: dict[str, Any] = {"node_id": NODE_ID, "host": host, "port": port, "error_code": 0}
    if key_type not in (COORDINATOR_GROUP, COORDINATOR_TRANSACTION):
        answer = {"node_id": -1, "host": "", "port": -1, "error_code": COORDINATOR_NOT_AVAILABLE}
    keys = getattr(body, "coordinator_keys", None)
    if keys is None:
        request.reply(answer)
    else:
        request.reply({"coordinators": [{**answer, "key": key} for key in keys]})


def describe_cluster(door: KafkaDoor, request: Request) -> None:
    request.body()
    host, port = door.advertised(request.connection)
    request.reply(
        {
            "cluster_id": door.broker.log_dir.cluster_id,
            "controller_id": NODE_ID,
            "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_authorized_operations": NO_OPERATIONS,
            "endpoint_type": 1,
        }
    )
