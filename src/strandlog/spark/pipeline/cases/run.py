"""Runs the test cases of a pipeline on Spark, each against its own broker.

    for case in load_cases("flights.toml"):
        check_case("flights.toml", case)            # raises AssertionError with the difference

Each case has a new broker in this process, in a temporary folder, with real files and sockets. The
pipeline runs as in production, with its own sources, transactional sinks and checkpoints, except
for these differences:

    the address, checkpoint, tables and Parquet folders are temporary
    users and certificates are left out
    sources start at the beginning; their topics have one partition
    a console sink writes to a topic, so that its rows can be compared
    a topic with a `format` has its schema in the registry of the case's broker
    `trigger` and `every` have no effect
    progress is neither committed nor reported: Spark's listeners run late, when the broker of the
    case may have stopped

A step sends its records in order and runs the pipeline until all data is processed (availableNow).
Each query runs one micro-batch, or more if an option limits their size, and, if the watermark has
advanced, one without data that closes windows. If the pipeline reads a topic that it writes, the
step runs it again until there is nothing new. Then the step compares the rows that it added with
the expected rows.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock
from strandlog.errors import (
    ConfigurationError,
    MissingExtraError,
    PipelineError,
    StrandlogError,
)
from strandlog.formats.registry.decoder import ValueDecoder
from strandlog.model import IsolationLevel, Record, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_batch
from strandlog.spark.option_checks import avro_form, uses_registry
from strandlog.spark.options import PREFIX, STREAM, option_named, parse_options
from strandlog.spark.pipeline.cases import file as case_file
from strandlog.spark.pipeline.cases.file import Case, InputRecord, Output, Step
from strandlog.spark.pipeline.cases.rows import Difference, Row, difference
from strandlog.spark.pipeline.file import load
from strandlog.spark.pipeline.model import TOPIC_FORMATS, Pipeline, SinkTable, SourceTable
from strandlog.spark.pipeline.runner import start
from strandlog.spark.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.testing.server import ServerThread

BROKER_SETTINGS = {"log.retention.ms": "-1"}  # records of a case may have old timestamps
OUTSIDE = ("security.", "sasl.", "ssl.", "schema.registry.")  # client settings that cases leave out
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
MAX_ROUNDS = 20  # per step, for a pipeline that reads its own topics
ERROR_PREFIX = "__strandlog.errors."
CONF = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}


@dataclass(frozen=True)
class CaseResult:
    """The result of a case: it passed if it has neither differences nor an error."""

    case: Case
    differences: tuple[Difference, ...]
    error: str | None
    seconds: float

    @property
    def has_passed(self) -> bool:
        return not self.differences and self.error is None

    def lines(self) -> list[str]:
        """Describe the error and the differences."""
        lines = [] if self.error is None else [f"error: {self.error}"]
        for each in self.differences:
            where = each.output
            if len(self.case.steps) > 1:
                where = f"step {each.step}, {where}"
            lines += [f"{where}:", *(f"  {line}" for line in each.lines())]
        return lines


def load_cases(
    pipeline_file: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> list[Case]:
    """Load the cases of a pipeline.

    The default `path` is beside the pipeline file: flights.test.toml for flights.toml. Raise a
    `ConfigurationError` that lists the problems of the pipeline file or, if it has none, of the
    case file.
    """
    return case_file.load_cases(pipeline_file, load(pipeline_file), path)


def check_case(
    pipeline_file: str | os.PathLike[str], case: Case, spark: SparkSession | None = None
) -> None:
    """Run a case; if it does not pass, raise an `AssertionError` that shows the differences or the
    error.

    `spark` is the session to use; the default is the active session, or a new one.
    """
    [result] = run_cases(pipeline_file, [case], spark=spark)
    if not result.has_passed:
        raise AssertionError("\n".join([f"{case.name} (line {case.line}):", *result.lines()]))


def run_cases(
    pipeline_file: str | os.PathLike[str],
    cases: Sequence[Case] | None = None,
    *,
    spark: SparkSession | None = None,
    log: Path | None = None,
    on_result: Callable[[CaseResult], object] | None = None,
) -> list[CaseResult]:
    """Run cases, by default all cases of a pipeline, in one Spark session; return their results.

    `spark` is the session to use; the default is the active session or, if there is none, a new one
    that writes its log to `log` (default: stderr) and is stopped at the end. `on_result` is called
    after each case.
    """
    pipeline = load(pipeline_file)
    wanted = load_cases(pipeline_file) if cases is None else cases
    opened = open_session("strandlog test", spark, conf=CONF, log=log)
    results: list[CaseResult] = []
    try:
        for case in wanted:
            result = _run(pipeline, case, opened.spark)
            results.append(result)
            if on_result is not None:
                on_result(result)
    finally:
        if opened.is_own:
            opened.spark.stop()
    return results


def _run(pipeline: Pipeline, case: Case, spark: SparkSession) -> CaseResult:
    began_ms = SystemClock().monotonic_ms()
    differences: list[Difference] = []
    error: str | None = None
    with tempfile.TemporaryDirectory(prefix="strandlog-case-") as folder:
        try:
            with _case_run(pipeline, spark, Path(folder)) as running:
                for number, step in enumerate(case.steps, 1):
                    differences += running.step(number, step)
        except MissingExtraError:
            raise
        except (PipelineError, ConfigurationError) as raised:
            error = str(raised)
        except StrandlogError as raised:
            error = "; ".join([str(raised), *getattr(raised, "__notes__", ())])
    seconds = (SystemClock().monotonic_ms() - began_ms) / 1000
    return CaseResult(case, tuple(differences), error, seconds)


@contextmanager
def _case_run(pipeline: Pipeline, spark: SparkSession, folder: Path) -> Iterator[_CaseRun]:
    try:
        from strandlog.testing.server import ServerThread  # noqa: PLC0415 - imports an optional dependency
    except ImportError as error:
        raise MissingExtraError("server", error.name or "uvloop") from error
    from strandlog.client.registry.connect import connect_registry  # noqa: PLC0415 - slow to load

    has_schemas = any(sink.format in TOPIC_FORMATS for sink in pipeline.sinks)
    with (
        ServerThread(folder / "data", BROKER_SETTINGS, http=has_schemas) as server,
        WireClient(server.address) as client,
        connect_registry(server.address) as registry,
    ):
        decoder = ValueDecoder(registry.by_id, registry.by_guid, SystemClock())
        yield _CaseRun(pipeline, spark, folder, server, client, decoder)


class _CaseRun:
    """A case in progress."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        folder: Path,
        server: ServerThread,
        client: WireClient,
        decoder: ValueDecoder,
    ) -> None:
        self._spark = spark
        self._client = client
        self._decoder = decoder
        self._pipeline = _adapted(pipeline, server.address, folder)
        self._sources = {source.name: source for source in self._pipeline.sources}
        # Maps each output of the pipeline to the adapted output that this run writes.
        self._places = dict(zip(_outputs(pipeline), _outputs(self._pipeline), strict=True))
        self._seen: dict[Output, list[Row]] = {output: [] for output in self._places}
        for topic in dict.fromkeys(source.topic for source in self._pipeline.sources):
            client.create_topic(topic, 1)

    def step(self, number: int, step: Step) -> list[Difference]:
        """Send the records of a step, run the pipeline, and compare the rows that it added."""
        for name, records in step.input.items():
            self._send(self._sources[name], records)
        self._process()
        found: list[Difference] = []
        for output, place in self._places.items():
            rows = self._added(output, place)
            expected = step.expect.get(output)
            if expected is None and output.kind == "dead_letter":
                expected = ()  # a record that unexpectedly does not parse must not go unnoticed
            if expected is not None:
                different = difference(number, str(output), expected, rows)
                found += [] if different is None else [different]
        return found

    # -- input ---------------------------------------------------------------------------------

    def _send(self, source: SourceTable, records: Sequence[InputRecord]) -> None:
        if not records:
            return
        batch = build_batch(
            records[0].timestamp_ms,
            [_value(source, record, self._pipeline) for record in records],
            [None if record.key is None else record.key.encode() for record in records],
            [record.headers for record in records],
            timestamps=[record.timestamp_ms for record in records],
        )
        tp = TopicPartition(source.topic, 0)
        result = self._client.produce({tp: [batch]}, acks=-1)[tp]
        if result.error is not None:
            raise result.error

    def _process(self) -> None:
        """Run the pipeline until its sources have no new records, not even from itself."""
        topics = {source.topic for source in self._pipeline.sources if not source.is_static}
        for _ in range(MAX_ROUNDS):
            before = self._ends(topics)
            with start(
                self._pipeline, spark=self._spark, available_now=True, report="off"
            ) as running:
                running.wait()
            if self._ends(topics) == before:
                return
        raise PipelineError(f"the pipeline still writes to its sources after {MAX_ROUNDS} rounds")

    def _ends(self, topics: set[str]) -> Mapping[TopicPartition, int]:
        return self._client.latest_offsets(self._client.partitions(topics))

    # -- output --------------------------------------------------------------------------------

    def _added(self, output: Output, place: Output) -> list[Row]:
        """Return the rows of an output that are new since the last call."""
        if place.kind == "parquet":
            rows = self._parquet(place.target)
        elif place.kind == "table":
            rows = self._table(place.target)
        else:
            rows = [_row(output, record, self._decoder) for record in self._records(place.target)]
        counts = Counter(map(_identity, self._seen[output]))
        self._seen[output] = rows
        added: list[Row] = []
        for row in rows:
            if counts[_identity(row)]:
                counts[_identity(row)] -= 1
            else:
                added.append(row)
        return added

    def _parquet(self, path: str) -> list[Row]:
        if not Path(path).exists():
            return []
        # Spark reads only the files of finished micro-batches.
        rows: list[Row] = self._spark.read.parquet(path).toArrow().to_pylist()
        return rows

    def _table(self, path: str) -> list[Row]:
        from strandlog.tables.table import detected_format, open_table  # noqa: PLC0415 - imports an optional dependency

        table_format = detected_format(path)
        if table_format is None:
            return []  # no micro-batch has run yet
        snapshot = open_table(path, table_format).load()
        rows: list[Row] = snapshot.read(snapshot.layout.schema.names).read_all().to_pylist()
        return rows

    def _records(self, topic: str) -> Iterator[Record]:
        for tp in self._client.partitions([topic]):
            end = self._client.latest_offsets([tp], IsolationLevel.READ_COMMITTED)[tp]
            for chunk in self._client.read_range(tp, 0, end, IsolationLevel.READ_COMMITTED):
                for batch in iter_batches(chunk.data):
                    if not batch.header.is_control:
                        yield from batch.records(*tp)


def _adapted(pipeline: Pipeline, address: str, folder: Path) -> Pipeline:
    """Return the pipeline, changed to use the broker and the folders of a case."""
    return replace(
        pipeline,
        bootstrap=address,
        data=None,
        checkpoint=str(folder / "checkpoints"),
        trigger=None,
        commits_progress=False,
        options=_without_outside(pipeline.options),
        sources=tuple(_adapted_source(source) for source in pipeline.sources),
        sinks=tuple(
            _adapted_sink(number, sink, folder) for number, sink in enumerate(pipeline.sinks)
        ),
    )


def _adapted_source(source: SourceTable) -> SourceTable:
    kept = {name: value for name, value in source.options.items() if not _is_start(name)}
    return replace(source, starting="earliest", options=_without_outside(kept))


def _is_start(name: str) -> bool:
    return option_named(name) in STARTS


def _adapted_sink(number: int, sink: SinkTable, folder: Path) -> SinkTable:
    if sink.kind in ("parquet", "table"):
        return replace(sink, target=str(folder / f"{sink.kind}-{number}"))
    if sink.kind == "console":
        return replace(sink, kind="topic", target=f"console-{number}", options={})
    kept = {
        name: value
        for name, value in sink.options.items()
        if option_named(name) != "schemaRegistry"
    }
    return replace(sink, options=_without_outside(kept))


def _without_outside(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without users, certificates and the address of a schema registry."""
    return {
        name: value
        for name, value in options.items()
        if not name.lower().removeprefix(PREFIX).startswith(OUTSIDE)
    }


def _outputs(pipeline: Pipeline) -> list[Output]:
    """Return every output once, in the order of the file."""
    sinks = [
        Output(sink.kind, sink.target if sink.kind != "console" else str(number))
        for number, sink in enumerate(pipeline.sinks)
    ]
    letters = [
        Output("dead_letter", source.dead_letter)
        for source in pipeline.sources
        if source.dead_letter is not None
    ]
    return [*sinks, *letters]


def _value(source: SourceTable, record: InputRecord, pipeline: Pipeline) -> bytes:
    if record.text is not None:
        return record.text.encode()
    given = {**dict([pipeline.log_option]), "subscribe": source.topic, **source.options}
    options = parse_options(STREAM, {**given, "valueFormat": source.format})
    if uses_registry(options, has_schema=source.schema is not None):
        raise PipelineError(
            f"source {source.name}: a case cannot write values with a registered schema; set "
            f"schema or options = {{ avroSchema = '…' }}"
        )
    if source.format != "avro":
        return json.dumps(record.columns, default=_json).encode()
    import fastavro  # noqa: PLC0415 - optional dependency

    form = avro_form(options)
    writer_id, writer = max(form.writers.items(), default=(1, form.reader))
    value = io.BytesIO()
    has_prefix = bool(form.writers) or form.prefix == "confluent"
    if has_prefix:
        value.write(b"\0" + int(writer_id).to_bytes(4, "big"))
    fastavro.schemaless_writer(value, writer, dict(record.columns))
    return value.getvalue()


def _json(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise TypeError(f"{value!r} cannot be written as JSON")


def _row(output: Output, record: Record, decoder: ValueDecoder) -> Row:
    """Convert a record to a row, or a dead letter to its key, value and error headers."""
    key = None if record.key is None else record.key.decode(errors="backslashreplace")
    text = None if record.value is None else record.value.decode(errors="backslashreplace")
    if output.kind == "dead_letter":
        added = {
            name.removeprefix(ERROR_PREFIX): (value or b"").decode()
            for name, value in record.headers
            if name.startswith(ERROR_PREFIX)
        }
        numbers = {name: int(added[name]) for name in ("partition", "offset", "timestamp")}
        return {"key": key, "value": text, **added, **numbers}
    decoded = decoder.value(record.value, record.headers)
    try:
        if decoded is not None and decoded.error is None:
            return {**decoded.value, "_key": key}
        return {**json.loads(text or "{}"), "_key": key}
    except (ValueError, TypeError) as error:
        reason = (decoded and decoded.error) or error
        raise PipelineError(
            f"the record at offset {record.offset} of {output} is not a row: {reason}"
        ) from error


def _identity(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)
