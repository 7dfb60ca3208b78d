"""Settings of topics and of the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs,
ListConfigResources.

A value comes from the first of these that has one, and `synonyms` lists all that do:

    topic     the topic's own  >  the broker's default for topics  >  the built-in default
    broker    what it was started with  >  the built-in default

The broker also tells the ports of its other doors, `grpc.port` and `http.port`: those that are
open, whatever was asked for, and -1 where none is. A client finds such a door on the host that it
reached.

Only topics can be changed while the broker runs. AlterConfigs, the older way, replaces everything
that was set by what it brings; IncrementalAlterConfigs sets, takes back (`DELETE`), or adds to and
takes from a list (`APPEND`, `SUBTRACT`). Each resource stands for itself: all of its changes happen
or none, and the others do not notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from strandlog.broker.catalog import Topic
from strandlog.config.broker_settings import BROKER_SETTINGS, BrokerSettings
from strandlog.config.server_settings import SERVER_SETTINGS
from strandlog.config.setting import MAX_INT, Setting, Value
from strandlog.config.topic_settings import TOPIC_SETTINGS
from strandlog.errors import InvalidSettingError, StrandlogError
from strandlog.server.kafka.door import NODE_ID, KafkaDoor
from strandlog.server.kafka.refusals import InvalidRequestError, UnsupportedVersionError
from strandlog.server.kafka.request import Request
from strandlog.storage.steps import Steps, breathe

RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_LOGGER, CLIENT_METRICS, RESOURCE_GROUP = 2, 4, 8, 16, 32
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
CONFIG_TYPES = {"bool": 1, "text": 2, "choice": 2, "float": 6, "list": 7}
INT_TYPE, LONG_TYPE = 3, 5
DOOR_SETTINGS = ("grpc.port", "http.port")
SHUT = -1

Changes = dict[str, object | None]  # None takes a setting back to its default
Layer = tuple[str, Value, int]  # the name that a value was given under, the value, its source


# -- describe ------------------------------------------------------------------------------------


def describe_configs(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    results = []
    once = {(row.resource_type, row.resource_name): row for row in body.resources}
    for resource in once.values():
        keys = resource.configuration_keys
        answer = _answer(resource)
        try:
            rows = _resource_rows(door, resource.resource_type, resource.resource_name)
            configs = [row for row in rows if not keys or row["name"] in keys]  # none are all
            if not body.include_synonyms:
                configs = [{**row, "synonyms": ()} for row in configs]
            if not getattr(body, "include_documentation", False):
                configs = [{**row, "documentation": None} for row in configs]
            answer["configs"] = configs
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error), "configs": []}
        results.append(answer)
    request.reply({"results": results})


def _answer(resource: Any) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": 0,
        "error_message": None,
    }


def _resource_rows(door: KafkaDoor, kind: int, name: str) -> list[dict[str, Any]]:
    settings = door.broker.settings
    if kind == RESOURCE_TOPIC:
        return topic_rows(door.broker.catalog.topic_asked_for(name), settings)
    if kind == RESOURCE_BROKER and name in ("", str(NODE_ID)):
        rows = [(row, _layers(row, settings, row.name)) for row in BROKER_SETTINGS]
        rows += [_door_layers(door, name) for name in DOOR_SETTINGS]
        return [_row(row, layers, read_only=True) for row, layers in rows]
    raise _no_such_resource(kind, name)


def _no_such_resource(kind: int, name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"resource {name!r} of type {kind} has no settings here: "
        f"topics (type {RESOURCE_TOPIC}) and broker {NODE_ID} (type {RESOURCE_BROKER}) have"
    )


def topic_rows(topic: Topic, settings: BrokerSettings) -> list[dict[str, Any]]:
    """Every setting of a topic, as DescribeConfigs and CreateTopics give it."""
    return [_described(row, topic, settings) for row in TOPIC_SETTINGS]


def _layers(row: Setting, settings: BrokerSettings, name: str) -> list[Layer]:
    """Where a broker's setting has values, the one that counts first."""
    given = settings.given.get(name)
    default = (name, row.default, SOURCE_DEFAULT)
    return [default] if given is None else [(name, given, SOURCE_STATIC_BROKER), default]


def _door_layers(door: KafkaDoor, name: str) -> tuple[Setting, list[Layer]]:
    """The setting of a door beside this one, with the port that it really has."""
    row = SERVER_SETTINGS[name]
    port = door.core.side_ports.get(name, SHUT)
    default: Layer = (name, row.default, SOURCE_DEFAULT)
    return row, [default] if port == row.default else [(name, port, SOURCE_STATIC_BROKER), default]


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
        "config_type": CONFIG_TYPES.get(row.kind) or _integer_type(row),
        "documentation": row.help,
    }


def _integer_type(row: Setting) -> int:
    return LONG_TYPE if row.maximum is None or row.maximum > MAX_INT else INT_TYPE


def list_config_resources(door: KafkaDoor, request: Request) -> None:
    """What DescribeConfigs can be asked about."""
    body = request.body()
    wanted = set(getattr(body, "resource_types", (CLIENT_METRICS,)))  # v0 is about those alone
    known = {RESOURCE_TOPIC, RESOURCE_BROKER, CLIENT_METRICS, RESOURCE_LOGGER, RESOURCE_GROUP}
    if not wanted <= known:
        request.reply({"error_code": UnsupportedVersionError.kafka_code})
        return
    found = [(RESOURCE_TOPIC, name) for name in door.broker.catalog.names()]
    found.append((RESOURCE_BROKER, str(NODE_ID)))
    rows = [
        {"resource_type": kind, "resource_name": name}
        for kind, name in found
        if not wanted or kind in wanted
    ]
    request.reply({"config_resources": rows})


# -- alter ---------------------------------------------------------------------------------------


def alter_configs(door: KafkaDoor, request: Request) -> None:
    _alter(door, request, _replacement)


def incremental_alter_configs(door: KafkaDoor, request: Request) -> None:
    _alter(door, request, _increments)


ChangesOf = Callable[[Topic, Any, BrokerSettings], Changes]


def _alter(door: KafkaDoor, request: Request, changes_of: ChangesOf) -> None:
    # In turn with all that changes topics: one that is growing is written down as it was before.
    altering = _altering(door, request.body(), changes_of)
    door.in_steps(request, altering, lambda rows: request.reply({"responses": rows}))


def _altering(door: KafkaDoor, body: Any, changes_of: ChangesOf) -> Steps[list[dict[str, Any]]]:
    times = Counter((row.resource_type, row.resource_name) for row in body.resources)
    rows = []
    for resource in body.resources:
        yield breathe
        answer = _answer(resource)
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("a request names each resource once")
            _check_rows(resource)
            topic = _alterable(door, resource)
            changes = changes_of(topic, resource, door.broker.settings)
            TOPIC_SETTINGS.parse({name: v for name, v in changes.items() if v is not None})
            if not body.validate_only:
                door.broker.catalog.alter(topic.name, changes)
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error)}
        rows.append(answer)
    return rows


def _check_rows(resource: Any) -> None:
    twice = [name for name, n in Counter(row.name for row in resource.configs).items() if n > 1]
    if twice:
        raise InvalidRequestError(f"{twice[0]!r} is given more than once")


def _alterable(door: KafkaDoor, resource: Any) -> Topic:
    if resource.resource_type == RESOURCE_TOPIC:
        return door.broker.catalog.topic_asked_for(resource.resource_name)
    if resource.resource_type == RESOURCE_BROKER:
        for row in resource.configs:
            if row.name not in DOOR_SETTINGS:
                BROKER_SETTINGS[row.name]  # an unknown name is the better news
            raise InvalidSettingError(
                row.name, row.value, "the broker reads it when it starts; set it there"
            )
        raise InvalidRequestError("settings of the broker are set when it starts")
    raise _no_such_resource(resource.resource_type, resource.resource_name)


def _replacement(topic: Topic, resource: Any, settings: BrokerSettings) -> Changes:
    del settings
    changes: Changes = dict.fromkeys(topic.config)
    for row in resource.configs:
        changes[TOPIC_SETTINGS[row.name].name] = row.value  # null is the default, as not given
    return changes


def _increments(topic: Topic, resource: Any, settings: BrokerSettings) -> Changes:
    # To take back what there is not is done already. Tools that copy a topic do that with whatever
    # has its default at the source, known here or not.
    return {
        row.name: _changed(topic, row, settings)
        for row in resource.configs
        if row.config_operation != DELETE or row.name in TOPIC_SETTINGS
    }


def _changed(topic: Topic, row: Any, settings: BrokerSettings) -> object | None:
    setting = TOPIC_SETTINGS[row.name]
    if row.config_operation == DELETE:
        return None
    if row.value is None:
        raise InvalidRequestError(f"a value is needed for {row.name!r}; DELETE takes it back")
    if row.config_operation == SET:
        return str(row.value)
    if row.config_operation not in (APPEND, SUBTRACT):
        raise InvalidRequestError(f"operation {row.config_operation} does not exist")
    default = settings.topic_defaults.get(row.name, setting.default)
    current = topic.config.get(row.name, default)
    if not isinstance(current, tuple):
        raise InvalidSettingError(row.name, row.value, "only lists can be added to")
    given = tuple(part.strip() for part in row.value.split(",") if part.strip())
    if row.config_operation == APPEND:
        return current + tuple(part for part in given if part not in current)
    return tuple(part for part in current if part not in given)
