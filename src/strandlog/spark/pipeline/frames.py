"""Creates the DataFrames of a pipeline: sources, dead letters and the rows of sinks.

    source   ─▶ records that parse, with the source's watermark ─▶ view of that name
             └▶ records that do not: key, value, headers and `ERROR_HEADERS` ─▶ dead-letter topic
    sink     its view's rows; for a topic, with the key and, unless the sink has a format, as JSON

Creating them starts no query and connects to no broker: Spark analyses the SQL with the columns of
the sources, which the pipeline file specifies. Only a source whose schema is in a schema registry
connects to the registry, to get the newest version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strandlog.errors import ConfigurationError, StrandlogError
from strandlog.spark.errors import sql_error
from strandlog.spark.option_checks import subject, uses_registry
from strandlog.spark.options import BATCH, STREAM, parse_options
from strandlog.spark.pipeline.model import (
    PARSED_FORMATS,
    TOPIC_FORMATS,
    Pipeline,
    SinkTable,
    SourceTable,
)
from strandlog.spark.registry import latest_schema, registry_columns
from strandlog.spark.schema import (
    CORRUPT,
    CORRUPT_RECORD_FIELD,
    CORRUPT_TEXT_FIELD,
    check_schema,
    record_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The string headers that are added to a dead letter, and the SQL expressions of their values.
ERROR_HEADERS = {
    "__strandlog.errors.topic": f"{CORRUPT}.topic",
    "__strandlog.errors.partition": f"{CORRUPT}.partition",
    "__strandlog.errors.offset": f"{CORRUPT}.offset",
    "__strandlog.errors.timestamp": f"unix_millis({CORRUPT}.timestamp)",
    "__strandlog.errors.reason": f"{CORRUPT}.reason",
}
VALUE = "to_json(struct(*)) AS value"


class SourceFrames:
    """The DataFrames of one source."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, source: SourceTable) -> None:
        """Raise an error if the schema cannot be parsed or does not fit the format."""
        from pyspark.sql.types import StructType  # noqa: PLC0415 - needs Spark

        self._spark = spark
        self._source = source
        self._options = source_options(pipeline, source)
        parsed = parse_options(BATCH if source.is_static else STREAM, self._options)
        values = None
        if uses_registry(parsed, has_schema=source.schema is not None):
            values = registry_columns(parsed, latest_schema(parsed))
            self._options.setdefault("schemaSubject", subject(parsed))
        schema = (
            StructType.fromDDL(source.schema) if source.schema else record_schema(parsed, values)
        )
        self._columns = [field for field in schema if field.name != CORRUPT]
        check_schema(StructType(self._columns), parsed, values)

    def rows(self) -> DataFrame:
        """Return the rows that parse, without a watermark."""
        if self._source.format not in PARSED_FORMATS:
            return self._load()
        return self.parsed(self._load(CORRUPT_TEXT_FIELD))

    def whole(self) -> DataFrame:
        """Return all rows; for a row that does not parse, `_corrupt` contains the record."""
        return self._load(CORRUPT_RECORD_FIELD)

    def parsed(self, frame: DataFrame) -> DataFrame:
        """Return only the rows that parse."""
        names = [f"`{field.name}`" for field in self._columns]
        return frame.where(f"{CORRUPT} IS NULL").selectExpr(*names)

    def watermarked(self, frame: DataFrame) -> DataFrame:
        return (
            frame
            if self._source.watermark is None
            else frame.withWatermark(*self._source.watermark)
        )

    def _load(self, *more: Any) -> DataFrame:
        schema: StructType = self._schema_of(more)
        reader = self._spark.read if self._source.is_static else self._spark.readStream
        # With a schema, Spark does not start a Python process to ask for one.
        return reader.format("strandlog").schema(schema).options(**self._options).load()

    def _schema_of(self, more: tuple[Any, ...]) -> StructType:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - needs Spark

        return StructType([*self._columns, *more])


def source_options(pipeline: Pipeline, source: SourceTable) -> dict[str, str]:
    """Return the options for reading a source with Spark."""
    options = dict([pipeline.log_option])
    options |= {"subscribe": source.topic, "valueFormat": source.format, **pipeline.options}
    if not source.is_static:
        options["startingOffsets"] = source.starting
        if pipeline.bootstrap is not None and pipeline.commits_progress:
            options["groupId"] = pipeline.name
    own = {name.lower() for name in source.options}  # Spark ignores the case of options
    kept = {name: value for name, value in options.items() if name.lower() not in own}
    return kept | dict(source.options)


def dead_letters(whole: DataFrame) -> DataFrame:
    """Return the records that do not parse, as rows for a topic."""
    added = ", ".join(
        f"struct('{header}' AS key, CAST(CAST({text} AS STRING) AS BINARY) AS value)"
        for header, text in ERROR_HEADERS.items()
    )
    return whole.where(f"{CORRUPT} IS NOT NULL").selectExpr(
        f"{CORRUPT}.key AS key",
        f"{CORRUPT}.value AS value",
        f"concat(coalesce({CORRUPT}.headers, array()), array({added})) AS headers",
    )


def topic_rows(frame: DataFrame, sink: SinkTable) -> DataFrame:
    """Return the rows of a view as rows for a topic. Without a format, the value is JSON; with one,
    the sink encodes the columns with a registered schema."""
    if sink.format in TOPIC_FORMATS:
        if sink.key is None:
            return frame
        others = [f"`{name}`" for name in frame.columns if name != "key"]
        return frame.selectExpr(*others, f"CAST(`{sink.key}` AS STRING) AS key")
    if sink.key is None:
        return frame.selectExpr(VALUE)
    return frame.selectExpr(VALUE, f"CAST(`{sink.key}` AS STRING) AS key")


@contextmanager
def errors_of(what: str) -> Iterator[None]:
    """Add the name of a part of the pipeline to errors raised inside the block, and turn Spark's
    errors into `ConfigurationError`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

    try:
        yield
    except PySparkException as error:
        raise ConfigurationError([f"{what}: {sql_error(error).text}"]) from error
    except StrandlogError as error:
        error.add_note(f"in {what}")
        raise
