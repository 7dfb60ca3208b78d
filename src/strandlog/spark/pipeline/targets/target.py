"""Writes the micro-batches of a pipeline to topics, tables and the terminal, each exactly once.

    target.write(batch, app_id, batch_id)

A micro-batch is identified by `app_id`, which contains the id that the query's checkpoint stores,
and by its batch id. A repeated one, after a crash, finds that the target already has it and writes
nothing. Each target knows this by itself, so several targets can take part in one query: one that
has written its rows before the crash skips the repeated batch, the others write it.

    topic      the transactions of format("strandlog"), as txnAppId and txnVersion (decision 0015)
    table      tasks write data files, the driver commits them with app_id and batch_id
               (table_target.py)
    console    prints the rows again; there is nothing that could be skipped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from strandlog.spark.options import SINK, parse_options
from strandlog.spark.pipeline.model import TOPIC_FORMATS, Pipeline, SinkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSOLE_ROWS = 20


class Target(Protocol):
    """Where a pipeline writes the rows of a view."""

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None: ...


def target_of(pipeline: Pipeline, sink: SinkTable) -> Target:
    """Return the target of a sink's rows, which for a topic are those of `topic_rows`.

    Raise an error if its options are invalid or its library is missing.
    """
    if sink.kind == "topic":
        typed = {"valueFormat": sink.format} if sink.format in TOPIC_FORMATS else {}
        return TopicTarget(pipeline, sink.target, {**sink.options, **typed})
    if sink.kind == "table":
        from strandlog.spark.pipeline.targets.table_target import TableTarget  # noqa: PLC0415 - an extra

        return TableTarget(sink.target, sink.format, sink.partition_by)
    return ConsoleTarget(sink.view)


class TopicTarget:
    """A topic. The rows have the columns of its records: value, key and so on."""

    def __init__(self, pipeline: Pipeline, topic: str, options: Mapping[str, str]) -> None:
        self._options = dict([pipeline.log_option]) | {"topic": topic}
        self._options |= {**pipeline.options, **options}
        guarantee = parse_options(SINK, self._options)["deliveryGuarantee"]
        self._is_named = guarantee != "at_least_once"

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None:
        name = {"txnAppId": app_id, "txnVersion": str(batch_id)} if self._is_named else {}
        writer = batch.write.format("strandlog").mode("append")
        writer.options(**name, **self._options).save()


class ConsoleTarget:
    """The terminal, like Spark's console sink."""

    def __init__(self, view: str) -> None:
        self._view = view

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None:
        del app_id
        print(f"-- {self._view}, batch {batch_id}")  # noqa: T201 - what the sink is for
        batch.show(CONSOLE_ROWS, truncate=False)
