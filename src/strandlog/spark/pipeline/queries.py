"""Builds views and streaming queries from a pipeline, and creates missing topics.

Each sink and each dead-letter topic is a streaming query with its own checkpoint,
<checkpoint>/<pipeline>/<query>. A record that a source cannot parse is written to the dead-letter
topic with its key, value and headers unchanged, plus headers for its origin and the reason
(`ERROR_HEADERS`). Views see only the records that parse.

The topics of sinks and dead letters are created if they do not exist. The values of a sink's topic
are JSON, one object per row. Unless a sink sets deliveryGuarantee=at_least_once, its micro-batches
are identified by query id and batch id, so a repeated one is written only once, in every output
mode. docs/decisions/0015 explains why this uses foreachBatch instead of the streaming sink.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock, pause
from strandlog.errors import (
    ConfigurationError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
)
from strandlog.spark.errors import one_line
from strandlog.spark.monitoring.progress import QueryReport, report_of
from strandlog.spark.options import SINK, client_options, parse_options
from strandlog.spark.pipeline.model import PARSED_FORMATS, Pipeline, SinkTable, SourceTable
from strandlog.spark.schema import CORRUPT, CORRUPT_RECORD_FIELD, CORRUPT_TEXT_FIELD
from strandlog.spark.starting import start_once, start_with_retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_SECONDS = 0.05
# The string headers that are added to a dead letter, and the SQL expressions of their values.
ERROR_HEADERS = {
    "__strandlog.errors.topic": f"{CORRUPT}.topic",
    "__strandlog.errors.partition": f"{CORRUPT}.partition",
    "__strandlog.errors.offset": f"{CORRUPT}.offset",
    "__strandlog.errors.timestamp": f"unix_millis({CORRUPT}.timestamp)",
    "__strandlog.errors.reason": f"{CORRUPT}.reason",
}


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
                with _errors_of(f"source {source.name}"):
                    self._open_source(source, available_now)
            for view in self._pipeline.views:
                with _errors_of(f"view {view.name}"):
                    self._spark.sql(view.sql).createOrReplaceTempView(view.name)
            for sink in self._pipeline.sinks:
                with _errors_of(f"sink {sink.name}"):
                    self._start_sink(sink, available_now)
        except BaseException:
            self.stop()
            raise

    # -- sources -------------------------------------------------------------------------------

    def _open_source(self, source: SourceTable, available_now: bool) -> None:
        pipeline = self._pipeline
        reader = self._spark.read if source.is_static else self._spark.readStream
        reader = (
            reader.format("strandlog")
            .option(*pipeline.log_option)
            .option("subscribe", source.topic)
            .option("valueFormat", source.format)
            .options(**pipeline.options)
        )
        if not source.is_static:
            reader = reader.option("startingOffsets", source.starting)
            if pipeline.bootstrap is not None:
                reader = reader.option("groupId", pipeline.name)
        reader = reader.options(**source.options)
        if source.format not in PARSED_FORMATS:
            self._create_view(source, reader.load())
            return
        schema = _schema(source.schema) if source.schema else reader.load().schema
        columns = [field for field in schema if field.name != CORRUPT]
        if source.dead_letter is not None:
            whole = reader.schema(type(schema)([*columns, CORRUPT_RECORD_FIELD])).load()
            self._start_dead_letter(source, whole, available_now)
        frame = reader.schema(type(schema)([*columns, CORRUPT_TEXT_FIELD])).load()
        names = [f"`{field.name}`" for field in columns]
        self._create_view(source, frame.where(f"{CORRUPT} IS NULL").selectExpr(*names))

    def _create_view(self, source: SourceTable, frame: DataFrame) -> None:
        if source.watermark is not None:
            frame = frame.withWatermark(*source.watermark)
        frame.createOrReplaceTempView(source.name)

    def _start_dead_letter(
        self, source: SourceTable, frame: DataFrame, available_now: bool
    ) -> None:
        added = ", ".join(
            f"struct('{header}' AS key, CAST(CAST({text} AS STRING) AS BINARY) AS value)"
            for header, text in ERROR_HEADERS.items()
        )
        bad = frame.where(f"{CORRUPT} IS NOT NULL").selectExpr(
            f"{CORRUPT}.key AS key",
            f"{CORRUPT}.value AS value",
            f"concat(coalesce({CORRUPT}.headers, array()), array({added})) AS headers",
        )
        name = f"{source.name}-dead-letter"
        self._start(bad, name, "append", self._to_topic(str(source.dead_letter), {}), available_now)

    # -- sinks ---------------------------------------------------------------------------------

    def _start_sink(self, sink: SinkTable, available_now: bool) -> None:
        frame = self._spark.table(sink.view)
        if sink.kind == "topic":
            rows = ["to_json(struct(*)) AS value"]
            if sink.key is not None:
                rows.append(f"CAST(`{sink.key}` AS STRING) AS key")
            write = self._to_topic(sink.target, sink.options)
            self._start(frame.selectExpr(*rows), sink.name, sink.mode, write, available_now)
            return

        def write_stream(writer: Any) -> Any:
            if sink.kind == "parquet":
                return writer.format("parquet").option("path", sink.target).options(**sink.options)
            return writer.format("console").option("truncate", "false").options(**sink.options)

        self._start(frame, sink.name, sink.mode, write_stream, available_now)

    def _to_topic(self, topic: str, options: Any) -> Callable[[Any], Any]:
        log, pipeline = self._pipeline.log_option, self._pipeline.name
        every = {**self._pipeline.options, **options}
        parsed = parse_options(SINK, {**dict([log]), "topic": topic, **every})
        is_named = parsed["deliveryGuarantee"] != "at_least_once"

        def configure(writer: Any) -> Any:
            def write(batch: Any, batch_id: int) -> None:
                # The query id is stored in the checkpoint, so it survives restarts.
                query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                name = {"txnAppId": f"{pipeline}-{query}", "txnVersion": str(batch_id)}
                (
                    batch.write.format("strandlog")
                    .mode("append")
                    .option(*log)
                    .option("topic", topic)
                    .options(**(name if is_named else {}))
                    .options(**every)
                    .save()
                )

            return writer.foreachBatch(write)

        return configure

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
        writer = writer.option(
            "checkpointLocation", f"{pipeline.checkpoint}/{pipeline.name}/{name}"
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif pipeline.trigger is not None:
            writer = writer.trigger(processingTime=pipeline.trigger)
        # Start queries one at a time: several Python processes at once take longer to start.
        self.queries.append(start_with_retries(lambda: start_once(writer), self._check))

    # -- watching ------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return any(query.isActive for query in self.queries)

    def failure(self) -> str | None:
        """Return why a query failed, or None if none has failed."""
        for query in self.queries:
            error = query.exception()
            if error is not None:
                return f"{query.name}: {one_line(error)}"
        return None

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


@contextlib.contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """Add the name of a part of the pipeline to errors raised inside the block."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

    try:
        yield
    except PySparkException as error:
        raise ConfigurationError([f"{what}: {one_line(error)}"]) from error
    except StrandlogError as error:
        error.add_note(f"in {what}")
        raise


def _schema(text: str) -> Any:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - needs Spark

    return StructType.fromDDL(text)


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
                continue  # another pipeline created it meanwhile
    return missing
