"""Finds the errors in a pipeline that only Spark can find, without data and without a broker.

In a session of its own, Spark analyses the DataFrames of frames.py, which are streams as in a run:

    source   schema, types that its format does not support, watermark column and its type
    view     syntax, names and types of the SQL
    sink     column names, the key column, rows as JSON, types that files cannot store, and the
             rules for streams in the sink's output mode, which Spark otherwise checks when a query
             starts: they exclude ORDER BY, aggregations without a watermark in append mode, outer
             joins without a watermark, …; in a group, operators that may keep state

No query and no reader starts. Only a source whose schema is in a registry connects to the registry.
Errors that depend on data, such as a failing cast, and errors in existing checkpoints appear only
in a run. Views and sinks that depend on a source or view with an error are not checked;
`Analysis.unchecked` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strandlog.errors import StrandlogError
from strandlog.spark.errors import sql_error
from strandlog.spark.pipeline.file import Analysis, PipelineFile, Problem
from strandlog.spark.pipeline.frames import SourceFrames, dead_letters, topic_rows
from strandlog.spark.pipeline.model import Pipeline, SinkTable
from strandlog.spark.pipeline.stream_checks import (
    check_names,
    check_parquet,
    check_stateless,
    check_streaming,
    check_table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"


def analyze(file: PipelineFile, spark: SparkSession) -> Analysis:
    """Analyse a file that was parsed without problems; the session's views do not change."""
    from strandlog.spark.session import register  # noqa: PLC0415 - needs Spark

    assert file.pipeline is not None, "the file has problems"
    own = spark.newSession()
    register(own)
    return _Analyzer(file, file.pipeline, own).analyze()


class _Analyzer:
    def __init__(self, file: PipelineFile, pipeline: Pipeline, spark: SparkSession) -> None:
        self._file = file
        self._pipeline = pipeline
        self._spark = spark
        self._problems: list[Problem] = []
        self._unchecked: list[str] = []
        self._broken: set[str] = set()  # sources and views without a DataFrame

    def analyze(self) -> Analysis:
        for number in range(len(self._pipeline.sources)):
            self._analyze_source(number)
        for number in range(len(self._pipeline.views)):
            self._analyze_view(number)
        for number, sink in enumerate(self._pipeline.sinks):
            if sink.view in self._broken:
                self._unchecked.append(f"sink {sink.name}")
            else:
                self._analyze_sink(number, sink)
        return Analysis(sorted(self._problems), self._unchecked)

    def _analyze_source(self, number: int) -> None:
        source = self._pipeline.sources[number]
        frames: SourceFrames | None = None

        def open_source() -> None:
            nonlocal frames
            frames = SourceFrames(self._spark, self._pipeline, source)

        def add_watermark() -> None:
            assert frames is not None
            frames.watermarked(frames.rows()).createOrReplaceTempView(source.name)
            if source.dead_letter is not None:
                dead_letters(frames.whole())

        if not (
            self._try("source", number, "schema", open_source)
            and self._try("source", number, "watermark", add_watermark)
        ):
            self._broken.add(source.name)

    def _analyze_view(self, number: int) -> None:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

        view = self._pipeline.views[number]
        try:
            self._spark.sql(view.sql).createOrReplaceTempView(view.name)
        except PySparkException as error:
            self._broken.add(view.name)
            if error.getCondition() == NOT_FOUND and self._names_broken(error):
                self._unchecked.append(f"view {view.name}")
                return
            text, sql_line = sql_error(error)
            problem = self._file.problem("view", number, "sql", text)
            line = None if sql_line is None else self._file.line_of_sql(number, sql_line)
            self._problems.append(problem if line is None else problem._replace(line=line))

    def _names_broken(self, error: Any) -> bool:
        parameters = error.getMessageParameters() or {}
        return parameters.get("relationName", "").strip("`").lower() in {
            name.lower() for name in self._broken
        }

    def _analyze_sink(self, number: int, sink: SinkTable) -> None:
        frame = self._spark.table(sink.view)
        rows = frame
        if not self._try("sink", number, "from", lambda: check_names(frame)):
            return
        if sink.kind == "topic":

            def as_topic() -> None:
                nonlocal rows
                rows = topic_rows(frame, sink)

            if not self._try("sink", number, "key", as_topic):
                return
        elif sink.kind == "parquet":
            self._try("sink", number, "parquet", lambda: check_parquet(frame))
        elif sink.kind == "table":
            key = "partition_by" if sink.partition_by else "table"
            self._try("sink", number, key, lambda: check_table(frame, sink.partition_by))
        if sink.group is not None:
            self._try("sink", number, "group", lambda: check_stateless(frame, sink.name))
        self._try("sink", number, "mode", lambda: check_streaming(rows, sink.mode))

    def _try(self, kind: str, number: int, key: str, check: Callable[[], None]) -> bool:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

        try:
            check()
        except (PySparkException, StrandlogError) as error:
            text = str(error) if isinstance(error, StrandlogError) else sql_error(error).text
            self._problems.append(self._file.problem(kind, number, key, text))
            return False
        return True
