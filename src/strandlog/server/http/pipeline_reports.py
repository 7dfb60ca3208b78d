"""Keeps the recent progress reports of Spark pipelines in memory.

A pipeline reports its progress or, if there is none, that it is still alive, even while it waits
for its next scheduled run. A pipeline that is running or scheduled but has not reported for
`SILENT_AFTER_MS` is listed as silent: it was killed, or it cannot reach the broker. The last
reports of each query are kept in memory; a pipeline is removed `FORGOTTEN_AFTER_MS` after its last
report.

Reports need not come from Spark, so everything is bounded: the number of pipelines, queries and
points, and the length of strings. When the limit on pipelines is reached, a new one replaces the
one that has not reported for the longest time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.clock import Clock
from strandlog.config.limits.http import (
    HTTP_MAX_PIPELINES,
    HTTP_PIPELINE_ERROR_CHARACTERS,
    HTTP_PIPELINE_MAX_POINTS,
    HTTP_PIPELINE_MAX_QUERIES,
    HTTP_PIPELINE_NAME_CHARACTERS,
    HTTP_PIPELINE_URL_CHARACTERS,
    HTTP_PIPELINE_WATERMARK_CHARACTERS,
)

SILENT_AFTER_MS = 30_000
FORGOTTEN_AFTER_MS = 10 * 60_000

Name = Annotated[str, Meta(min_length=1, max_length=HTTP_PIPELINE_NAME_CHARACTERS)]
ErrorText = Annotated[str, Meta(max_length=HTTP_PIPELINE_ERROR_CHARACTERS)]
Figure = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Address = Annotated[
    str, Meta(max_length=HTTP_PIPELINE_URL_CHARACTERS, pattern="^https?://[^\\s]+$")
]
Watermark = Annotated[str, Meta(max_length=HTTP_PIPELINE_WATERMARK_CHARACTERS)]
State = Literal["running", "scheduled", "stopped", "failed"]
PipelineState = Literal["running", "scheduled", "silent", "stopped", "failed"]


class QueryProgress(Struct, forbid_unknown_fields=True):
    """One query and its last micro-batch.

    `late_rows` is the number of rows behind the watermark that Spark has dropped since the query
    started.
    """

    name: Name
    batch_id: Figure = 0
    rows: Figure = 0
    rows_per_second: Rate = 0.0
    batch_ms: Figure = 0
    lag: Figure | None = None
    state_rows: Figure = 0
    late_rows: Figure = 0
    watermark: Watermark | None = None


class PipelineProgress(Struct, forbid_unknown_fields=True):
    """A progress report.

    `ui_url` is the address of the Spark UI. A scheduled pipeline waits until `next_run_ms`.
    """

    queries: Annotated[list[QueryProgress], Meta(max_length=HTTP_PIPELINE_MAX_QUERIES)] = []
    state: State = "running"
    error: ErrorText | None = None
    ui_url: Address | None = None
    next_run_ms: Figure | None = None


class ProgressPoint(Struct):
    """One report of a query, as a data point for charts."""

    timestamp_ms: int
    rows_per_second: float
    batch_ms: int
    lag: int | None


class QueryStatus(Struct):
    """A query: its last report, and the recent ones as points, oldest first."""

    last: QueryProgress
    points: list[ProgressPoint]


class PipelineStatus(Struct):
    """A pipeline and its queries."""

    name: str
    state: PipelineState
    error: str | None
    ui_url: str | None
    next_run_ms: int | None
    first_seen_ms: int
    last_seen_ms: int
    queries: list[QueryStatus]


@dataclass(slots=True)
class _Query:
    last: QueryProgress
    points: deque[ProgressPoint] = field(
        default_factory=lambda: deque(maxlen=HTTP_PIPELINE_MAX_POINTS)
    )


@dataclass(slots=True)
class _Pipeline:
    first_seen_ms: int
    last_seen_ms: int
    last: PipelineProgress
    queries: dict[str, _Query] = field(default_factory=dict)


class PipelineReports:
    """The recent reports of all pipelines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pipelines: dict[str, _Pipeline] = {}

    def report(self, name: str, progress: PipelineProgress) -> None:
        """Store a report."""
        now_ms = self._clock.now_ms()
        self._forget_old(now_ms)
        found = self._pipelines.pop(name, None)
        if found is None:
            if len(self._pipelines) == HTTP_MAX_PIPELINES:
                del self._pipelines[next(iter(self._pipelines))]
            found = _Pipeline(now_ms, now_ms, progress)
        self._pipelines[name] = found  # keeps the pipelines ordered by their last report
        found.last_seen_ms, found.last = now_ms, progress
        for each in progress.queries:
            query = found.queries.pop(each.name, None) or _Query(each)
            if len(found.queries) == HTTP_PIPELINE_MAX_QUERIES:
                del found.queries[next(iter(found.queries))]
            found.queries[each.name] = query
            query.last = each
            query.points.append(
                ProgressPoint(now_ms, each.rows_per_second, each.batch_ms, each.lag)
            )

    def _forget_old(self, now_ms: int) -> None:
        for name, pipeline in list(self._pipelines.items()):
            if now_ms - pipeline.last_seen_ms > FORGOTTEN_AFTER_MS:
                del self._pipelines[name]

    def all(self) -> list[PipelineStatus]:
        """Return all pipelines, without their data points."""
        self._forget_old(self._clock.now_ms())
        return [self._status(name, has_points=False) for name in sorted(self._pipelines)]

    def one(self, name: str) -> PipelineStatus | None:
        self._forget_old(self._clock.now_ms())
        return self._status(name, has_points=True) if name in self._pipelines else None

    def _status(self, name: str, *, has_points: bool) -> PipelineStatus:
        found = self._pipelines[name]
        state: PipelineState = found.last.state
        is_expected = state in ("running", "scheduled")
        if is_expected and self._clock.now_ms() - found.last_seen_ms > SILENT_AFTER_MS:
            state = "silent"
        return PipelineStatus(
            name,
            state,
            found.last.error,
            found.last.ui_url,
            found.last.next_run_ms,
            found.first_seen_ms,
            found.last_seen_ms,
            [
                QueryStatus(query.last, list(query.points) if has_points else [])
                for _, query in sorted(found.queries.items())
            ],
        )
