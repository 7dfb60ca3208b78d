"""`/metrics` in the Prometheus and OpenMetrics text formats.

The snapshot is taken in the event loop, in slices, and formatted in a thread, one scrape at a time:
formatting thousands of partitions takes a tenth of a second. The Accept header selects the format.
The metrics of the process (memory, descriptors, CPU) come from prometheus-client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.utils import floatToGoString
from starlette.requests import Request
from starlette.responses import Response

from strandlog.broker.access.permission import CLUSTER, DESCRIBE
from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.metrics import LIMITS_SECONDS, Metric, table
from strandlog.server.http.health import disk_space
from strandlog.server.http.metrics.families import FAMILIES, Family, Snapshot
from strandlog.server.http.metrics.snapshot import (
    group_snapshots,
    partition_snapshots,
    table_snapshots,
)
from strandlog.server.http.routing import context_of

if TYPE_CHECKING:
    from strandlog.server.http.state import HttpState

BUCKETS = [*map(floatToGoString, LIMITS_SECONDS), "+Inf"]


class Exposition:
    """The metrics endpoint of one broker."""

    def __init__(self, state: HttpState) -> None:
        self._state = state
        self._turn = asyncio.Lock()
        self._process = ProcessCollector(registry=CollectorRegistry())

    async def metrics(self, request: Request) -> Response:
        """Respond to a scrape with the metrics of the broker, its topics and its groups."""
        broker = self._state.broker
        if broker.settings.metrics_authentication != "none":
            broker.check_access(context_of(request), DESCRIBE.on(CLUSTER))
        bodies = self._state.bodies
        room = await bodies.room()
        try:
            async with self._turn:
                snapshot = await take_snapshot(self._state, RequestContext(OWNER))
                accepted = request.headers.get("accept", "")
                body, kind = await asyncio.to_thread(self._text, snapshot, accepted)
        except BaseException:
            room.release()
            raise
        return bodies.answer(room, body, 200, kind)

    def _text(self, snapshot: Snapshot, accepted: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accepted)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(snapshot))
        registry.register(self._process)
        return encode(registry), kind


async def take_snapshot(state: HttpState, context: RequestContext) -> Snapshot:
    """Take a snapshot of all state that is exported as metrics."""
    broker, options = state.broker, state.options
    return Snapshot(
        state.metrics().snapshot(),
        state.version,
        options.kafka_address,
        broker.cluster_id,
        await partition_snapshots(broker, context),
        await group_snapshots(broker, context),
        *await disk_space(state),
        broker.segment_cache(),
        broker.failed_group_writes,
        state.live_clients,
        await table_snapshots(broker, context),
    )


class _Collected:
    """A prometheus-client collector for a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[MetricFamily]:
        for row in table():
            yield _counted(row, self._snapshot.figures[row.name])
        for family in FAMILIES:
            yield _family(family, self._snapshot)


def _counted(row: Metric, figure: Any) -> MetricFamily:
    """Return the metric family for a row of the broker's metrics table."""
    if row.kind == "histogram":
        labels = [row.label] if row.label else []
        histogram = HistogramMetricFamily(row.exported_name, row.help, labels=labels)
        each = figure.items() if row.label else [(None, figure)]
        for label, values in each:
            sums = itertools.accumulate(values["counts"])
            buckets = list(zip(BUCKETS, sums, strict=True))
            histogram.add_metric([label] if label else [], buckets, values["sum_seconds"])
        return histogram
    plain = MetricFamily(row.exported_name.removesuffix("_total"), row.help, row.kind)
    plain.add_sample(row.exported_name, {}, figure)
    return plain


def _family(family: Family, snapshot: Snapshot) -> MetricFamily:
    made = MetricFamily(family.name.removesuffix("_total"), family.help, family.kind)
    for labels, value in family.samples(snapshot):
        made.add_sample(family.name, dict(zip(family.labels, labels, strict=True)), value)
    return made
