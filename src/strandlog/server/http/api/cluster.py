"""The cluster summary, broker status and settings."""

from __future__ import annotations

from msgspec import Struct

from strandlog.broker.metrics import Histogram, table
from strandlog.config.limits.http import HTTP_STATUS_MAX_PROBLEMS
from strandlog.config.origin import DEFAULT, DYNAMIC, Origin, OriginKind
from strandlog.config.resolve import all_rows
from strandlog.config.setting import Setting, Value
from strandlog.config.tables.broker import BROKER_SETTINGS
from strandlog.server.http.health import disk_space, readiness
from strandlog.server.http.metrics.families import NODE_ID
from strandlog.server.http.metrics.rates import BrokerRates
from strandlog.server.http.metrics.snapshot import partition_snapshots
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState


class Cluster(Struct):
    """A summary of the cluster. Rates are null until two snapshots have been taken."""

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
    problems: list[str]
    rates: BrokerRates | None


class Latency(Struct):
    """The number and duration of operations; the percentiles are upper bounds."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p99_seconds: float
    max_seconds: float


class ApiLatency(Struct):
    """The latency of one Kafka API, or of one operation of the HTTP API."""

    api: str
    latency: Latency


class BrokerStatus(Struct):
    """Counters and latencies since start-up, current values such as `connections_open` (also in
    `counters`), and problems."""

    counters: dict[str, int]
    latencies: dict[str, Latency]
    requests: list[ApiLatency]
    http_requests: list[ApiLatency]
    problems: list[str]


class BrokerSetting(Struct):
    """A setting, its value, and the origin of the value, such as a file and line."""

    name: str
    value: str
    default: str
    origin: OriginKind
    where: str
    kind: str
    allowed: str
    help: str


class SettingList(Struct):
    """The server settings, followed by the broker settings."""

    settings: list[BrokerSetting]


async def cluster(state: HttpState, request: ApiRequest[Nothing, None]) -> Cluster:
    broker, options = state.broker, state.options
    partitions = await partition_snapshots(broker, request.context)
    ready = await readiness(state, request.context)
    return Cluster(
        broker.cluster_id,
        NODE_ID,
        state.version,
        options.kafka_address,
        options.data,
        state.began_ms,
        broker.clock.now_ms(),
        len({each.topic for each in partitions}),
        len(partitions),
        sum(each.segments for each in partitions),
        len(broker.groups(request.context)),
        sum(each.size_bytes for each in partitions),
        *await disk_space(state),
        ready.is_ready,
        ready.reasons,
        broker.problems[:HTTP_STATUS_MAX_PROBLEMS],
        state.rates.broker(),
    )


async def describe_broker(state: HttpState, request: ApiRequest[Nothing, None]) -> BrokerStatus:
    del request
    metrics = state.metrics()
    counters: dict[str, int] = {}
    latencies: dict[str, Latency] = {}
    for row in table():
        value = getattr(metrics, row.name)
        if isinstance(value, Histogram):
            latencies[row.name] = _latency(value)
        elif not isinstance(value, dict):
            counters[row.name] = value
    return BrokerStatus(
        counters,
        latencies,
        _by_name(metrics.request_seconds),
        _by_name(metrics.http_seconds),
        state.broker.problems[:HTTP_STATUS_MAX_PROBLEMS],
    )


def _by_name(found: dict[str, Histogram]) -> list[ApiLatency]:
    return [ApiLatency(name, _latency(each)) for name, each in sorted(found.items())]


def _latency(found: Histogram) -> Latency:
    count = found.count
    return Latency(
        count,
        found.sum_seconds / count if count else 0.0,
        found.quantile(0.5),
        found.quantile(0.99),
        found.max_seconds,
    )


async def broker_settings(state: HttpState, request: ApiRequest[Nothing, None]) -> SettingList:
    del request
    return SettingList([_setting(row, *_chosen(state, row)) for row in all_rows()])


def _chosen(state: HttpState, row: Setting) -> tuple[Value, Origin]:
    for values in state.broker.dynamic_settings.layers.values():
        if row.name in values:
            return values[row.name], DYNAMIC
    chosen = state.options.chosen.get(row.name)
    if chosen is not None:
        return chosen.value, chosen.origin
    if row.name in BROKER_SETTINGS:
        return state.broker.settings.value_of(row.name), DEFAULT
    return row.default, DEFAULT


def _setting(row: Setting, value: Value, origin: Origin) -> BrokerSetting:
    return BrokerSetting(
        row.name,
        row.shown(value),
        row.shown(row.default),
        origin.kind,
        "" if origin.kind == "default" else str(origin),
        row.kind,
        row.allowed(),
        row.help,
    )
