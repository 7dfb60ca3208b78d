"""The queries of a session, told to the brokers that they read from and write to.

In a broker's console a Spark application is a pipeline under the application's name. It has the
queries that use this broker (`bootstrap.servers`), as source or as sink; those that read files, and
those that have nothing to do with strandlog, are not told of.

    running    queries are at work, or may be
    failed     one has failed, and none was started since
    stopped    all have ended, or the session has, or the program

What a query reads from is known when it starts (`progress.py`). What it writes to can be seen in
its plan as soon as that was made, which is at its first micro-batch: a query that only writes is
told of from then on. Sinks inside foreachBatch are nobody's to see.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from strandlog.spark.errors import one_line
from strandlog.spark.monitoring.report_address import address_finder
from strandlog.spark.monitoring.reporter import Reporter
from strandlog.spark.options import SINK, Options, parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.monitoring.progress import QueryReport

logger = logging.getLogger(__name__)


@dataclass
class _Told:
    """A broker that is told of this session."""

    reporter: Reporter
    active: set[str] = field(default_factory=set)  # runs
    error: str | None = None


class SessionReports:
    """What brokers hear of one session."""

    def __init__(self, spark: SparkSession, report: str | None = None) -> None:
        """`report` is an address, or "off"; None has each broker say where it listens."""
        self._session = ref(spark)
        self.report = report
        # Spark tells of starts in the thread that starts a query, and of the rest in its own.
        self._lock = threading.Lock()
        self._brokers: dict[str, _Told] = {}  # by bootstrap.servers
        self._runs: dict[str, list[str]] = {}  # which brokers a run uses
        self._seen: set[str] = set()  # runs whose sink was looked for

    def started(self, run_id: str, sources: Iterable[Options | None]) -> None:
        """A query starts that reads from these; None for sources of other kinds."""
        with self._lock:
            self._runs[run_id] = []
            for options in sources:
                self._join(run_id, options)

    def progressed(self, query_id: str, run_id: str, report: QueryReport) -> None:
        """A query did a micro-batch."""
        if run_id not in self._runs:
            return  # its plan could not be read
        sink = None if run_id in self._seen else self._sink(query_id)
        with self._lock:
            self._seen.add(run_id)
            self._join(run_id, sink)
            for bootstrap in self._runs[run_id]:
                self._brokers[bootstrap].reporter.tell(report)

    def _sink(self, query_id: str) -> Options | None:
        try:
            return _options_of_sink(self._session(), query_id)
        except Exception as error:  # noqa: BLE001 - Java's, of a plan that we do not know
            logger.info("the sink of query %s cannot be seen: %s", query_id, error)
            return None

    def ended(self, run_id: str, exception: str | None) -> None:
        """A query has ended; of itself, or because of this."""
        with self._lock:
            self._seen.discard(run_id)
            for bootstrap in self._runs.pop(run_id, []):
                broker = self._brokers[bootstrap]
                broker.active.discard(run_id)
                if exception is not None:
                    broker.error = one_line(RuntimeError(exception))
                if broker.error is not None:
                    broker.reporter.say("failed", broker.error)
                elif not broker.active:
                    broker.reporter.say("stopped")

    def _join(self, run_id: str, options: Options | None) -> None:
        """A run uses the broker that these options name, if they name one."""
        bootstrap = None if options is None else options["bootstrap.servers"]
        if options is None or bootstrap is None or bootstrap in self._runs[run_id]:
            return
        spark = self._session()
        if spark is None:
            return
        broker = self._brokers.get(bootstrap)
        if broker is None:
            broker = self._brokers[bootstrap] = _Told(self._reporter(spark, bootstrap, options))
        self._runs[run_id].append(bootstrap)
        broker.active.add(run_id)
        broker.error = None
        broker.reporter.say("running", ui_url=spark.sparkContext.uiWebUrl)

    def _reporter(self, spark: SparkSession, bootstrap: str, options: Options) -> Reporter:
        context: Any = spark.sparkContext
        find = address_finder(self.report, bootstrap, options.client)
        # A context that was stopped has lost its Java.
        reporter = Reporter(context.appName, find, lambda: context._jsc is not None)
        atexit.register(reporter.end, "stopped")
        return reporter


def _options_of_sink(spark: Any, query_id: str) -> Options | None:
    """The options of a query's sink, if it is ours."""
    query = spark._jsparkSession.streams().get(query_id)
    if query is None:
        return None  # it was quicker
    plan = query.streamingQuery().logicalPlan()
    if plan.getClass().getSimpleName() != "WriteToMicroBatchDataSource":
        return None
    if query.streamingQuery().sink().name() != "strandlog":
        return None
    given = plan.writeOptions()
    names = given.keys().toSeq()
    found = [names.apply(number) for number in range(names.length())]
    return parse_options(SINK, {name: given.apply(name) for name in found})
