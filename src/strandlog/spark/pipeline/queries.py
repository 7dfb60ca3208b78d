"""Builds views and streaming queries from a pipeline, and creates missing topics.

Each group of sinks (groups.py), each sink without a group, and each dead-letter topic that no group
writes has a streaming query with its own checkpoint, <checkpoint>/<pipeline>/<query>. frames.py
creates the DataFrames; targets/ writes them to topics and tables.

The topics of sinks and dead letters are created if they do not exist. Unless a sink sets a format,
the values of its topic are JSON, one object per row. Unless the sink of a topic sets
deliveryGuarantee=at_least_once, its micro-batches are identified by query id and batch id, so a
repeated micro-batch is written only once, in every output mode. docs/decisions/0015 explains why
this uses foreachBatch instead of the streaming sink.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock, pause
from strandlog.errors import PipelineError, TopicExistsError, TopicNotFoundError
from strandlog.spark.errors import checkpoint_mismatch, one_line
from strandlog.spark.monitoring.progress import QueryReport, report_of
from strandlog.spark.options import client_options
from strandlog.spark.pipeline.frames import SourceFrames, dead_letters, errors_of, topic_rows
from strandlog.spark.pipeline.groups import GroupQuery
from strandlog.spark.pipeline.lineage import dead_letter_group
from strandlog.spark.pipeline.model import (
    Pipeline,
    SinkGroup,
    SinkTable,
    SourceTable,
    absolute_path,
)
from strandlog.spark.pipeline.targets.target import Target, TopicTarget, target_of
from strandlog.spark.starting import START_ATTEMPTS, is_too_slow, start_once, start_with_retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.05


class PipelineQueries:
    """The streaming queries of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called repeatedly while queries start; it may raise to cancel the start."""
        self._spark = spark
        self._check = check
        self._pipeline = pipeline
        self.queries: list[Any] = []
        self._reported: dict[str, str] = {}  # time of each query's last report

    def start(self, *, available_now: bool = False) -> None:
        """Start every query. If one fails to start, stop the others.

        An error in SQL or in a schema that only Spark detects raises `ConfigurationError`.
        """
        prepare_topics(self._pipeline)
        try:
            for source in self._pipeline.sources:
                with errors_of(f"source {source.name}"):
                    self._open_source(source, available_now)
            for view in self._pipeline.views:
                with errors_of(f"view {view.name}"):
                    self._spark.sql(view.sql).createOrReplaceTempView(view.name)
            for sink in self._pipeline.sinks:
                if sink.group is None:
                    with errors_of(f"sink {sink.name}"):
                        self._start_sink(sink, available_now)
            for group in self._pipeline.groups:
                with errors_of(f"group {group.name}"):
                    self._start_group(group, available_now)
        except BaseException:
            self.stop()
            raise

    # -- sources -------------------------------------------------------------------------------

    def _open_source(self, source: SourceTable, available_now: bool) -> None:
        frames = SourceFrames(self._spark, self._pipeline, source)
        if source.dead_letter is not None and dead_letter_group(self._pipeline, source) is None:
            name = f"{source.name}-dead-letter"
            target = TopicTarget(self._pipeline, source.dead_letter, {})
            letters = dead_letters(frames.whole())
            self._start(letters, name, "append", self._each(target), available_now)
        frames.watermarked(frames.rows()).createOrReplaceTempView(source.name)

    # -- sinks ---------------------------------------------------------------------------------

    def _start_sink(self, sink: SinkTable, available_now: bool) -> None:
        frame = self._spark.table(sink.view)
        if sink.kind in ("topic", "table"):
            target = target_of(self._pipeline, sink)
            rows = topic_rows(frame, sink) if sink.kind == "topic" else frame
            self._start(rows, sink.name, sink.mode, self._each(target), available_now)
            return

        def write_stream(writer: Any) -> Any:
            if sink.kind == "parquet":
                files = writer.format("parquet").option("path", absolute_path(sink.target))
                return files.options(**sink.options)
            return writer.format("console").option("truncate", "false").options(**sink.options)

        self._start(frame, sink.name, sink.mode, write_stream, available_now)

    def _start_group(self, group: SinkGroup, available_now: bool) -> None:
        query = GroupQuery(self._spark, self._pipeline, group)
        self._start(query.stream(), group.query_name, "append", self._each(query), available_now)

    def _each(self, target: Target) -> Callable[[Any], Any]:
        """Return a function that makes a query write its micro-batches to a target."""
        pipeline = self._pipeline.name

        def write(batch: DataFrame, batch_id: int) -> None:
            # The query id is stored in the checkpoint, so it survives restarts.
            query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            target.write(batch, f"{pipeline}-{query}", batch_id)

        return lambda writer: writer.foreachBatch(write)

    def _start(
        self,
        frame: DataFrame,
        name: str,
        mode: str,
        configure: Callable[[Any], Any],
        available_now: bool,
    ) -> None:
        pipeline = self._pipeline
        writer = configure(frame.writeStream.queryName(name).outputMode(mode))
        writer = writer.option("checkpointLocation", self._checkpoint(name))
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif pipeline.trigger is not None:
            writer = writer.trigger(processingTime=pipeline.trigger)
        # Start queries one at a time: Python processes that start together take longer to connect.
        query = start_with_retries(lambda: start_once(writer), self._check)
        self.queries.append(query)
        if is_too_slow(query.exception()):
            raise PipelineError(self.failure())

    # -- watching ------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return any(query.isActive for query in self.queries)

    def failure(self) -> str | None:
        """Return why a query failed, or None if none has failed."""
        for query in self.queries:
            error = query.exception()
            if error is not None:
                return f"{query.name}: {self._reason(query.name, error)}"
        return None

    def _reason(self, name: str, error: BaseException) -> str:
        if is_too_slow(error):
            return (
                "this machine is too busy: the query's Python process did not connect within the "
                f"ten seconds that Spark allows, in {START_ATTEMPTS} attempts. Start the pipeline "
                "again when fewer other programs run"
            )
        mismatch = checkpoint_mismatch(error)
        if mismatch is None:
            return one_line(error)
        return (
            f"the query does not fit its checkpoint {self._checkpoint(name)}: {mismatch}. Undo the "
            f"change, or give the pipeline a new name or a new checkpoint; it then starts like a "
            f"new pipeline, reads its sources again, and writes all its results again"
        )

    def _checkpoint(self, name: str) -> str:
        folder = absolute_path(self._pipeline.checkpoint)
        return f"{folder}/{self._pipeline.name}/{name}"

    def reports(self) -> Iterator[QueryReport]:
        """Yield a report for every micro-batch since the last call, in order for each query."""
        for query in self.queries:
            last = query.lastProgress
            if last is None or last["timestamp"] == self._reported.get(query.name):
                continue  # nothing new, and fetching the history is expensive
            for progress in query.recentProgress:
                if progress["timestamp"] > self._reported.get(query.name, ""):
                    self._reported[query.name] = progress["timestamp"]
                    yield report_of(progress)

    def stop(self, grace_ms: int = 0) -> None:
        """Stop every query, allowing running micro-batches up to `grace_ms` to finish."""
        deadline_ms = SystemClock().monotonic_ms() + grace_ms
        for query in self.queries:
            with contextlib.suppress(Exception):  # the query has already ended
                _wait_for_batch(query, deadline_ms)
                query.stop()


def _wait_for_batch(query: Any, deadline_ms: int) -> None:
    """Wait until the current micro-batch, if any, is done."""
    before = query.lastProgress
    while query.isActive and SystemClock().monotonic_ms() < deadline_ms:
        if not query.status["isTriggerActive"] or query.lastProgress != before:
            return
        pause(POLL_SECONDS)


def prepare_topics(pipeline: Pipeline) -> list[str]:
    """Create the missing topics of sinks and dead letters, and return their names.

    Raise `TopicNotFoundError` if a source's topic is missing, instead of letting a task fail later.
    """
    if pipeline.bootstrap is None:
        return []  # a folder is only read, and the source checks that its topics exist
    wanted: dict[str, int | None] = {}
    for sink in pipeline.sinks:
        if sink.kind == "topic":
            wanted[sink.target] = sink.partitions or wanted.get(sink.target)
    for source in pipeline.sources:
        if source.dead_letter is not None:
            wanted.setdefault(source.dead_letter, None)
    settings = client_options(pipeline.bootstrap, pipeline.options)
    with WireClient(pipeline.bootstrap, settings) as client:
        client.check_reachable()
        read = {source.topic: source.name for source in pipeline.sources}
        existing = client.topics([*wanted, *read])
        for topic, name in read.items():
            # A source may read a topic that another query of this pipeline writes.
            if topic not in existing and topic not in wanted:
                error = TopicNotFoundError(topic)
                error.add_note(f"source {name!r} reads it")
                raise error
        missing = [topic for topic in wanted if topic not in existing]
        for topic in missing:
            try:
                client.create_topic(topic, wanted[topic] or -1)
            except TopicExistsError:
                continue  # another pipeline has just created the topic
    return missing
