"""Query listener: reports micro-batches and commits their offsets to groups.

    watch(spark)                    commit progress, log reports and send them to brokers;
                                    session() does this
    watch(spark, print_report)      print reports to stderr, one line each
    watch(spark, report="off")      send no reports to brokers

After each micro-batch, Spark passes the offsets of each source to its listeners. If a strandlog
source has a `groupId`, the listener commits the offsets to this group, so that the group has no lag
when a bounded run has finished. The source itself also commits, when the next micro-batch is
planned (reader.py), because a session may have no listener. The progress of a query is reported to
the brokers that it uses (session_reports.py).

Spark does not pass the options of a source to listeners. The listener reads them from the query's
plan when the query starts; Spark waits for it. If the plan has an unknown shape, or cannot be
accessed (Spark Connect), only the source commits, and brokers get no reports.

When Python exits without `spark.stop()`, the listener receives the events that Spark has already
posted and is then removed, because Java outlives Python and would report that it cannot call it.
Running queries are not stopped: Java ends them with itself, as in a crash.
"""

from __future__ import annotations

import atexit
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
from strandlog.spark.offsets import Offsets, from_document
from strandlog.spark.options import STREAM, Options, parse_options
from strandlog.spark.source.access import open_access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.source.access import LogAccess

logger = logging.getLogger(__name__)
EXIT_WAIT_MS = 5_000  # for events that Spark has posted, when Python exits


class QueryReport(NamedTuple):
    """The progress of one query after a micro-batch."""

    name: str
    batch_id: int
    rows: int
    rows_per_second: float
    batch_ms: int
    lag: int | None  # records that have not been processed yet; None if unknown
    state_rows: int
    late_rows: int  # rows dropped because they are behind the watermark
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
    """Summarize Spark's progress report on a micro-batch."""
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
    """Return a source's offsets, or None if they are not in the format of offsets.py."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return from_document(json.loads(text))
    return None


def log_report(report: QueryReport) -> None:
    logger.info("%s", report)


def print_report(report: QueryReport) -> None:
    sys.stderr.write(f"{report}\n")


class ProgressListener(StreamingQueryListener):
    """Shows, reports and commits the progress of each micro-batch."""

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
        except Exception as error:  # noqa: BLE001 - from Java: a plan of unknown shape
            logger.info("cannot read the plan of query %s: %s", event.id, error)
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
        """Do nothing: an idle query has no progress to report."""

    def onQueryTerminated(self, event: Any) -> None:
        self.reports.ended(str(event.runId), event.exception)
        for group in self._groups.pop(str(event.runId), []):
            if group is not None:
                group.close()


class SourceGroup:
    """Commits the progress of one source of a query to its group."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._access: LogAccess | None = None

    def commit(self, done: Offsets) -> None:
        """Commit the end offsets of a micro-batch; a failure is only logged."""
        name = self._options["groupId"]
        try:
            if self._access is None:
                self._access = open_access(self._options)
            self._access.commit_offsets(name, done)
        except StrandlogError as error:
            logger.warning("cannot commit progress to group %r: %s", name, error)

    def close(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None


def _options_of_sources(spark: Any, query_id: str) -> list[Options | None]:
    """Return the options of each source, in the order of Spark's progress reports, with None for
    sources of other formats."""
    query = spark._jsparkSession.streams().get(query_id)
    leaves = query.streamingQuery().analyzedPlan().collectLeaves()
    relations = [leaves.apply(number) for number in range(leaves.length())]
    found: list[Options | None] = []
    known: list[Any] = []
    for relation in relations:
        kind = relation.getClass().getSimpleName()
        # A relation that is read twice counts as one source.
        if not kind.startswith("StreamingRelation") or any(relation.equals(each) for each in known):
            continue
        known.append(relation)
        is_ours = kind == "StreamingRelationV2" and relation.sourceName() == "strandlog"
        found.append(_stream_options(relation.extraOptions()) if is_ours else None)
    return found


def _stream_options(given: Any) -> Options:
    return parse_options(STREAM, dict(given.asCaseSensitiveMap()))


_listeners: WeakKeyDictionary[Any, ProgressListener] = WeakKeyDictionary()


def ensure_watched(spark: SparkSession) -> None:
    """Add a listener to a session, unless it already has one."""
    if _listeners.get(spark) is None:
        watch(spark)


def watch(
    spark: SparkSession,
    show: Callable[[QueryReport], None] = log_report,
    report: str | None = None,
) -> ProgressListener:
    """Add a listener to a session, or change `show` and `report` of its listener.

    `report` overrides the address for reports (report_address.py) to brokers that no query of the
    session has used yet; None does not change it.
    """
    if report is not None:
        parse_report(report)
    listener = _listeners.get(spark)
    if listener is None:
        listener = ProgressListener(spark, show, report)
        spark.streams.addListener(listener)
        atexit.register(_remove_at_exit, spark, listener)
        _listeners[spark] = listener
    listener.show = show
    if report is not None:
        listener.reports.report = report
    return listener


def _remove_at_exit(spark: SparkSession, listener: ProgressListener) -> None:
    """Let the listener receive the events that Spark has posted, and remove it."""
    context: Any = getattr(spark, "_sc", None)  # None over Spark Connect, which has no Java here
    if context is None or context._jsc is None:  # stopped
        return
    try:
        events = context._jsc.sc().listenerBus()
        with contextlib.suppress(Exception):  # too many events, or a listener waits for a broker
            events.waitUntilEmpty(EXIT_WAIT_MS)
        spark.streams.removeListener(listener)
        events.waitUntilEmpty(EXIT_WAIT_MS)  # a call may have begun before the removal
    except Exception as error:  # noqa: BLE001 - Java may have ended before Python
        logger.debug("cannot remove the listener: %s", error)
