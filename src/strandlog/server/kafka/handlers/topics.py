"""Topics come, grow and go: CreateTopics, CreatePartitions, DeleteTopics.

Each topic of a request stands for itself: what is wrong with one does not touch the others. A topic
that a request names twice is refused as such, for one answer could not be true for both.

There is one node. A replication factor is 1, or -1 for "as the broker likes"; an assignment by hand
says node 0 for each partition, numbered from 0 (or from the first new one) without gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from strandlog.broker.topics.catalog import Topic
from strandlog.broker.topics.dynamic_settings import DynamicSettings
from strandlog.broker.topics.topic import (
    check_partition_count,
    check_topic_name,
    forbid_internal,
)
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSettingError,
    StrandlogError,
    TooManyChangesError,
    TooManySettingsError,
    TopicExistsError,
)
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.server.kafka.api import (
    ALTER,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE_CONFIGS,
    TOPIC,
    kafka_api,
)
from strandlog.server.kafka.handlers.configs import topic_rows
from strandlog.server.kafka.listener import NODE_ID, KafkaDoor
from strandlog.server.kafka.request import MAX_SETTINGS, Request
from strandlog.storage.folder.identity import uuid_of
from strandlog.storage.work import Work, yield_control

BROKER_DEFAULT = -1
SETTINGS_FROM = 5  # CreateTopics answers with the settings of the topic


def _one_row_each(
    wanted: Iterable[Any], limit: int, answer: Callable[[Any], Work[dict[str, Any]]]
) -> Work[list[dict[str, Any]]]:
    """The outcome for each name, in the order in which they are named first."""
    wanted = list(wanted)
    times = Counter(topic.name for topic in wanted)
    rows: list[dict[str, Any]] = []
    for name, topic in {topic.name: topic for topic in wanted}.items():
        yield yield_control
        try:
            if len(rows) >= limit:
                raise TooManyChangesError(limit)
            if times[name] > 1:
                raise InvalidRequestError(f"topic {name!r} is named {times[name]} times")
            rows.append((yield from answer(topic)))
        except StrandlogError as error:
            rows.append({"name": name, "error_code": error.kafka_code, "error_message": str(error)})
    return rows


# -- create --------------------------------------------------------------------------------------


@kafka_api(
    api.CREATE_TOPICS,
    versions=(2, 7),
    requires=[(CREATE.on(CLUSTER), CREATE.on(TOPIC)), DESCRIBE_CONFIGS.on(TOPIC)],
    summary="Creates topics with settings; `validate_only` is a dry run.",
    notes=(
        "Replication factor 1 or -1; manual assignments only to node 0. DESCRIBE_CONFIGS only"
        " for the settings in the response."
    ),
)
def create_topics(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    limit = door.broker.settings.max_topic_changes_per_request
    create = partial(_create, door, request.version, validate_only=body.validate_only)
    _reply_with(door, request, _one_row_each(body.topics, limit, create), "topics")


def _reply_with(
    door: KafkaDoor, request: Request, rows: Work[list[dict[str, Any]]], name: str
) -> None:
    """Do the work after all that was asked for before it, then reply with its rows."""
    door.in_steps(
        request, rows, lambda rows: door.in_slices(request, request.replying({name: rows}))
    )


def _create(
    door: KafkaDoor, version: int, wanted: Any, validate_only: bool
) -> Work[dict[str, Any]]:
    broker = door.broker
    check_partition_count(len(wanted.assignments) or 1, broker.settings.max_partitions_per_topic)
    if len(wanted.configs) > MAX_SETTINGS:
        raise TooManySettingsError(len(wanted.configs), MAX_SETTINGS)
    count = _partition_count(wanted, broker.settings.num_partitions)
    config = {}
    for row in wanted.configs:
        if row.value is None:
            raise InvalidSettingError(row.name, None, "leave it out to get the default")
        config[row.name] = row.value
    if validate_only:
        topic = _would_be(door, wanted.name, count, config)
    else:
        topic = yield from broker.topic_admin.create(wanted.name, count, config)
    return {
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id) if topic.topic_id else None,
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": _encoded_settings(version, topic, broker.catalog.dynamic),
    }


def _encoded_settings(version: int, topic: Topic, dynamic: DynamicSettings) -> bytes | None:
    """All settings of a new topic; encoded, those of thousands of topics take little memory."""
    if version < SETTINGS_FROM:
        return None
    return array_encoder(api.CREATE_TOPICS.key, version, "topics", "configs")(
        topic_rows(topic, dynamic)
    )


def _partition_count(wanted: Any, default: int) -> int:
    count: int = wanted.num_partitions
    if wanted.assignments:
        if count != BROKER_DEFAULT or wanted.replication_factor != BROKER_DEFAULT:
            raise InvalidRequestError(
                "with an assignment by hand, partitions and replication factor must be -1"
            )
        by_number = {row.partition_index: row.broker_ids for row in wanted.assignments}
        if by_number.keys() != set(range(len(wanted.assignments))):
            raise InvalidReplicaAssignmentError(
                "an assignment by hand names the partitions 0, 1, 2 and so on, each once"
            )
        _check_nodes(by_number.values())
        return len(by_number)
    if wanted.replication_factor not in (1, BROKER_DEFAULT):
        raise InvalidReplicationFactorError(wanted.replication_factor)
    return default if count == BROKER_DEFAULT else count


def _check_nodes(assigned: Iterable[Iterable[int]]) -> None:
    for nodes in assigned:
        if list(nodes) != [NODE_ID]:
            raise InvalidReplicaAssignmentError(
                f"a partition was assigned to nodes {list(nodes)}; there is node {NODE_ID} alone"
            )


def _would_be(door: KafkaDoor, name: str, count: int, config: dict[str, object]) -> Topic:
    """The topic that would be made; raises what would keep it from being made."""
    settings = door.broker.settings
    forbid_internal(check_topic_name(name))
    if name in door.broker.catalog:
        raise TopicExistsError(name)
    check_partition_count(count, settings.max_partitions_per_topic)
    parsed = TOPIC_SETTINGS.parse(config)
    return Topic(name, "", count, parsed, door.broker.catalog.effective_settings(parsed))


@kafka_api(
    api.CREATE_PARTITIONS,
    versions=(0, 3),
    requires=[ALTER.on(TOPIC)],
    summary="Adds partitions to topics; `validate_only` is a dry run.",
)
def create_partitions(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    limit = door.broker.settings.max_topic_changes_per_request
    grow = partial(_grow, door, validate_only=body.validate_only)
    _reply_with(door, request, _one_row_each(body.topics, limit, grow), "results")


def _grow(door: KafkaDoor, wanted: Any, validate_only: bool) -> Work[dict[str, Any]]:
    broker = door.broker
    topic = broker.catalog.topic(wanted.name)
    forbid_internal(topic.name)
    check_partition_count(wanted.count, broker.settings.max_partitions_per_topic)
    if wanted.count <= topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {topic.partitions} partitions; it can only grow"
        )
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - topic.partitions:
            raise InvalidReplicaAssignmentError(
                f"{wanted.count - topic.partitions} partitions are new, "
                f"{len(wanted.assignments)} are assigned"
            )
        _check_nodes(row.broker_ids for row in wanted.assignments)
    if not validate_only:
        yield from broker.topic_admin.add_partitions(topic.name, wanted.count)
    return {"name": topic.name, "error_code": 0, "error_message": None}


# -- delete --------------------------------------------------------------------------------------


@kafka_api(
    api.DELETE_TOPICS,
    versions=(1, 6),
    requires=[(DELETE.on(CLUSTER), DELETE.on(TOPIC))],
    summary="Deletes topics, by name or (from version 6) by id.",
)
def delete_topics(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    wanted = getattr(body, "topics", None)
    if wanted is None:
        targets: list[tuple[str | None, UUID | None]] = [(name, None) for name in body.topic_names]
    else:
        targets = [(topic.name, topic.topic_id) for topic in wanted]
    _reply_with(door, request, _delete_all(door, targets), "responses")


def _delete_all(
    door: KafkaDoor, targets: list[tuple[str | None, UUID | None]]
) -> Work[list[dict[str, Any]]]:
    times: Counter[str | None] = Counter()
    for target in targets:
        times[_target_name(door, target)] += 1
        yield yield_control
    limit = door.broker.settings.max_topic_changes_per_request
    rows: list[dict[str, Any]] = []
    for name, topic_id in dict.fromkeys(targets):
        yield yield_control
        row: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_code": 0}
        try:
            if len(rows) >= limit:
                raise TooManyChangesError(limit)
            row |= yield from _delete(door, name, topic_id, times)
        except StrandlogError as error:
            row |= {"error_code": error.kafka_code, "error_message": str(error)}
        rows.append(row)
    return rows


def _target_name(door: KafkaDoor, target: tuple[str | None, UUID | None]) -> str | None:
    name, topic_id = target
    if name is not None or topic_id is None:
        return name
    try:
        return door.broker.catalog.topic_with_id(topic_id).name
    except StrandlogError:
        return None


def _delete(
    door: KafkaDoor, name: str | None, topic_id: UUID | None, times: Counter[str | None]
) -> Work[dict[str, Any]]:
    if (name is None) == (topic_id is None):
        raise InvalidRequestError("a topic is deleted by its name or by its id: give one of them")
    catalog = door.broker.catalog
    topic = catalog.topic(name or "") if topic_id is None else catalog.topic_with_id(topic_id)
    if times[topic.name] > 1:
        raise InvalidRequestError(f"topic {topic.name!r} is named {times[topic.name]} times")
    yield from door.core.deleting_topic(topic.name)
    return {"name": topic.name, "topic_id": uuid_of(topic.topic_id)}
