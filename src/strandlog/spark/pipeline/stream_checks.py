"""Checks whether Spark can run a stream and write its rows, without starting a query.

`check_streaming` is the check that Spark makes when a query starts. `check_stateless` checks that
the rows of a view depend only on one micro-batch: on streams, it allows only the operators in
`STATELESS` and joins with a static source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandlog.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark's logical operators whose output rows each depend on only one input row.
STATELESS = frozenset(
    {
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "UnresolvedHint",
        "View",
    }
)


def check_streaming(frame: DataFrame, mode: str) -> None:
    """Raise Spark's `AnalysisException` if a stream cannot be written in an output mode."""
    jvm: Any = frame.sparkSession._jvm
    analysis = jvm.org.apache.spark.sql.catalyst.analysis
    modes = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    plan = frame._jdf.queryExecution().analyzed()
    analysis.UnsupportedOperationChecker.checkForStreaming(plan, modes.apply(mode))


def check_parquet(frame: DataFrame) -> None:
    """Raise Spark's `AnalysisException` if Parquet cannot store a type."""
    sources: Any = frame.sparkSession._jvm.org.apache.spark.sql.execution.datasources
    parquet = sources.parquet.ParquetFileFormat()
    sources.DataSourceUtils.verifySchema(parquet, frame._jdf.schema(), False)


def check_table(frame: DataFrame, partition_by: tuple[str, ...]) -> None:
    """Raise an error if a column's type does not exist in Arrow, or if the rows lack a column of
    `partition_by`."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to load

    to_arrow_schema(frame.schema, timezone="UTC")
    missing = [name for name in partition_by if name not in frame.columns]
    if missing:
        columns = ", ".join(frame.columns)
        raise ConfigurationError([f"the view has no column {missing[0]!r}; it has {columns}"])


def check_names(frame: DataFrame) -> None:
    """Raise Spark's `AnalysisException` if two columns have the same name, ignoring case."""
    jvm: Any = frame.sparkSession._jvm
    check = jvm.org.apache.spark.sql.util.SchemaUtils.checkSchemaColumnNameDuplication
    check(frame._jdf.schema(), False)


def check_stateless(frame: DataFrame, sink: str) -> None:
    """Raise `ConfigurationError` if the rows of a stream may depend on other micro-batches."""
    operator = stateful_operator(frame._jdf.queryExecution().analyzed())
    if operator is not None:
        raise ConfigurationError(
            [
                f"sink {sink}: its view keeps state between micro-batches ({operator}), so it "
                f"cannot share the query of a group: remove `group`, and it gets its own query"
            ]
        )


def stateful_operator(plan: Any) -> str | None:
    """Return the name of an operator on a stream that may keep state, or None."""
    if not plan.isStreaming():
        return None
    name: str = plan.getClass().getSimpleName()
    children = [plan.children().apply(number) for number in range(plan.children().length())]
    streams = sum(child.isStreaming() for child in children)
    if name not in STATELESS and not (name == "Join" and streams == 1):
        return name
    return next(filter(None, map(stateful_operator, children)), None)
