"""Writes the micro-batches of a pipeline to topics and tables, exactly once, and to the terminal.

    target.write(batch, app_id, batch_id)

A micro-batch is identified by its batch id and by `app_id`, which contains the query id from the
checkpoint. If a micro-batch is repeated after a crash, a topic or table that already has it gets no
rows. Each target decides this on its own, so one query can write to several targets: a target that
wrote the batch before the crash skips it, and the others write it.

    topic      writes transactions of format("strandlog"), with app_id and batch_id as txnAppId and
               txnVersion (decision 0015); with deliveryGuarantee=at_least_once, it writes without
               them and repeats the rows
    table      tasks write data files, the driver commits them with app_id and batch_id
               (table_target.py)
    console    prints the rows again, because a terminal does not record what it has printed
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
    """Writes the rows of a view."""

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None: ...


def target_of(pipeline: Pipeline, sink: SinkTable) -> Target:
    """Return the target of a sink. A topic's target expects rows from `topic_rows`.

    Raise an error if the sink's options are invalid or a library is missing.
    """
    if sink.kind == "topic":
        typed = {"valueFormat": sink.format} if sink.format in TOPIC_FORMATS else {}
        return TopicTarget(pipeline, sink.target, {**sink.options, **typed})
    if sink.kind == "table":
        from strandlog.spark.pipeline.targets.table_target import TableTarget  # noqa: PLC0415 - imports an optional dependency

        return TableTarget(sink.target, sink.format, sink.partition_by)
    return ConsoleTarget(sink.view)


class TopicTarget:
    """A topic. The rows have the columns of its records or, with a format, the fields of values."""

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
