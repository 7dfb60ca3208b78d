"""Lists, creates, describes, alters and deletes topics, and adds partitions to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.broker.access.permission import DESCRIBE, DESCRIBE_CONFIGS, TOPIC
from strandlog.broker.context import RequestContext
from strandlog.broker.topics.lake_tables import TableState
from strandlog.broker.topics.topic import PartitionState, Topic
from strandlog.config.setting import Setting
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import GroupNotFoundError
from strandlog.model import is_internal_group
from strandlog.server.background import as_future
from strandlog.server.http.api.session import operation_names
from strandlog.server.http.metrics.rates import TopicRate
from strandlog.server.http.metrics.snapshot import (
    PARTITIONS_AT_ONCE,
    partition_snapshots,
    topic_lag,
    topic_partitions,
)
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Scalar = bool | int | float | str
# Only for the OpenAPI document: the broker validates names itself, with better messages.
Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[a-zA-Z0-9._-]{1,249}$"})]
SETTING_NAMES = Meta(
    extra_json_schema={"propertyNames": {"enum": [row.name for row in TOPIC_SETTINGS]}}
)


class TopicSummary(Struct):
    """The size, the main settings and the rates of a topic. Rates are null until two snapshots
    include the topic."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    segments: int
    size_bytes: int
    offsets: int
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int
    produced_bytes_per_second: float | None
    produced_records_per_second: float | None


class TopicList(Struct):
    """Topics, ordered by name."""

    topics: list[TopicSummary]


class Partition(Struct):
    """A partition. Consumers can read up to `end_offset`, or up to `last_stable_offset` with
    read_committed; the log itself ends at `log_end_offset`."""

    partition: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    log_end_offset: int
    segments: int
    size_bytes: int
    failure: str | None


class TopicSetting(Struct):
    """A topic setting and the origin of its value; `default` applies unless the topic sets it."""

    name: str
    value: str
    default: str
    origin: Literal["topic", "broker", "default"]
    kind: str
    allowed: str
    help: str


class TopicTable(Struct):
    """The lake table of a topic (`table.format`). `version` and `rows` are null unless the last
    sync succeeded; `error` is empty unless it failed. `lag` is the number of offsets, up to the
    high watermarks, that are not in the table; `open_transaction_lag` is the part of that number
    that waits for open transactions to end. `checked_ms_ago` is the time since the last sync; it is
    null until the first sync since the broker started."""

    format: str
    folder: str
    version: int | None
    rows: int | None
    lag: int
    open_transaction_lag: int
    checked_ms_ago: int | None
    error: str


class TopicReader(Struct):
    """A group with committed offsets in a topic, and its lag in this topic."""

    group: str
    state: str
    members: int
    lag: int


class TopicDescription(Struct):
    """A topic with its partitions, its settings, the groups with committed offsets in it, the
    operations that the client may perform on it, and its lake table, if it has one. `readers` lists
    the groups with their lag, `groups` only their names. Settings and groups that the client may
    not describe are left out."""

    summary: TopicSummary
    partitions: list[Partition]
    config: list[TopicSetting]
    groups: list[str]
    operations: list[str]
    table: TopicTable | None
    readers: list[TopicReader]


class TopicsQuery(Struct, forbid_unknown_fields=True):
    """Which topics to list. Internal topics are omitted unless `internal` is true."""

    internal: bool = False


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to create."""

    name: Name
    partitions: Count | None = None
    config: Annotated[dict[str, Scalar], SETTING_NAMES] = {}


class TopicChanges(Struct, forbid_unknown_fields=True):
    """Settings to change; null resets a setting to its default."""

    config: Annotated[dict[str, Scalar | None], SETTING_NAMES]


class NewPartitions(Struct, forbid_unknown_fields=True):
    """The new number of partitions."""

    partitions: Count


async def list_topics(state: HttpState, request: ApiRequest[TopicsQuery, None]) -> TopicList:
    broker, context = state.broker, request.context
    await as_future(broker.make_visible(context))
    by_topic: dict[str, list[PartitionState]] = defaultdict(list)
    for each in await partition_snapshots(broker, context):
        by_topic[each.topic].append(each)
    rates = state.rates.topics()
    shown = []
    for number, (name, partitions) in enumerate(by_topic.items(), 1):
        if not number % PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
        if broker.has_topic(context, name):
            topic = broker.topic(context, name)
            if request.query.internal or not topic.is_internal:
                shown.append(_summary(topic, partitions, rates.get(name)))
    return TopicList(shown)


def _summary(
    topic: Topic, partitions: list[PartitionState], rate: TopicRate | None
) -> TopicSummary:
    settings = topic.settings
    return TopicSummary(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        topic.partitions,
        sum(each.segments for each in partitions),
        sum(each.size_bytes for each in partitions),
        sum(each.high_watermark - each.start_offset for each in partitions),
        ",".join(settings.cleanup_policy),
        settings.retention_ms,
        settings.retention_bytes,
        None if rate is None else rate.produced_bytes_per_second,
        None if rate is None else rate.produced_records_per_second,
    )


async def describe_topic(state: HttpState, request: ApiRequest[Nothing, None]) -> TopicDescription:
    return await _described(state, request.context, request.path["topic"])


async def _described(state: HttpState, context: RequestContext, name: str) -> TopicDescription:
    broker = state.broker
    topic = broker.topic(context, name)
    partitions = [(name, number) for number in range(topic.partitions)]
    await as_future(broker.make_visible(context, partitions))
    states = await topic_partitions(broker, context, name)
    summary = _summary(topic, states, state.rates.topics().get(name))
    readers = []
    for each in broker.groups_with_offsets(context, name):
        if is_internal_group(each.group_id):
            continue
        lag = await topic_lag(broker, context, each.group_id, states)
        with contextlib.suppress(GroupNotFoundError):  # the group was deleted
            members = broker.member_count(context, each.group_id)
            readers.append(TopicReader(each.group_id, each.state, members, lag))
    groups = [each.group for each in readers]
    config = []
    if broker.has_access(context, DESCRIBE_CONFIGS.on(TOPIC), name):
        config = [_setting(row, topic, broker.settings) for row in TOPIC_SETTINGS]
    operations = operation_names(broker, context, TOPIC, name)
    partition_rows = [_partition(each) for each in states]
    table = _table(broker.table_state(context, name))
    return TopicDescription(summary, partition_rows, config, groups, operations, table, readers)


def _table(state: TableState | None) -> TopicTable | None:
    if state is None:
        return None
    wanted, report = state.wanted, state.report
    is_known = report is not None and not report.error
    return TopicTable(
        wanted.format,
        wanted.folder,
        report.version if report is not None and is_known else None,
        report.rows if report is not None and is_known else None,
        state.lag,
        state.open_transaction_lag,
        None if report is None else state.age_ms,
        "" if report is None else report.error,
    )


def _partition(state: PartitionState) -> Partition:
    return Partition(
        state.partition,
        state.start_offset,
        state.high_watermark,
        state.last_stable_offset,
        state.end_offset,
        state.segments,
        state.size_bytes,
        None if state.failure is None else str(state.failure),
    )


def _setting(row: Setting, topic: Topic, settings: BrokerSettings) -> TopicSetting:
    own, brokers = topic.config.get(row.name), settings.explicit.get(row.broker_name)
    default = row.default if brokers is None else brokers
    origin: Literal["topic", "broker", "default"] = "default" if brokers is None else "broker"
    return TopicSetting(
        row.name,
        row.format(default if own is None else own),
        row.format(default),
        origin if own is None else "topic",
        row.kind,
        row.allowed(),
        row.help,
    )


async def create_topic(
    state: HttpState, request: ApiRequest[Nothing, NewTopic]
) -> TopicDescription:
    new, context = request.body, request.context
    state.broker.check_access(context, DESCRIBE.on(TOPIC), new.name)  # the response describes it
    await as_future(state.broker.create_topic(context, new.name, new.partitions, new.config))
    return await _described(state, context, new.name)


async def alter_topic(
    state: HttpState, request: ApiRequest[Nothing, TopicChanges]
) -> TopicDescription:
    name, context = request.path["topic"], request.context
    state.broker.check_access(context, DESCRIBE.on(TOPIC), name)  # the response describes it
    await as_future(state.broker.alter_topic(context, name, request.body.config))
    return await _described(state, context, name)


async def add_partitions(
    state: HttpState, request: ApiRequest[Nothing, NewPartitions]
) -> TopicDescription:
    name, context = request.path["topic"], request.context
    await as_future(state.broker.add_partitions(context, name, request.body.partitions))
    return await _described(state, context, name)


async def delete_topic(state: HttpState, request: ApiRequest[Nothing, None]) -> None:
    await as_future(state.broker.delete_topic(request.context, request.path["topic"]))
