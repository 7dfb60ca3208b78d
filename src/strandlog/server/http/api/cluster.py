"""The cluster and its one broker over HTTP: size, disk, requests, stalls, problems, settings."""

from __future__ import annotations

from msgspec import Struct

from strandlog.broker.metrics import Histogram, table
from strandlog.config.origin import DEFAULT, DYNAMIC, Origin, OriginKind
from strandlog.config.resolve import all_rows
from strandlog.config.setting import Setting, Value
from strandlog.config.tables.broker import BROKER_SETTINGS
from strandlog.server.http.health import disk_space, readiness
from strandlog.server.http.metrics.families import NODE_ID
from strandlog.server.http.metrics.rates import BrokerRates
from strandlog.server.http.metrics.snapshot import partition_facts
from strandlog.server.http.routing import Call, Nothing
from strandlog.server.http.state import Context

MOST_PROBLEMS = 200


class ClusterFacts(Struct):
    """What a glance at the broker shows. Rates are null until it has been looked at twice."""

    cluster_id: str
    node_id: int
    version: str
    kafka_address: str
    data: str
    started_ms: int
    now_ms: int
    topics: int
    partitions: int
    segments: int
    groups: int
    size_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    is_ready: bool
    reasons: list[str]
    rates: BrokerRates | None


class Times(Struct):
    """How often something happened and how long it took; the shares are upper bounds."""

    count: int
    mean_seconds: float
    half_below_seconds: float
    most_below_seconds: float  # 99 %
    max_seconds: float


class ApiTimes(Struct):
    """The requests of one of Kafka's APIs, or one call of ours."""

    api: str
    times: Times


class BrokerFacts(Struct):
    """How the broker is doing since it started: every figure that it counts, and what is wrong."""

    figures: dict[str, int]
    times: dict[str, Times]
    requests: list[ApiTimes]
    http_calls: list[ApiTimes]
    problems: list[str]


class SettingShown(Struct):
    """A setting, its value, and where that was given: a file and line, a variable, an option."""

    name: str
    value: str
    default: str
    origin: OriginKind
    where: str
    kind: str
    allowed: str
    help: str


class SettingList(Struct):
    """Settings of the broker, by where they stand in the reference."""

    settings: list[SettingShown]


async def cluster(context: Context, call: Call[Nothing, None]) -> ClusterFacts:
    del call
    broker, options = context.broker, context.options
    partitions = await partition_facts(broker)
    ready = await readiness(context)
    return ClusterFacts(
        broker.log_dir.cluster_id,
        NODE_ID,
        context.version,
        options.kafka_address,
        options.data,
        context.began_ms,
        context.core.clock.now_ms(),
        len({each.topic for each in partitions}),
        len(partitions),
        sum(each.segments for each in partitions),
        len(broker.group_coordinator.list_groups()),
        sum(each.size_bytes for each in partitions),
        *await disk_space(context),
        ready.is_ready,
        ready.reasons,
        context.rates.broker(),
    )


async def describe_broker(context: Context, call: Call[Nothing, None]) -> BrokerFacts:
    del call
    metrics = context.core.up_to_date_metrics()
    figures: dict[str, int] = {}
    times: dict[str, Times] = {}
    for row in table():
        value = getattr(metrics, row.name)
        if isinstance(value, Histogram):
            times[row.name] = _times(value)
        elif not isinstance(value, dict):
            figures[row.name] = value
    return BrokerFacts(
        figures,
        times,
        _by_name(metrics.request_seconds),
        _by_name(metrics.http_seconds),
        context.broker.problems[:MOST_PROBLEMS],
    )


def _by_name(found: dict[str, Histogram]) -> list[ApiTimes]:
    return [ApiTimes(name, _times(each)) for name, each in sorted(found.items())]


def _times(found: Histogram) -> Times:
    count = found.count
    return Times(
        count,
        found.sum_seconds / count if count else 0.0,
        found.quantile(0.5),
        found.quantile(0.99),
        found.max_seconds,
    )


async def broker_settings(context: Context, call: Call[Nothing, None]) -> SettingList:
    del call
    return SettingList([_setting(row, *_chosen(context, row)) for row in all_rows()])


def _chosen(context: Context, row: Setting) -> tuple[Value, Origin]:
    for values in context.broker.catalog.dynamic.layers.values():
        if row.name in values:
            return values[row.name], DYNAMIC
    chosen = context.options.chosen.get(row.name)
    if chosen is not None:
        return chosen.value, chosen.origin
    if row.name in BROKER_SETTINGS:
        return context.broker.settings.value_of(row.name), DEFAULT
    return row.default, DEFAULT


def _setting(row: Setting, value: Value, origin: Origin) -> SettingShown:
    return SettingShown(
        row.name,
        row.format(value),
        row.format(row.default),
        origin.kind,
        "" if origin.kind == "default" else str(origin),
        row.kind,
        row.allowed(),
        row.help,
    )
