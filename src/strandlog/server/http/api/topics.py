"""Topics over HTTP: list, make, look at, change, let grow, delete."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.broker.topics.catalog import Topic
from strandlog.config.setting import Setting
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.server.awaiting import all_visible, done_in_steps, visible
from strandlog.server.http.metrics.rates import TopicRate
from strandlog.server.http.metrics.snapshot import (
    PARTITIONS_AT_ONCE,
    PartitionSnapshot,
    group_snapshots,
    partition_snapshot,
    partition_snapshots,
)
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Work, yield_control

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Scalar = bool | int | float | str
# Told in the document; the broker checks them itself, and its words are the better ones.
Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[a-zA-Z0-9._-]{1,249}$"})]
SETTING_NAMES = Meta(
    extra_json_schema={"propertyNames": {"enum": [row.name for row in TOPIC_SETTINGS]}}
)


class TopicSummary(Struct):
    """A topic in a list. Rates are null until the broker has been looked at twice."""

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
    """Topics by name."""

    topics: list[TopicSummary]


class Partition(Struct):
    """A partition. Readers see what is below `end_offset`, those of committed records what is below
    `last_stable_offset`; what is below `log_end_offset` is written."""

    partition: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    log_end_offset: int
    segments: int
    size_bytes: int
    failure: str | None


class TopicSetting(Struct):
    """A setting of a topic, and who gave it its value; `default` counts when the topic does not."""

    name: str
    value: str
    default: str
    origin: Literal["topic", "broker", "default"]
    kind: str
    allowed: str
    help: str


class TopicDescription(Struct):
    """A topic with its partitions, its settings, and the groups that have offsets in it."""

    summary: TopicSummary
    partitions: list[Partition]
    config: list[TopicSetting]
    groups: list[str]


class TopicsQuery(Struct, forbid_unknown_fields=True):
    """Which topics."""

    internal: bool = False


class NewTopic(Struct, forbid_unknown_fields=True):
    """A topic to be made."""

    name: Name
    partitions: Count | None = None
    config: Annotated[dict[str, Scalar], SETTING_NAMES] = {}


class TopicChanges(Struct, forbid_unknown_fields=True):
    """Settings to be changed; null takes one back to its default."""

    config: Annotated[dict[str, Scalar | None], SETTING_NAMES]


class NewPartitions(Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have."""

    partitions: Count


async def list_topics(state: HttpState, request: ApiRequest[TopicsQuery, None]) -> TopicList:
    await all_visible(state.core)
    by_topic: dict[str, list[PartitionSnapshot]] = defaultdict(list)
    for each in await partition_snapshots(state.broker):
        by_topic[each.topic].append(each)
    catalog, rates = state.broker.catalog, state.rates.topics()
    shown = []
    for name, partitions in by_topic.items():
        if name in catalog:
            topic = catalog.topic(name)
            if request.query.internal or not topic.is_internal:
                shown.append(_summary(topic, partitions, rates.get(name)))
    return TopicList(shown)


def _summary(
    topic: Topic, partitions: list[PartitionSnapshot], rate: TopicRate | None
) -> TopicSummary:
    settings = topic.settings
    return TopicSummary(
        topic.name,
        topic.topic_id,
        topic.is_internal,
        topic.partitions,
        sum(each.segments for each in partitions),
        sum(each.size_bytes for each in partitions),
        sum(each.end_offset - each.start_offset for each in partitions),
        ",".join(settings.cleanup_policy),
        settings.retention_ms,
        settings.retention_bytes,
        None if rate is None else rate.produced_bytes_per_second,
        None if rate is None else rate.produced_records_per_second,
    )


async def describe_topic(state: HttpState, request: ApiRequest[Nothing, None]) -> TopicDescription:
    return await _described(state, request.path["topic"])


async def _described(state: HttpState, name: str) -> TopicDescription:
    broker = state.broker
    await visible(state.core, broker.catalog.logs(name))
    topic, facts, shown = broker.catalog.topic(name), [], []
    for number, log in enumerate(list(broker.catalog.logs(name)), 1):
        facts.append(partition_snapshot(log))
        shown.append(_partition(log))
        if not number % PARTITIONS_AT_ONCE:
            await asyncio.sleep(0)
    summary = _summary(topic, facts, state.rates.topics().get(name))
    groups = [
        facts.group
        for facts in await group_snapshots(broker)
        if any(each.tp.topic == name for each in facts.offsets)
    ]
    config = [_setting(row, topic, broker.settings) for row in TOPIC_SETTINGS]
    return TopicDescription(summary, shown, config, groups)


def _partition(log: PartitionLog) -> Partition:
    return Partition(
        log.tp.partition,
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.log_end_offset,
        len(log.segments),
        log.segments.size_bytes,
        None if log.failure is None else str(log.failure),
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
    wanted = request.body
    steps = state.broker.topic_admin.create(wanted.name, wanted.partitions, wanted.config)
    await done_in_steps(state.core, "CreateTopic", steps)
    return await _described(state, wanted.name)


async def alter_topic(
    state: HttpState, request: ApiRequest[Nothing, TopicChanges]
) -> TopicDescription:
    name, changes = request.path["topic"], request.body.config

    def altering() -> Work[None]:
        yield yield_control  # in turn with all that changes topics
        state.broker.catalog.alter(name, changes)

    state.broker.catalog.topic(name)
    await done_in_steps(state.core, "AlterTopic", altering())
    return await _described(state, name)


async def add_partitions(
    state: HttpState, request: ApiRequest[Nothing, NewPartitions]
) -> TopicDescription:
    name = request.path["topic"]
    steps = state.broker.topic_admin.add_partitions(name, request.body.partitions)
    await done_in_steps(state.core, "AddPartitions", steps)
    return await _described(state, name)


async def delete_topic(state: HttpState, request: ApiRequest[Nothing, None]) -> None:
    steps = state.core.deleting_topic(request.path["topic"])
    await done_in_steps(state.core, "DeleteTopic", steps)
