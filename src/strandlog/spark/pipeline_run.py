"""Runs a pipeline on Spark: sources become views, views become views, sinks become queries.

Each sink is a streaming query of its own, with its own checkpoint below <checkpoint>/<pipeline>; so
is each dead-letter topic. What a source cannot parse goes there with headers that say where it came
from; the views see the rest.

A topic gets JSON values, one object a row. It is written batch by batch under the name of the query
and the number of the batch, so that a batch that runs again is written once, whatever the output
mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from strandlog.spark.pipeline_file import Pipeline, SinkTable, SourceTable
from strandlog.spark.progress import QueryReport, report_of
from strandlog.spark.schema import CORRUPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WHERE_FROM = {"topic": "STRING", "partition": "INT", "offset": "BIGINT"}


class PipelineRun:
    """A pipeline at work."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self.queries: list[Any] = []

    def start(self, *, available_now: bool = False) -> None:
        """Start every query; those that began are stopped when one cannot."""
        try:
            for source in self._pipeline.sources:
                self._open(source, available_now)
            for view in self._pipeline.views:
                self._spark.sql(view.sql).createOrReplaceTempView(view.name)
            for sink in self._pipeline.sinks:
                self._start_sink(sink, available_now)
        except BaseException:
            self.stop()
            raise

    # -- sources -------------------------------------------------------------------------------

    def _place(self) -> tuple[str, str]:
        pipeline = self._pipeline
        if pipeline.bootstrap is not None:
            return "bootstrap.servers", pipeline.bootstrap
        return "path", str(pipeline.data)

    def _open(self, source: SourceTable, available_now: bool) -> None:
        reader = (
            self._spark.readStream.format("strandlog")
            .option(*self._place())
            .option("subscribe", source.topic)
            .option("startingOffsets", source.starting)
            .option("valueFormat", source.format)
            .options(**source.options)
        )
        if self._pipeline.bootstrap is not None:
            reader = reader.option("groupId", self._pipeline.name)
        if source.format != "json":
            self._show(source, reader.load())
            return
        columns = _columns(source.schema or "")
        extra = {CORRUPT: "STRING", **WHERE_FROM}
        more = [f"{name} {kind}" for name, kind in extra.items() if name not in columns]
        frame = reader.schema(", ".join([source.schema or "", *more])).load()
        if source.dead_letter is not None:
            self._start_dead_letter(source, frame, available_now)
        self._show(source, frame.where(f"{CORRUPT} IS NULL").select(*columns))

    def _show(self, source: SourceTable, frame: DataFrame) -> None:
        if source.watermark is not None:
            frame = frame.withWatermark(*source.watermark)
        frame.createOrReplaceTempView(source.name)

    def _start_dead_letter(
        self, source: SourceTable, frame: DataFrame, available_now: bool
    ) -> None:
        headers = ", ".join(
            f"struct('{name}' AS key, CAST(CAST({name} AS STRING) AS BINARY) AS value)"
            for name in WHERE_FROM
        )
        reason = f"does not parse as {source.schema}".replace("'", "")
        headers += f", struct('reason' AS key, CAST('{reason}' AS BINARY) AS value)"
        bad = frame.where(f"{CORRUPT} IS NOT NULL").selectExpr(
            f"{CORRUPT} AS value", f"array({headers}) AS headers"
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
        place, pipeline = self._place(), self._pipeline.name

        def configure(writer: Any) -> Any:
            def write(batch: Any, batch_id: int) -> None:
                # The name of the query: part of the checkpoint, and the same after a restart.
                named = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
                (
                    batch.write.format("strandlog")
                    .mode("append")
                    .option(*place)
                    .option("topic", topic)
                    .option("deliveryGuarantee", "exactly_once")
                    .option("txnAppId", f"{pipeline}-{named}")
                    .option("txnVersion", str(batch_id))
                    .options(**options)
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
        self.queries.append(writer.start())

    # -- watching ------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return any(query.isActive for query in self.queries)

    def failure(self) -> str | None:
        """Why a query ended that should not have; None while all is well."""
        for query in self.queries:
            error = query.exception()
            if error is not None:
                return f"{query.name}: {error}"
        return None

    def reports(self) -> Iterator[QueryReport]:
        """The last micro-batch of each query that had one."""
        for query in self.queries:
            progress = query.lastProgress
            if progress is not None:
                yield report_of(progress)

    def stop(self) -> None:
        for query in self.queries:
            with contextlib.suppress(Exception):  # it has ended, in whatever way
                query.stop()


def _columns(schema: str) -> list[str]:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - needs Spark

    return list(StructType.fromDDL(schema).fieldNames())
