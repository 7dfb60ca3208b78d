"""How the queries of a session are doing: a report for each micro-batch, and their groups.

    watch(spark)                    progress is committed; reports go to the log. session() does it
    watch(spark, print_report)      reports go to stderr, a line each
    watch(spark, report="off")      brokers are told nothing

After a micro-batch Spark tells its listeners how far each source got. Where a source of ours has a
`groupId`, these offsets are committed there, so the group stands at the very end when a bounded run
is over. The source itself commits when the next micro-batch is planned (source.py), for sessions
without a listener. The brokers that a query uses are told how it is doing (session_reports.py).

A listener is not told the options of a source. They are in the query's plan, which is looked at
when the query starts: Spark waits for that, so that it cannot be over before. A plan that looks
otherwise than we know it leaves the query to the source's own commits; so does Spark Connect, whose
clients see no plan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from pyspark.sql.streaming import StreamingQueryListener

from strandlog.errors import StrandlogError
from strandlog.spark.monitoring.report_address import parse_report
from strandlog.spark.monitoring.session_reports import SessionReports
from strandlog.spark.options import STREAM, Options, parse_options
from strandlog.spark.source.access import open_access
from strandlog.spark.source.offsets import Offsets, from_document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.source.access import LogAccess

logger = logging.getLogger(__name__)


class QueryReport(NamedTuple):
    """How one query is doing."""

    name: str
    batch_id: int
    rows: int
    rows_per_second: float
    batch_ms: int
    lag: int | None  # records that are there and not processed
    state_rows: int
    late_rows: int  # behind the watermark, and left out
    watermark: str | None

    def __str__(self) -> str:
        lag = "" if self.lag is None else f"  lag {self.lag:,}"
        state = f"  state {self.state_rows:,}" if self.state_rows else ""
        late = f"  late {self.late_rows:,}" if self.late_rows else ""
        return (
            f"{self.name}: batch {self.batch_id}  {self.rows:,} rows  "
            f"{self.rows_per_second:,.0f} rows/s  {self.batch_ms:,} ms{lag}{state}{late}"
        )


def report_of(progress: Any) -> QueryReport:
    """What Spark tells of a micro-batch, in short."""
    lags = [_lag(source) for source in progress["sources"]]
    known = [lag for lag in lags if lag is not None]
    return QueryReport(
        progress["name"] or str(progress["id"])[:8],
        progress["batchId"],
        progress.numInputRows,
        progress.processedRowsPerSecond or 0.0,
        progress["durationMs"].get("triggerExecution", 0),
        sum(known) if known else None,
        sum(operator["numRowsTotal"] for operator in progress["stateOperators"]),
        sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"]),
        progress["eventTime"].get("watermark"),
    )


def _lag(source: Any) -> int | None:
    done, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if done is None or latest is None:
        return None
    return sum(max(0, at - done.get(tp, 0)) for tp, at in latest.items())


def _offsets(text: Any) -> Offsets | None:
    """Offsets out of a report, where they are ours; sources of other kinds have others."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return from_document(json.loads(text))
    return None


def log_report(report: QueryReport) -> None:
    logger.info("%s", report)


def print_report(report: QueryReport) -> None:
    sys.stderr.write(f"{report}\n")


class ProgressListener(StreamingQueryListener):
    """Shows what each micro-batch did, tells it to brokers, and commits it."""

    def __init__(
        self, spark: SparkSession, show: Callable[[QueryReport], None], report: str | None
    ) -> None:
        self._session = ref(spark)
        self.show = show
        self.reports = SessionReports(spark, report)
        self._groups: dict[str, list[SourceGroup | None]] = {}  # by run

    def onQueryStarted(self, event: Any) -> None:
        try:
            options = _options_of_sources(self._session(), str(event.id))
        except Exception as error:  # noqa: BLE001 - Java's, of a plan that we do not know
            logger.info("the plan of query %s cannot be read: %s", event.id, error)
            return
        groups = [
            None if each is None or each["groupId"] is None else SourceGroup(each)
            for each in options
        ]
        if any(groups):
            self._groups[str(event.runId)] = groups
        self.reports.started(str(event.runId), options)

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        groups = self._groups.get(str(progress.runId), [])
        if len(groups) == len(progress["sources"]):
            for group, source in zip(groups, progress["sources"], strict=True):
                done = _offsets(source["endOffset"])
                if group is not None and done:
                    group.commit(done)
        report = report_of(progress)
        self.show(report)
        self.reports.progressed(str(progress.id), str(progress.runId), report)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing was done."""

    def onQueryTerminated(self, event: Any) -> None:
        self.reports.ended(str(event.runId), event.exception)
        for group in self._groups.pop(str(event.runId), []):
            if group is not None:
                group.close()


class SourceGroup:
    """The group that one source of a query is shown under."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._access: LogAccess | None = None

    def commit(self, done: Offsets) -> None:
        """Everything below these offsets was processed. A failure is no failure of the query."""
        name = self._options["groupId"]
        try:
            if self._access is None:
                self._access = open_access(self._options)
            self._access.commit_offsets(name, done)
        except StrandlogError as error:
            logger.warning("progress could not be committed to group %r: %s", name, error)

    def close(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None


def _options_of_sources(spark: Any, query_id: str) -> list[Options | None]:
    """The options of each source, in the order of its reports; None for those of other kinds."""
    query = spark._jsparkSession.streams().get(query_id)
    leaves = query.streamingQuery().analyzedPlan().collectLeaves()
    relations = [leaves.apply(number) for number in range(leaves.length())]
    found: list[Options | None] = []
    known: list[Any] = []
    for relation in relations:
        kind = relation.getClass().getSimpleName()
        # One that is read twice is one source.
        if not kind.startswith("StreamingRelation") or any(relation.equals(each) for each in known):
            continue
        known.append(relation)
        is_ours = kind == "StreamingRelationV2" and relation.sourceName() == "strandlog"
        found.append(_stream_options(relation.extraOptions()) if is_ours else None)
    return found


def _stream_options(given: Any) -> Options:
    return parse_options(STREAM, dict(given.asCaseSensitiveMap()))


_watching: WeakKeyDictionary[Any, ProgressListener] = WeakKeyDictionary()


def ensure_watched(spark: SparkSession) -> None:
    """Listen to the queries of a session, unless `watch` does so already."""
    if _watching.get(spark) is None:
        watch(spark)


def watch(
    spark: SparkSession,
    show: Callable[[QueryReport], None] = log_report,
    report: str | None = None,
) -> ProgressListener:
    """Listen to the queries of a session; once, whoever asks again changes where reports go.

    `report` is where brokers take reports (report_address.py), for those not told before.
    """
    if report is not None:
        parse_report(report)
    listener = _watching.get(spark)
    if listener is None:
        listener = ProgressListener(spark, show, report)
        spark.streams.addListener(listener)
        _watching[spark] = listener
    listener.show = show
    if report is not None:
        listener.reports.report = report
    return listener
