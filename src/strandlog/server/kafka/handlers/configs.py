"""Handlers for DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

The value of a setting comes from the first of these layers that sets it; `synonyms`, if requested,
lists all layers that do:

    topic     the topic  >  the broker's default for topics, from any layer of the broker
    broker    this node  >  all nodes  >  the startup configuration  >  the built-in default
    group     the built-in default

For the broker, the result also includes the listener settings and the data folder, with the values
in effect: `listeners`, `advertised.listeners` (only the listener that the client uses), `log.dirs`,
`node.id`, `broker.id`, `http.listener` and `grpc.listener` (empty if not open) with their ports (-1
if not open). Clients use `http.listener` to find the console and the HTTP API: a wildcard host
stands for the address that the client connected to; a loopback host is only reachable over
loopback.

For a topic with a lake table, the result also includes the read-only entry `table.path`, the folder
of the table.

Topic settings and the dynamic settings of the broker can be changed at runtime: resource "0" is
this node, resource "" the default for all nodes. AlterConfigs, the older API, replaces all values
that were set; IncrementalAlterConfigs sets or removes values (`SET`, `DELETE`), or changes lists
(`APPEND`, `SUBTRACT`). The changes to each resource are atomic. Settings of groups, listeners, TLS
and logins cannot be changed, nor can secrets; the value of a secret is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from strandlog.broker.access.permission import (
    ALTER_CONFIGS,
    CLUSTER,
    DESCRIBE_CONFIGS,
    GROUP,
    TOPIC,
    Operation,
)
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred, gather
from strandlog.broker.runtime import Work, yield_control
from strandlog.broker.topics.dynamic_settings import AT_START_UP, DynamicSettings
from strandlog.broker.topics.dynamic_settings import Layer as DynamicLayer
from strandlog.broker.topics.topic import Topic
from strandlog.config.limits.kafka import MAX_RESOURCE_SETTINGS
from strandlog.config.setting import MAX_INT, START_UP_ONLY, Setting, SettingTable, Value
from strandlog.config.tables.broker import BROKER_SETTINGS
from strandlog.config.tables.groups import GROUP_SETTINGS
from strandlog.config.tables.server import SERVER_SETTINGS
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import (
    ClusterAuthorizationError,
    InvalidRequestError,
    InvalidSettingError,
    StrandlogError,
    TooManyChangesError,
    TooManySettingsError,
    UnsupportedVersionError,
)
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.server.kafka.api import NODE_ID, kafka_api
from strandlog.server.kafka.request import Request

RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_LOGGER, CLIENT_METRICS, RESOURCE_GROUP = 2, 4, 8, 16, 32
SOURCE_TOPIC, SOURCE_STATIC_BROKER, SOURCE_DEFAULT = 1, 4, 5
SOURCES: dict[DynamicLayer, int] = {"node": 2, "cluster": 3}
RESOURCE_LAYERS: dict[str, DynamicLayer] = {str(NODE_ID): "node", "": "cluster"}
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
CONFIG_TYPES = {"bool": 1, "text": 2, "choice": 2, "float": 6, "list": 7}
INT_TYPE, LONG_TYPE, PASSWORD_TYPE = 3, 5, 9
NODE_ROWS = [
    Setting(name=name, kind="int", default=NODE_ID, dynamic=False, help="The id of the only node.")
    for name in ("node.id", "broker.id")
]
TABLE_PATH = Setting(
    name="table.path",
    kind="text",
    default="",
    dynamic=False,
    help="Folder of the topic's lake table, below table.dir of the broker.",
)

Changes = dict[str, object | None]  # None removes the value that was set
Layer = tuple[str, Value, int]  # the setting's name in that layer, its value and its source


# -- describe ------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_CONFIGS,
    versions=(1, 4),
    requires=[
        (DESCRIBE_CONFIGS.on(TOPIC), DESCRIBE_CONFIGS.on(GROUP), DESCRIBE_CONFIGS.on(CLUSTER))
    ],
    summary=(
        "Returns every setting of topics, the broker and groups: value, source, synonyms and "
        "documentation."
    ),
    notes=(
        "The permission depends on the resource. `grpc.listener` and `http.listener` of the broker "
        "contain the open port; they are empty for a listener that is not open."
    ),
)
def describe_configs(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    encode = array_encoder(api.DESCRIBE_CONFIGS.key, request.version, "results", "configs")
    results = []
    once = {(row.resource_type, row.resource_name): row for row in body.resources}
    for resource in once.values():
        yield yield_control
        keys = set(resource.configuration_keys or ())
        answer = _answer(resource)
        try:
            rows = _resource_rows(broker, request, resource)
            configs = [row for row in rows if not keys or row["name"] in keys]  # no keys: all rows
            if not body.include_synonyms:
                configs = [{**row, "synonyms": ()} for row in configs]
            if not getattr(body, "include_documentation", False):
                configs = [{**row, "documentation": None} for row in configs]
            answer["configs"] = encode(configs)  # saves memory when there are thousands of topics
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error), "configs": []}
        results.append(answer)
    yield from request.replying({"results": results})


def _answer(resource: Any) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": 0,
        "error_message": None,
    }


def _resource_rows(broker: Broker, request: Request, resource: Any) -> list[dict[str, Any]]:
    kind, name = resource.resource_type, resource.resource_name
    dynamic = broker.dynamic_settings
    _check_access(broker, request, DESCRIBE_CONFIGS, resource)
    if kind == RESOURCE_TOPIC:
        topic = broker.topic(request.context, name, DESCRIBE_CONFIGS.on(TOPIC))
        return topic_rows(topic, dynamic) + _table_rows(broker, name)
    if kind == RESOURCE_BROKER and name in RESOURCE_LAYERS:
        rows = [(row, _layers(row, dynamic, row.name)) for row in BROKER_SETTINGS]
        rows += _listener_layers(request)
        rows += [(row, [(row.name, row.default, SOURCE_DEFAULT)]) for row in NODE_ROWS]
        return [_row(row, layers, read_only=not row.is_dynamic) for row, layers in rows]
    if kind == RESOURCE_GROUP and name:
        defaults = [(row, [(row.name, row.default, SOURCE_DEFAULT)]) for row in GROUP_SETTINGS]
        return [_row(row, layers, read_only=True) for row, layers in defaults]
    raise _no_such_resource(kind, name)


def _check_access(broker: Broker, request: Request, operation: Operation, resource: Any) -> None:
    """Raise an error unless the client may perform an operation on the settings of a resource. The
    settings of everything but topics and groups belong to the cluster."""
    kinds = {RESOURCE_TOPIC: TOPIC, RESOURCE_GROUP: GROUP}
    kind = kinds.get(resource.resource_type, CLUSTER)
    broker.check_access(request.context, operation.on(kind), resource.resource_name)


def _no_such_resource(kind: int, name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"resource {name!r} of type {kind} has no settings; only topics (type {RESOURCE_TOPIC}), "
        f"broker {NODE_ID} (type {RESOURCE_BROKER}) and groups (type {RESOURCE_GROUP}) do"
    )


def _table_rows(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """Return the folder of the topic's lake table, if it has one."""
    wanted = broker.wanted_tables().get(topic)
    if wanted is None:
        return []
    layers: list[Layer] = [(TABLE_PATH.name, wanted.folder, SOURCE_STATIC_BROKER)]
    return [_row(TABLE_PATH, layers, read_only=True)]


def topic_rows(topic: Topic, dynamic: DynamicSettings) -> list[dict[str, Any]]:
    """Return an entry for every setting of a topic, for DescribeConfigs and CreateTopics."""
    return [_described(row, topic, dynamic) for row in TOPIC_SETTINGS]


def _layers(row: Setting, dynamic: DynamicSettings, name: str) -> list[Layer]:
    """Return every layer that sets a broker setting, highest precedence first; the built-in
    default is the last."""
    found: list[Layer] = [
        (name, values[name], SOURCES[layer])
        for layer, values in dynamic.layers.items()
        if name in values
    ]
    static = dynamic.static_value(name)
    if static is not None:
        found.append((name, static, SOURCE_STATIC_BROKER))
    return [*found, (name, row.default, SOURCE_DEFAULT)]


def _listener_layers(request: Request) -> list[tuple[Setting, list[Layer]]]:
    """Return the layers of the listener and data folder settings, with the values in effect."""
    advertised = f"{request.listener.label}://{request.advertised}"
    actual = {"advertised.listeners": advertised, **request.listener_settings}
    found = []
    for name, value in actual.items():
        row = SERVER_SETTINGS[name]
        default: Layer = (name, row.default, SOURCE_DEFAULT)
        is_default = value == row.default
        layers = [default] if is_default else [(name, value, SOURCE_STATIC_BROKER), default]
        found.append((row, layers))
    return found


def _described(row: Setting, topic: Topic, dynamic: DynamicSettings) -> dict[str, Any]:
    layers = _layers(row, dynamic, row.broker_name or row.name)
    own = topic.config.get(row.name)
    if own is not None:
        layers.insert(0, (row.name, own, SOURCE_TOPIC))
    return _row(row, layers, read_only=False)


def _row(row: Setting, layers: list[Layer], *, read_only: bool) -> dict[str, Any]:
    _, value, source = layers[0]
    return {
        "name": row.name,
        "value": None if row.is_secret else row.format(value),
        "read_only": read_only,
        "is_default": source == SOURCE_DEFAULT,
        "config_source": source,
        "is_sensitive": row.is_secret,
        "synonyms": [
            {"name": name, "value": None if row.is_secret else row.format(each), "source": origin}
            for name, each, origin in layers
        ],
        "config_type": _type_of(row),
        "documentation": row.help,
    }


def _type_of(row: Setting) -> int:
    if row.is_secret:
        return PASSWORD_TYPE
    if row.kind in CONFIG_TYPES:
        return CONFIG_TYPES[row.kind]
    return LONG_TYPE if row.maximum is None or row.maximum > MAX_INT else INT_TYPE


@kafka_api(
    api.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    requires=[DESCRIBE_CONFIGS.on(CLUSTER)],
    summary="Lists the topics and the broker, whose settings DescribeConfigs returns.",
)
def list_config_resources(broker: Broker, request: Request) -> Work[None]:
    """List the topics and the broker, but not the groups."""
    body = yield from request.reading()
    needs = DESCRIBE_CONFIGS.on(CLUSTER)
    if not broker.has_access(request.context, needs):
        request.reply({"error_code": ClusterAuthorizationError.kafka_code})
        return
    wanted = set(getattr(body, "resource_types", (CLIENT_METRICS,)))  # the default in v0
    known = {RESOURCE_TOPIC, RESOURCE_BROKER, CLIENT_METRICS, RESOURCE_LOGGER, RESOURCE_GROUP}
    if not wanted <= known:
        request.reply({"error_code": UnsupportedVersionError.kafka_code})
        return
    rows: list[dict[str, Any]] = []
    if not wanted or RESOURCE_TOPIC in wanted:
        for name in broker.topic_names(request.context, needs):
            rows.append({"resource_type": RESOURCE_TOPIC, "resource_name": name})
            yield yield_control
    if not wanted or RESOURCE_BROKER in wanted:
        rows.append({"resource_type": RESOURCE_BROKER, "resource_name": str(NODE_ID)})
    yield from request.replying({"config_resources": rows})


# -- alter ---------------------------------------------------------------------------------------


@kafka_api(
    api.ALTER_CONFIGS,
    versions=(0, 2),
    requires=[(ALTER_CONFIGS.on(TOPIC), ALTER_CONFIGS.on(CLUSTER))],
    summary="Replaces all settings of a topic, or all dynamic settings of the broker.",
    notes=(
        "The permission depends on the resource. Resource `0` is this broker; the empty name "
        "is the default for all brokers."
    ),
)
def alter_configs(broker: Broker, request: Request) -> Work[None]:
    return _alter(broker, request, _replacement)


@kafka_api(
    api.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    requires=[(ALTER_CONFIGS.on(TOPIC), ALTER_CONFIGS.on(CLUSTER))],
    summary="Sets or removes settings of a topic or the broker, and extends or shortens lists.",
    notes="The resources and permissions are those of AlterConfigs.",
)
def incremental_alter_configs(broker: Broker, request: Request) -> Work[None]:
    return _alter(broker, request, _increments)


# Computes the changes to a resource from its current state and the request.
ChangesOf = Callable[["Alterable", Any], Changes]


class Alterable(NamedTuple):
    """A resource that can be changed."""

    table: SettingTable
    given: Mapping[str, Value]  # the values set on this resource itself
    current: Callable[[str], Value]  # the list that APPEND and SUBTRACT change
    check: Callable[[Changes], object]
    change: Callable[[Changes], Deferred[Any]]


def _alter(broker: Broker, request: Request, changes_of: ChangesOf) -> Work[None]:
    body = yield from request.reading()
    times = Counter((row.resource_type, row.resource_name) for row in body.resources)
    limit = broker.settings.max_topic_changes_per_request
    rows: list[dict[str, Any]] = []
    results: list[Deferred[Any]] = []
    for resource in body.resources:
        yield yield_control
        answer = _answer(resource)
        result: Deferred[Any] = Deferred.done(None)
        try:
            if len(rows) >= limit:
                raise TooManyChangesError(limit)
            if times[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("a request may name each resource only once")
            _check_access(broker, request, ALTER_CONFIGS, resource)
            _check_rows(resource)
            alterable = _alterable(broker, request, resource)
            changes = changes_of(alterable, resource)
            alterable.check(changes)
            if not body.validate_only:
                result = alterable.change(changes)
        except StrandlogError as error:
            answer |= {"error_code": error.kafka_code, "error_message": str(error)}
        rows.append(answer)
        results.append(result)
    request.when_done(
        gather(results),
        lambda _: request.in_slices(_reply_altered(request, rows, results)),
        in_line=True,
    )


def _reply_altered(
    request: Request, rows: list[dict[str, Any]], results: list[Deferred[Any]]
) -> Work[None]:
    for row, result in zip(rows, results, strict=True):
        if isinstance(error := result.error, StrandlogError):
            row |= {"error_code": error.kafka_code, "error_message": str(error)}
        else:
            result.result()  # raises an unexpected error, which closes the connection
        yield yield_control
    yield from request.replying({"responses": rows})


def _check_rows(resource: Any) -> None:
    if len(resource.configs) > MAX_RESOURCE_SETTINGS:
        raise TooManySettingsError(len(resource.configs), MAX_RESOURCE_SETTINGS)
    twice = [name for name, n in Counter(row.name for row in resource.configs).items() if n > 1]
    if twice:
        raise InvalidRequestError(f"{twice[0]!r} is given more than once")


def _alterable(broker: Broker, request: Request, resource: Any) -> Alterable:
    kind, name = resource.resource_type, resource.resource_name
    context = request.context
    if kind == RESOURCE_TOPIC:
        topic = broker.topic(context, name, ALTER_CONFIGS.on(TOPIC))
        defaults = broker.settings.topic_defaults

        def current(setting: str) -> Value:
            default = defaults.get(setting, TOPIC_SETTINGS[setting].default)
            return topic.config.get(setting, default)

        def check(changes: Changes) -> None:
            TOPIC_SETTINGS.parse({each: v for each, v in changes.items() if v is not None})

        change = partial(broker.alter_topic, context, name)
        return Alterable(TOPIC_SETTINGS, topic.config, current, check, change)
    if kind == RESOURCE_BROKER and name in RESOURCE_LAYERS:
        for row in resource.configs:
            if row.name in SERVER_SETTINGS or row.name.startswith(START_UP_ONLY):
                raise InvalidSettingError(row.name, row.value, AT_START_UP)
        layer, dynamic = RESOURCE_LAYERS[name], broker.dynamic_settings
        return Alterable(
            BROKER_SETTINGS,
            dynamic.layers[layer],
            partial(dynamic.value_below, layer),
            partial(dynamic.with_changes, layer),
            partial(broker.alter_broker_settings, context, layer),
        )
    raise _no_such_resource(kind, name)


def _replacement(alterable: Alterable, resource: Any) -> Changes:
    changes: Changes = dict.fromkeys(alterable.given)
    for row in resource.configs:
        changes[alterable.table[row.name].name] = row.value  # null means the default
    return changes


def _increments(alterable: Alterable, resource: Any) -> Changes:
    # Removing a value that is not set succeeds. Tools that copy a topic do this for every setting
    # that has its default value at the source, even for settings that are unknown here.
    return {
        row.name: _changed(alterable, row)
        for row in resource.configs
        if row.config_operation != DELETE or row.name in alterable.table
    }


def _changed(alterable: Alterable, row: Any) -> object | None:
    alterable.table[row.name]  # an unknown name is reported before other errors
    if row.config_operation == DELETE:
        return None
    if row.value is None:
        raise InvalidRequestError(f"{row.name!r} requires a value; use DELETE to reset it")
    if row.config_operation == SET:
        return str(row.value)
    if row.config_operation not in (APPEND, SUBTRACT):
        raise InvalidRequestError(f"unknown operation {row.config_operation}")
    current = alterable.current(row.name)
    if not isinstance(current, tuple):
        raise InvalidSettingError(row.name, row.value, "APPEND and SUBTRACT apply only to lists")
    given = tuple(part.strip() for part in row.value.split(",") if part.strip())
    if row.config_operation == APPEND:
        return current + tuple(part for part in given if part not in current)
    return tuple(part for part in current if part not in given)
