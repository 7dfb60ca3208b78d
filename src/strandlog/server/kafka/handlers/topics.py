"""Handlers for CreateTopics, CreatePartitions, DeleteTopics and DeleteRecords.

Each topic of a request is handled separately: an error for one does not affect the others. A topic
that a request names twice fails, because one result cannot describe two changes; in DeleteRecords,
the last entry for a partition counts. The connection starts no other request until the changes are
complete.

There is only one node. The replication factor must be 1, or -1 for the broker's default; a manual
assignment must name node 0 for each new partition. In CreateTopics, it must also number the
partitions, from 0 without gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from strandlog.broker.access.permission import (
    ALTER,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    TOPIC,
    Requirement,
)
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred, gather
from strandlog.broker.runtime import Work, yield_control
from strandlog.broker.topics.topic import Topic, check_partition_count, forbid_internal
from strandlog.config.limits.kafka import MAX_RESOURCE_SETTINGS
from strandlog.config.units import counted
from strandlog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSettingError,
    StrandlogError,
    TooManyChangesError,
    TooManySettingsError,
    TopicAuthorizationError,
    TopicNotFoundError,
)
from strandlog.errors import ThrottlingQuotaExceededError as QuotaError
from strandlog.model import TopicPartition
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.server.kafka.api import NODE_ID, kafka_api
from strandlog.server.kafka.handlers.configs import topic_rows
from strandlog.server.kafka.request import Request, asked_once

BROKER_DEFAULT = -1
DELETE_TOPIC = (DELETE.on(CLUSTER), DELETE.on(TOPIC))
SEE_TO_DELETE = (DELETE.on(CLUSTER), DESCRIBE.on(TOPIC))
SETTINGS_FROM = 5  # from this version on, CreateTopics returns the settings of the topic

# From these versions on, changes that exceed a quota are rejected. In older versions they take
# effect, and the client is throttled.
REFUSED_FROM = {api.CREATE_TOPICS.key: 6, api.CREATE_PARTITIONS.key: 3, api.DELETE_TOPICS.key: 5}

Row = dict[str, Any]


class Change(NamedTuple):
    """An ongoing change to one topic."""

    row: Row  # the fields that identify the topic in the response
    result: Deferred[Any]
    fields: Callable[[Any], Row]  # returns the other fields, given the result


def _change_each(
    wanted: Iterable[Any], limit: int, change: Callable[[Any], Change | Row]
) -> Work[list[Change | Row]]:
    """Start the change to each topic, in the order of the request."""
    wanted = list(wanted)
    times = Counter(topic.name for topic in wanted)
    rows: list[Change | Row] = []
    for name, topic in {topic.name: topic for topic in wanted}.items():
        yield yield_control
        try:
            if len(rows) >= limit:
                raise TooManyChangesError(limit)
            if times[name] > 1:
                raise InvalidRequestError(f"topic {name!r} is named {times[name]} times")
            rows.append(change(topic))
        except StrandlogError as error:
            rows.append({"name": name, **_error_fields(error)})
    return rows


def _reply_when_done(
    broker: Broker, request: Request, field: str, rows: list[Change | Row]
) -> None:
    """Reply with one row per topic when all changes are complete."""
    changes = [row.result for row in rows if isinstance(row, Change)]

    def reply(_: object) -> None:
        if request.meter is not None:
            request.meter.add(_throttle_ms(broker, request, changes))
        request.in_slices(_reply(request, field, rows))

    request.when_done(gather(changes), reply, in_line=True)


def _throttle_ms(broker: Broker, request: Request, changes: Sequence[Deferred[Any]]) -> int:
    """Return how many milliseconds the client must pause because changes were rejected or, in a
    version that does not reject them, because they exceeded the quota."""
    if request.version < REFUSED_FROM[request.header.api_key]:
        return broker.mutation_delay_ms(request.context)
    errors = [change.error for change in changes]
    delays = [each.retry_after_ms for each in errors if isinstance(each, QuotaError)]
    return max(delays, default=0)


def _reply(request: Request, field: str, rows: list[Change | Row]) -> Work[None]:
    finished: list[Row] = []
    for row in rows:
        if isinstance(row, Change):
            error = row.result.error
            known = isinstance(error, StrandlogError)
            more = _error_fields(error) if known else row.fields(row.result.result())
            finished.append({**row.row, **more})
        else:
            finished.append(row)
        yield yield_control
    yield from request.replying({field: finished})


def _existing(broker: Broker, request: Request, name: str, needs: Requirement) -> Topic:
    """Return a topic by name; an invalid name is treated as an unknown topic."""
    broker.check_access(request.context, needs, name)
    if not broker.has_topic(request.context, name, needs):
        raise TopicNotFoundError(name)
    return broker.topic(request.context, name, needs)


def _error_fields(error: Any) -> Row:
    return {"error_code": error.kafka_code, "error_message": str(error)}


# -- create --------------------------------------------------------------------------------------


@kafka_api(
    api.CREATE_TOPICS,
    versions=(2, 7),
    requires=[(CREATE.on(CLUSTER), CREATE.on(TOPIC)), DESCRIBE_CONFIGS.on(TOPIC)],
    summary="Creates topics with settings; `validate_only` is a dry run.",
    notes=(
        "The replication factor must be 1 or -1, and manual assignments must name node 0. "
        "DESCRIBE_CONFIGS is required only for the settings in the response."
    ),
)
def create_topics(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    limit = broker.settings.max_topic_changes_per_request
    create = partial(_create, broker, request, validate_only=body.validate_only)
    rows = yield from _change_each(body.topics, limit, create)
    _reply_when_done(broker, request, "topics", rows)


def _create(broker: Broker, request: Request, wanted: Any, validate_only: bool) -> Change:
    context = request.context
    broker.check_access(context, (CREATE.on(CLUSTER), CREATE.on(TOPIC)), wanted.name)
    check_partition_count(len(wanted.assignments) or 1, broker.settings.max_partitions_per_topic)
    if len(wanted.configs) > MAX_RESOURCE_SETTINGS:
        raise TooManySettingsError(len(wanted.configs), MAX_RESOURCE_SETTINGS)
    count = _partition_count(wanted, broker.settings.num_partitions)
    config = {}
    for row in wanted.configs:
        if row.value is None:
            raise InvalidSettingError(row.name, None, "omit it to get the default")
        config[row.name] = row.value
    if validate_only:
        result = Deferred.done(broker.check_new_topic(context, wanted.name, count, config))
    else:
        refuse = request.version >= REFUSED_FROM[api.CREATE_TOPICS.key]
        result = broker.create_topic(context, wanted.name, count, config, refuse_over_quota=refuse)
    return Change({"name": wanted.name}, result, partial(_created, broker, request))


def _created(broker: Broker, request: Request, topic: Topic) -> Row:
    if not broker.has_access(request.context, DESCRIBE_CONFIGS.on(TOPIC), topic.name):
        return {
            "topic_id": topic.uuid if topic.topic_id else None,
            "error_code": 0,
            "error_message": None,
            "topic_config_error_code": TopicAuthorizationError.kafka_code,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": None,
        }
    return {
        "topic_id": topic.uuid if topic.topic_id else None,
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": _encoded_settings(broker, request.version, topic),
    }


def _encoded_settings(broker: Broker, version: int, topic: Topic) -> bytes | None:
    """Return all settings of a new topic, encoded to save memory when there are many topics; None
    in a version whose response contains no settings."""
    if version < SETTINGS_FROM:
        return None
    encode = array_encoder(api.CREATE_TOPICS.key, version, "topics", "configs")
    return encode(topic_rows(topic, broker.dynamic_settings))


def _partition_count(wanted: Any, default: int) -> int:
    count: int = wanted.num_partitions
    if wanted.assignments:
        if count != BROKER_DEFAULT or wanted.replication_factor != BROKER_DEFAULT:
            raise InvalidRequestError(
                "with a manual assignment, partitions and replication factor must be -1"
            )
        by_number = {row.partition_index: row.broker_ids for row in wanted.assignments}
        if by_number.keys() != set(range(len(wanted.assignments))):
            raise InvalidReplicaAssignmentError(
                "a manual assignment must list partitions 0, 1, 2 and so on, once each"
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
                f"a partition was assigned to nodes {list(nodes)}; there is only node {NODE_ID}"
            )


@kafka_api(
    api.CREATE_PARTITIONS,
    versions=(0, 3),
    requires=[ALTER.on(TOPIC)],
    summary="Adds partitions to topics; `validate_only` is a dry run.",
)
def create_partitions(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    limit = broker.settings.max_topic_changes_per_request
    grow = partial(_grow, broker, request, validate_only=body.validate_only)
    rows = yield from _change_each(body.topics, limit, grow)
    _reply_when_done(broker, request, "results", rows)


def _grow(broker: Broker, request: Request, wanted: Any, validate_only: bool) -> Change | Row:
    context = request.context
    topic = _existing(broker, request, wanted.name, ALTER.on(TOPIC))
    forbid_internal(topic.name)
    check_partition_count(wanted.count, broker.settings.max_partitions_per_topic)
    if wanted.count <= topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {counted(topic.partitions, 'partition')}; the number can "
            "only grow"
        )
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - topic.partitions:
            raise InvalidReplicaAssignmentError(
                f"the request adds {counted(wanted.count - topic.partitions, 'partition')}, "
                f"but assigns {len(wanted.assignments)}"
            )
        _check_nodes(row.broker_ids for row in wanted.assignments)
    fields: Row = {"error_code": 0, "error_message": None}
    if validate_only:
        return {"name": topic.name, **fields}
    refuse = request.version >= REFUSED_FROM[api.CREATE_PARTITIONS.key]
    result = broker.add_partitions(context, topic.name, wanted.count, refuse_over_quota=refuse)
    return Change({"name": topic.name}, result, lambda _: fields)


# -- delete --------------------------------------------------------------------------------------


@kafka_api(
    api.DELETE_TOPICS,
    versions=(1, 6),
    requires=[(DELETE.on(CLUSTER), DELETE.on(TOPIC))],
    summary="Deletes topics, by name or (from version 6) by id.",
)
def delete_topics(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    wanted = getattr(body, "topics", None)
    targets: list[tuple[str | None, UUID | None]] = (
        [(name, None) for name in body.topic_names]
        if wanted is None
        else [(topic.name, topic.topic_id) for topic in wanted]
    )
    times: Counter[str | None] = Counter()
    for target in targets:
        times[_target_name(broker, request, target)] += 1
        yield yield_control
    limit = broker.settings.max_topic_changes_per_request
    rows: list[Change | Row] = []
    for name, topic_id in dict.fromkeys(targets):
        yield yield_control
        row = {"name": name, "topic_id": topic_id}
        try:
            if len(rows) >= limit:
                raise TooManyChangesError(limit)
            rows.append(_delete(broker, request, name, topic_id, times))
        except StrandlogError as error:
            rows.append({**row, **_error_fields(error)})
    _reply_when_done(broker, request, "responses", rows)


def _target_name(
    broker: Broker, request: Request, target: tuple[str | None, UUID | None]
) -> str | None:
    name, topic_id = target
    if name is not None or topic_id is None:
        return name
    try:
        return broker.topic(request.context, topic_id, DELETE_TOPIC).name
    except StrandlogError:
        return None


def _existing_to_delete(broker: Broker, request: Request, name: str) -> Topic:
    """Return a topic that the client may delete. Kafka checks first whether the client may see it,
    then whether it exists."""
    broker.check_access(request.context, SEE_TO_DELETE, name)
    if broker.has_topic(request.context, name, SEE_TO_DELETE):
        broker.check_access(request.context, DELETE_TOPIC, name)
    return _existing(broker, request, name, SEE_TO_DELETE)


def _delete(
    broker: Broker,
    request: Request,
    name: str | None,
    topic_id: UUID | None,
    times: Counter[str | None],
) -> Change:
    if (name is None) == (topic_id is None):
        raise InvalidRequestError("give either the name or the id of the topic to delete")
    topic = (
        _existing_to_delete(broker, request, name or "")
        if topic_id is None
        else broker.topic(request.context, topic_id, DELETE_TOPIC)
    )
    if times[topic.name] > 1:
        reference = topic_id if name is None else name
        raise InvalidRequestError(f"topic {reference!r} is named {times[topic.name]} times")
    may_see = topic_id is None or broker.has_topic(request.context, topic.name)
    row: Row = {"name": topic.name if may_see else None, "topic_id": topic.uuid}
    refuse = request.version >= REFUSED_FROM[api.DELETE_TOPICS.key]
    result = broker.delete_topic(request.context, topic.name, refuse_over_quota=refuse)
    return Change(row, result, lambda _: {"error_code": 0})


@kafka_api(
    api.DELETE_RECORDS,
    versions=(0, 2),
    requires=[DELETE.on(TOPIC)],
    summary="Deletes the records before an offset.",
)
def delete_records(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics, lambda topic: topic.partitions, lambda part: int(part.partition_index)
    )
    offsets = {}
    for name, rows in asked.topics.items():
        for number, part in rows.items():
            offsets[TopicPartition(name, number)] = part.offset
            yield yield_control

    def reply(found: dict[TopicPartition, int | StrandlogError]) -> None:
        topics: dict[str, list[Row]] = {name: [] for name in asked.topics}
        for (name, number), result in found.items():
            failed = isinstance(result, StrandlogError)
            topics[name].append(
                {
                    "partition_index": number,
                    "low_watermark": -1 if failed else result,
                    "error_code": result.kafka_code if isinstance(result, StrandlogError) else 0,
                }
            )
        listed = [{"name": name, "partitions": rows} for name, rows in topics.items()]
        request.reply_in_slices({"topics": listed})

    request.when_done(broker.delete_records(request.context, offsets), reply, in_line=True)
