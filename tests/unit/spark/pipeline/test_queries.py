"""The queries of a pipeline, without Spark."""

from __future__ import annotations

from typing import Any

from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.queries import PipelineQueries
from strandlog.spark.starting import START_ATTEMPTS, TOO_SLOW, start_with_retries


class FailedQuery:
    """A query whose Python process did not connect, which happens only on a busy machine."""

    name = "delays"
    id = "1"
    isActive = False  # noqa: N815 - Spark's name

    def exception(self) -> BaseException:
        return RuntimeError(f"org.apache.spark.SparkException: {TOO_SLOW}.")


def test_a_busy_machine_is_named_as_the_reason(monkeypatch: Any) -> None:
    monkeypatch.setattr("strandlog.spark.starting._forget_empty_offset_log", lambda _: None)
    started: list[FailedQuery] = []

    def begin() -> FailedQuery:
        started.append(FailedQuery())
        return started[-1]

    spark: Any = None
    queries = PipelineQueries(spark, Pipeline("p", "./checkpoints", "127.0.0.1:1"))
    queries.queries.append(start_with_retries(begin))
    assert len(started) == START_ATTEMPTS
    failure = queries.failure()
    assert failure is not None
    assert failure.startswith("delays: this machine is too busy")
