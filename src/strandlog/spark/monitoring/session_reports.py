"""Reports the queries of one Spark application to the brokers that they read from and write to.

In a broker's console, the application appears as a pipeline with the application's name. The
pipeline lists the queries that use this broker (`bootstrap.servers`) as a source or sink. A query
without a broker, such as one that only reads a folder, is not listed.

    running    queries are running, and none has failed since the last one started
    failed     a query has failed since the last one started
    stopped    all queries have ended without a failure, or the session was stopped, or the program
               has ended

The sources of a query are known when it starts (progress.py). Its sink is in the execution plan,
which exists from the first micro-batch on, so a query that uses a broker only as its sink is listed
after its first micro-batch. Sinks inside foreachBatch are not visible.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from strandlog.client.http.login import HttpLogin
from strandlog.spark.errors import one_line
from strandlog.spark.monitoring.report_address import address_finder
from strandlog.spark.monitoring.reporter import Reporter, State
from strandlog.spark.options import SINK, Options, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.monitoring.progress import QueryReport

logger = logging.getLogger(__name__)


@dataclass
class _Broker:
    """A broker that receives reports from this session."""

    reporter: Reporter
    active: set[str] = field(default_factory=set)  # ids of the query runs that use this broker
    error: str | None = None

    @property
    def final_state(self) -> tuple[State, str | None]:
        return ("stopped", None) if self.error is None else ("failed", self.error)


class SessionReports:
    """Sends the reports of one session to its brokers."""

    def __init__(self, spark: SparkSession, report: str | None = None) -> None:
        """`report` is an address or "off"; None selects the address that each broker announces."""
        self._session = ref(spark)
        self.report = report
        # Spark calls `started` on the thread that starts a query, and the other methods on a
        # listener thread.
        self._lock = threading.Lock()
        self._brokers: dict[str, _Broker] = {}  # by bootstrap.servers
        self._runs: dict[str, list[str]] = {}  # the brokers of each run
        self._seen: set[str] = set()  # runs whose sink was looked up

    def started(self, run_id: str, sources: Iterable[Options | None]) -> None:
        """Register a query that has started. `sources` contains the options of each source, or None
        for a source of another format."""
        with self._lock:
            self._runs[run_id] = []
            for options in sources:
                self._join(run_id, options)

    def progressed(self, query_id: str, run_id: str, report: QueryReport) -> None:
        """Report that a query has completed a micro-batch."""
        if run_id not in self._runs:
            return  # the query's plan could not be read
        sink = None if run_id in self._seen else self._sink(query_id)
        with self._lock:
            self._seen.add(run_id)
            self._join(run_id, sink)
            for bootstrap in self._runs[run_id]:
                self._brokers[bootstrap].reporter.add(report)

    def _sink(self, query_id: str) -> Options | None:
        try:
            return _options_of_sink(self._session(), query_id)
        except Exception as error:  # noqa: BLE001 - from Java: a plan of unknown shape
            logger.info("cannot read the sink of query %s: %s", query_id, error)
            return None

    def ended(self, run_id: str, exception: str | None) -> None:
        """Report that a query has ended; `exception` is set if it failed."""
        with self._lock:
            self._seen.discard(run_id)
            for bootstrap in self._runs.pop(run_id, []):
                broker = self._brokers[bootstrap]
                broker.active.discard(run_id)
                if exception is not None:
                    broker.error = one_line(RuntimeError(exception))
                if broker.error is not None or not broker.active:
                    broker.reporter.set_state(*broker.final_state)

    def _join(self, run_id: str, options: Options | None) -> None:
        """Add the broker named in these options, if any, to a run."""
        bootstrap = None if options is None else options["bootstrap.servers"]
        if options is None or bootstrap is None or bootstrap in self._runs[run_id]:
            return
        spark = self._session()
        if spark is None:
            return
        broker = self._brokers.get(bootstrap)
        if broker is None:
            broker = self._brokers[bootstrap] = _Broker(self._reporter(spark, bootstrap, options))
            atexit.register(_end, broker)
        self._runs[run_id].append(bootstrap)
        broker.active.add(run_id)
        broker.error = None
        broker.reporter.set_state("running", ui_url=spark.sparkContext.uiWebUrl)

    def _reporter(self, spark: SparkSession, bootstrap: str, options: Options) -> Reporter:
        context: Any = spark.sparkContext
        find = address_finder(self.report, bootstrap, options.client)
        # A stopped context no longer has a Java object.
        return Reporter(
            context.appName, find, lambda: context._jsc is not None, HttpLogin(options.client)
        )


def _end(broker: _Broker) -> None:
    """Report how the application ended: a query that failed before is not just stopped."""
    broker.reporter.end(*broker.final_state)


def _options_of_sink(spark: Any, query_id: str) -> Options | None:
    """Return the options of a query's sink, or None if its format is not strandlog or the query has
    already ended."""
    query = spark._jsparkSession.streams().get(query_id)
    if query is None:
        return None  # the query has already ended
    plan = query.streamingQuery().logicalPlan()
    if plan.getClass().getSimpleName() != "WriteToMicroBatchDataSource":
        return None
    if query.streamingQuery().sink().name() != "strandlog":
        return None
    given = plan.writeOptions()
    names = given.keys().toSeq()
    found = [names.apply(number) for number in range(names.length())]
    return parse_options(SINK, {name: given.apply(name) for name in found})
