"""Topics and their settings: Create- and DeleteTopics, CreatePartitions, Describe- and
IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandlog.broker.catalog import Topic
from strandlog.broker.topic_rules import check_partition_count, check_topic_name
from strandlog.config.broker_settings import BROKER_SETTINGS, BrokerSettings
from strandlog.config.setting import Setting, Value
from strandlog.config.topic_settings import TOPIC_SETTINGS
from strandlog.errors import (
    InvalidSettingError,
    StrandlogError,
    TopicExistsError,
)
from strandlog.server.kafka.door import NODE_ID, KafkaDoor
from strandlog.server.kafka.handlers.cluster import UNKNOWN_TOPIC_ID, topic_with_id
from strandlog.server.kafka.request import Request
from strandlog.storage.identity import uuid_of

INVALID_REPLICATION_FACTOR = 38
INVALID_REQUEST = 42
TOPIC_DELETION_DISABLED = 73
RESOURCE_TOPIC, RESOURCE_BROKER = 2, 4
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
CONFIG_TYPES = {"bool": 1, "text": 2, "choice": 2, "int": 3, "float": 6, "list": 7}
LONG_TYPE = 5


def _try(action: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
    """The outcome of one element of a request; an error of one does not touch the others."""
    try:
        return action()
    except StrandlogError as error:
        return {"name": name, "error_code": error.kafka_code, "error_message": str(error)}


def create_topics(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    results = [
        _try(lambda t=wanted: _create(door, t, body.validate_only), wanted.name)  # type: ignore[misc]
        for wanted in body.topics
    ]
    request.reply({"topics": results})


def _create(door: KafkaDoor, wanted: Any, validate_only: bool) -> dict[str, Any]:
    count = wanted.num_partitions
    if wanted.assignments:
        count = len(wanted.assignments)
    elif wanted.replication_factor not in (-1, 1):
        return {
            "name": wanted.name,
            "error_code": INVALID_REPLICATION_FACTOR,
            "error_message": "there is one node, so the replication factor is 1",
        }
    if count == -1:
        count = door.broker.settings.num_partitions
    config = {row.name: row.value for row in wanted.configs if row.value is not None}
    if validate_only:
        check_topic_name(wanted.name)
        if wanted.name in door.broker.catalog:
            raise TopicExistsError(wanted.name)
        check_partition_count(count, door.broker.settings.max_partitions_per_topic)
        TOPIC_SETTINGS.parse(config)
        return {"name": wanted.name, "num_partitions": count, "replication_factor": 1}
    topic = door.broker.create_topic(wanted.name, count, config)
    return {
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": [_described(row, topic, door.broker.settings) for row in TOPIC_SETTINGS],
    }


def delete_topics(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    wanted = getattr(body, "topics", None)
    if wanted is None:
        targets = [(name, None) for name in body.topic_names]
    else:
        targets = [(topic.name, topic.topic_id) for topic in wanted]
    request.reply({"responses": [_delete(door, name, topic_id) for name, topic_id in targets]})


def _delete(door: KafkaDoor, name: str | None, topic_id: Any) -> dict[str, Any]:
    if name is None:
        topic = topic_with_id(door, topic_id)
        if topic is None:
            return {"name": None, "topic_id": topic_id, "error_code": UNKNOWN_TOPIC_ID}
        name = topic.name

    if not door.broker.settings.delete_topic_enable:
        text = "topics cannot be deleted here: delete.topic.enable is false"
        return {"name": name, "error_code": TOPIC_DELETION_DISABLED, "error_message": text}

    def delete(name: str = name) -> dict[str, Any]:
        found = door.broker.catalog.topic(name)
        logs = list(door.broker.catalog.logs(name))
        door.broker.delete_topic(name)
        for log in logs:
            door.durability.forget(log)
            door.fetches.deleted(log)
        return {"name": name, "topic_id": uuid_of(found.topic_id), "error_code": 0}

    return _try(delete, name)


def create_partitions(door: KafkaDoor, request: Request) -> None:
    body = request.body()

    def grow(wanted: Any) -> dict[str, Any]:
        topic = door.broker.catalog.topic(wanted.name)
        if body.validate_only:
            check_partition_count(wanted.count, door.broker.settings.max_partitions_per_topic)
        else:
            door.broker.catalog.add_partitions(topic.name, wanted.count)
        return {"name": wanted.name, "error_code": 0, "error_message": None}

    results = [_try(lambda t=wanted: grow(t), wanted.name) for wanted in body.topics]  # type: ignore[misc]
    request.reply({"results": results})


# -- settings ------------------------------------------------------------------------------------


def describe_configs(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    results = []
    for resource in body.resources:
        keys = resource.configuration_keys
        answer: dict[str, Any] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": 0,
            "error_message": None,
        }
        try:
            rows = _resource_rows(door, resource.resource_type, resource.resource_name)
            answer["configs"] = [row for row in rows if keys is None or row["name"] in keys]
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error), "configs": []}
        results.append(answer)
    request.reply({"results": results})


def _resource_rows(door: KafkaDoor, kind: int, name: str) -> list[dict[str, Any]]:
    settings = door.broker.settings
    if kind == RESOURCE_TOPIC:
        topic = door.broker.catalog.topic(name)
        return [_described(row, topic, settings) for row in TOPIC_SETTINGS]
    if kind == RESOURCE_BROKER and name in ("", str(NODE_ID)):
        return [
            _row(row, _layers(row, settings, row.name), read_only=True) for row in BROKER_SETTINGS
        ]
    raise InvalidSettingError("resource", name, f"a topic, or broker {NODE_ID}")


Layer = tuple[str, Value, int]  # the name that a value was given under, the value, its source


def _layers(row: Setting, settings: BrokerSettings, name: str) -> list[Layer]:
    """Where a broker's setting has values, the one that counts first."""
    given = settings.given.get(name)
    default = (name, row.default, SOURCE_DEFAULT)
    return [default] if given is None else [(name, given, SOURCE_STATIC_BROKER), default]


def _described(row: Setting, topic: Topic, settings: BrokerSettings) -> dict[str, Any]:
    layers = _layers(row, settings, row.broker_name)
    own = topic.config.get(row.name)
    if own is not None:
        layers.insert(0, (row.name, own, SOURCE_TOPIC))
    return _row(row, layers, read_only=False)


def _row(row: Setting, layers: list[Layer], *, read_only: bool) -> dict[str, Any]:
    _, value, source = layers[0]
    return {
        "name": row.name,
        "value": row.format(value),
        "read_only": read_only,
        "is_default": source == SOURCE_DEFAULT,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [
            {"name": name, "value": row.format(each), "source": origin}
            for name, each, origin in layers
        ],
        "config_type": CONFIG_TYPES.get(row.kind, LONG_TYPE),
        "documentation": row.help,
    }


def incremental_alter_configs(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    responses = []
    for resource in body.resources:
        answer: dict[str, Any] = {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "error_code": 0,
            "error_message": None,
        }
        try:
            _alter(door, resource, validate_only=body.validate_only)
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error)}
        responses.append(answer)
    request.reply({"responses": responses})


def _alter(door: KafkaDoor, resource: Any, *, validate_only: bool) -> None:
    if resource.resource_type != RESOURCE_TOPIC:
        raise InvalidSettingError(
            "resource", resource.resource_name, "settings of topics can be changed while running"
        )
    topic = door.broker.catalog.topic(resource.resource_name)
    changes: dict[str, object | None] = {}
    for row in resource.configs:
        changes[row.name] = _changed(topic, row, door.broker.settings)
    for name, value in changes.items():
        if value is not None:
            TOPIC_SETTINGS[name].parse(value)
    if not validate_only:
        door.broker.catalog.alter(topic.name, changes)


def _changed(topic: Topic, row: Any, settings: BrokerSettings) -> object | None:
    if row.config_operation == SET:
        return row.value if row.value is not None else ""
    if row.config_operation == DELETE:
        return None
    setting = TOPIC_SETTINGS[row.name]
    default = settings.topic_defaults.get(row.name, setting.default)
    current = topic.config.get(row.name, default)
    if not isinstance(current, tuple):
        raise InvalidSettingError(row.name, row.value, "only lists can be added to")
    given = tuple(part.strip() for part in (row.value or "").split(",") if part.strip())
    if row.config_operation == APPEND:
        return current + tuple(part for part in given if part not in current)
    return tuple(part for part in current if part not in given)
