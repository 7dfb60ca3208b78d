"""Groups: sinks that share one streaming query, so that their source is read and parsed once.

    source ─▶ micro-batch, kept in memory or on disk ─▶ view ─▶ target
                                                    ├▶ view ─▶ target
                                                    └▶ dead letters

The query streams the source; for each micro-batch, foreachBatch evaluates the views on its rows and
writes the targets one after another. Except for the console and for topics with
deliveryGuarantee=at_least_once, a target skips a repeated micro-batch that it already has
(targets/target.py), so it gets each row exactly once, even if the process dies between two targets.

The views see one micro-batch, not the stream. Operators that keep state between micro-batches would
give different results, so a group accepts only views without state (stream_checks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from strandlog.spark.pipeline.frames import SourceFrames, dead_letters, topic_rows
from strandlog.spark.pipeline.lineage import dead_letter_group, group_sources, view_tables
from strandlog.spark.pipeline.model import Pipeline, SinkGroup, SinkTable
from strandlog.spark.pipeline.stream_checks import check_stateless, check_streaming
from strandlog.spark.pipeline.targets.target import Target, TopicTarget, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Part(NamedTuple):
    """A target of a group, and a function that derives its rows from a micro-batch."""

    name: str
    target: Target
    view: str | None  # None means the micro-batch itself
    rows: Callable[[DataFrame], DataFrame]


class GroupQuery:
    """The query of one group."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, group: SinkGroup) -> None:
        """Raise an error if a view has state. The session must have the pipeline's views."""
        self._pipeline = pipeline
        self._group = group
        [self._source] = group_sources(pipeline, group)
        self._has_dead_letters = dead_letter_group(pipeline, self._source) == group
        self._frames = SourceFrames(spark, pipeline, self._source)
        self._parts: list[_Part] = []
        if self._has_dead_letters:
            letters = TopicTarget(pipeline, str(self._source.dead_letter), {})
            self._parts.append(
                _Part(f"{self._source.name}-dead-letter", letters, None, dead_letters)
            )
        for sink in group.sinks:
            rows = _rows_for(sink)
            check_stateless(spark.table(sink.view), sink.name)
            check_streaming(rows(spark.table(sink.view)), sink.mode)
            self._parts.append(_Part(sink.name, target_of(pipeline, sink), sink.view, rows))

    def stream(self) -> DataFrame:
        """Return the stream that the query reads."""
        return self._frames.whole() if self._has_dead_letters else self._frames.rows()

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None:
        """Write one micro-batch to all targets."""
        batch.persist()
        try:
            self._create_views(batch)
            for part in self._parts:
                frame = batch if part.view is None else batch.sparkSession.table(part.view)
                part.target.write(part.rows(frame), f"{app_id}-{part.name}", batch_id)
        finally:
            batch.unpersist()

    def _create_views(self, batch: DataFrame) -> None:
        """Replace the group's views in the query's session with views of a micro-batch."""
        spark = batch.sparkSession
        rows = self._frames.parsed(batch) if self._has_dead_letters else batch
        rows.createOrReplaceTempView(self._source.name)
        needed = self._needed_names()
        for source in self._pipeline.sources:
            if source.is_static and source.name in needed:
                # Create a new DataFrame, because Spark plans the reads of a DataFrame only once.
                table = SourceFrames(spark, self._pipeline, source).rows()
                table.createOrReplaceTempView(source.name)
        for view in self._pipeline.views:
            if view.name in needed:
                spark.sql(view.sql).createOrReplaceTempView(view.name)

    def _needed_names(self) -> set[str]:
        """Return the names of the views and sources that the group's sinks depend on."""
        tables = view_tables(self._pipeline)
        found = {sink.view for sink in self._group.sinks}
        for view in reversed(self._pipeline.views):  # a view refers only to preceding ones
            if view.name in found:
                found |= tables[view.name]
        return found


def _rows_for(sink: SinkTable) -> Callable[[DataFrame], DataFrame]:
    if sink.kind == "topic":
        return lambda frame: topic_rows(frame, sink)
    return lambda frame: frame
