"""Pipelines that report in: what Spark queries elsewhere say of themselves.

A pipeline sends its progress now and then, and a word when there is none. One that runs and was not
heard of for `WORRY_MS` is shown as silent: it was killed, or cannot reach us. The last reports of
each query are kept in memory, and nothing of a pipeline that was silent for `SILENCE_MS`.

Everything is bounded, for anybody may report: so many pipelines, queries and points, texts of so
many characters. When there is no room, the pipeline that was silent for longest makes some.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from strandlog.clock import Clock

MAX_PIPELINES = 64
MAX_QUERIES = 32
MAX_POINTS = 240
MAX_NAME_CHARACTERS = 200
WORRY_MS = 30_000
SILENCE_MS = 10 * 60_000

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Words = Annotated[str, Meta(max_length=2000)]
Figure = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Address = Annotated[str, Meta(max_length=500, pattern="^https?://[^\\s]+$")]
State = Literal["running", "stopped", "failed"]
ShownState = Literal["running", "silent", "stopped", "failed"]


class QueryProgress(Struct, forbid_unknown_fields=True):
    """How one query did in its last micro-batch."""

    name: Name
    batch_id: Figure = 0
    rows: Figure = 0
    rows_per_second: Rate = 0.0
    batch_ms: Figure = 0
    lag: Figure | None = None
    state_rows: Figure = 0
    late_rows: Figure = 0
    watermark: Annotated[str, Meta(max_length=100)] | None = None


class PipelineProgress(Struct, forbid_unknown_fields=True):
    """What a pipeline says of itself; `ui_url` leads to Spark's own pages."""

    queries: Annotated[list[QueryProgress], Meta(max_length=MAX_QUERIES)] = []
    state: State = "running"
    error: Words | None = None
    ui_url: Address | None = None


class ProgressPoint(Struct):
    """A query at some time."""

    timestamp_ms: int
    rows_per_second: float
    batch_ms: int
    lag: int | None


class QueryStatus(Struct):
    """A query: its last report, and the ones before as points, oldest first."""

    last: QueryProgress
    points: list[ProgressPoint]


class PipelineStatus(Struct):
    """A pipeline."""

    name: str
    state: ShownState
    error: str | None
    ui_url: str | None
    first_seen_ms: int
    last_seen_ms: int
    queries: list[QueryStatus]


@dataclass(slots=True)
class _Query:
    last: QueryProgress
    points: deque[ProgressPoint] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))


@dataclass(slots=True)
class _Pipeline:
    first_seen_ms: int
    last_seen_ms: int
    last: PipelineProgress
    queries: dict[str, _Query] = field(default_factory=dict)


class Pipelines:
    """All pipelines that reported lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pipelines: dict[str, _Pipeline] = {}

    def report(self, name: str, progress: PipelineProgress) -> None:
        """Take down what a pipeline says."""
        now_ms = self._clock.now_ms()
        self._forget_silent(now_ms)
        found = self._pipelines.pop(name, None)
        if found is None:
            if len(self._pipelines) == MAX_PIPELINES:
                del self._pipelines[next(iter(self._pipelines))]
            found = _Pipeline(now_ms, now_ms, progress)
        self._pipelines[name] = found  # last: those that were silent for longest come first
        found.last_seen_ms, found.last = now_ms, progress
        for each in progress.queries:
            query = found.queries.pop(each.name, None) or _Query(each)
            if len(found.queries) == MAX_QUERIES:
                del found.queries[next(iter(found.queries))]
            found.queries[each.name] = query
            query.last = each
            query.points.append(
                ProgressPoint(now_ms, each.rows_per_second, each.batch_ms, each.lag)
            )

    def _forget_silent(self, now_ms: int) -> None:
        for name, pipeline in list(self._pipelines.items()):
            if now_ms - pipeline.last_seen_ms > SILENCE_MS:
                del self._pipelines[name]

    def all(self) -> list[PipelineStatus]:
        """Every pipeline, without points."""
        self._forget_silent(self._clock.now_ms())
        return [self._shown(name, has_points=False) for name in sorted(self._pipelines)]

    def one(self, name: str) -> PipelineStatus | None:
        self._forget_silent(self._clock.now_ms())
        return self._shown(name, has_points=True) if name in self._pipelines else None

    def _shown(self, name: str, *, has_points: bool) -> PipelineStatus:
        found = self._pipelines[name]
        state: ShownState = found.last.state
        if state == "running" and self._clock.now_ms() - found.last_seen_ms > WORRY_MS:
            state = "silent"
        return PipelineStatus(
            name,
            state,
            found.last.error,
            found.last.ui_url,
            found.first_seen_ms,
            found.last_seen_ms,
            [
                QueryStatus(query.last, list(query.points) if has_points else [])
                for _, query in sorted(found.queries.items())
            ],
        )
