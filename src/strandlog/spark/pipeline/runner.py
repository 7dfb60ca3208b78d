"""Runs a pipeline: starts its queries, reports their progress and stops them.

    run("flights.toml", on_progress=print)               blocks until it ends, Ctrl-C or SIGTERM

    with start("flights.toml", on_progress=print) as running:
        …                                                the pipeline runs in the background
        running.stop()                                   implicit at the end of the block

    starting ──▶ running ◀──▶ scheduled      between the rounds of a pipeline with `every`
                                             (schedule.py)

    from any of these:
        ──▶ stopped      by stop() or a signal, or because all queries have ended, for example when
                         available_now has read everything
        ──▶ failed       Spark, a query or a callback raised an error; all queries are stopped

`start` returns when every query has started its first micro-batch, is waiting for data or has ended
(or is too slow, see spark/starting.py). From then on, a single background thread interacts with
Spark: it calls `on_progress` once for each micro-batch, stops the queries, and stops the Spark
session if `start` created it. Queries get time to finish their current micro-batch before they are
stopped.

Exiting the program without `stop` has the same effect as a crash: the next run repeats the
unfinished micro-batch, and targets that already have it do not get it twice (targets/target.py).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from strandlog.client.http.login import HttpLogin
from strandlog.clock import SystemClock
from strandlog.errors import PipelineError
from strandlog.spark.monitoring.report_address import address_finder
from strandlog.spark.monitoring.reporter import Reporter
from strandlog.spark.options import client_options
from strandlog.spark.pipeline.file import Analysis, load, read_file
from strandlog.spark.pipeline.model import Pipeline, check_pipeline_name
from strandlog.spark.pipeline.schedule import next_run_ms
from strandlog.spark.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.monitoring.progress import QueryReport
    from strandlog.spark.pipeline.queries import PipelineQueries

OnProgress = Callable[["QueryReport"], object]
OnSession = Callable[["RunningPipeline"], object]
OnWait = Callable[[int], object]

POLL_SECONDS = 0.5
STOP_PATIENCE_MS = 15_000
CLOCK_CHECK_SECONDS = 30.0  # recheck interval while waiting, because the clock may be changed
VALIDATION_MASTER = "local[1]"
VALIDATION_CONF = {"spark.ui.enabled": "false"}


def start(
    pipeline: Pipeline | str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    on_session: OnSession | None = None,
    on_wait: OnWait | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    available_now: bool = False,
    report: str | None = None,
    log: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> RunningPipeline:
    """Start a pipeline, or the pipeline in a file, and return when its queries are running.

    `spark` is the session to use. The default is the active session or, if there is none, a new one
    on `master` with `conf`; a new session writes its log to `log` (default: stderr) and is stopped
    with the pipeline. With `available_now`, the pipeline ends when it has processed the data that
    exists now, even if it has `every`. `report` overrides the pipeline's own `report`. `on_session`
    is called when the session is ready, before the first query starts. `on_wait` is called after
    each round of a scheduled pipeline, with the time of the next one in ms since the epoch. `check`
    is called while queries start; it may raise an error to cancel the start.

    Raise `ConfigurationError` for an error in the pipeline, even if only Spark detects it, and
    `PipelineError` if Spark does not start.
    """
    wanted = pipeline if isinstance(pipeline, Pipeline) else load(pipeline)
    check_pipeline_name(wanted.name)
    wanted.check_log()
    if report is not None:
        wanted = replace(wanted, report=report)
    reporter = _reporter(wanted)
    try:
        opened = open_session(f"strandlog {wanted.name}", spark, master, conf, log)
    except BaseException as error:
        reporter.end(*_last_state(error))
        raise
    running = RunningPipeline(wanted, opened.spark, reporter, owns_session=opened.is_own)
    running._begin(on_progress, on_session, on_wait, check, available_now=available_now)
    return running


def run(
    pipeline: Pipeline | str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    on_session: OnSession | None = None,
    on_start: Callable[[], object] | None = None,
    on_stop: Callable[[], object] | None = None,
    **options: Any,
) -> None:
    """Run a pipeline until it ends; `options` are passed to `start`.

    `on_start` is called when all queries are running. Ctrl-C and SIGTERM stop the queries, and this
    function returns normally; `on_stop` is called after such a signal, before the queries are
    stopped. A query that fails raises `PipelineError`.
    """
    signals = StopSignals(on_stop)
    running: RunningPipeline | None = None

    def begin(starting: RunningPipeline) -> None:
        signals.install()  # only now, to replace the handler that Spark installs
        if on_session is not None:
            on_session(starting)

    try:
        running = start(pipeline, on_progress, on_session=begin, check=signals.check, **options)
        if on_start is not None:
            on_start()
        while not running.wait(POLL_SECONDS):
            signals.check()
    except KeyboardInterrupt:
        if running is not None:
            running.stop()
    finally:
        signals.restore()


def validate(
    path: str | os.PathLike[str], spark: SparkSession | None = None, log: Path | None = None
) -> Analysis:
    """Return the problems of a file. Spark checks it only if it has no problems that can be found
    without Spark.

    `spark` is the session to use; the default is the active session or, if there is none, a new one
    that writes its log to `log` (default: stderr) and is stopped afterwards.
    """
    file = read_file(path)
    if file.pipeline is None:
        return Analysis(file.problems, [])
    opened = open_session("strandlog validate", spark, VALIDATION_MASTER, VALIDATION_CONF, log)
    try:
        from strandlog.spark.pipeline.analysis import analyze  # noqa: PLC0415 - needs Spark

        return analyze(file, opened.spark)
    finally:
        if opened.is_own:
            opened.spark.stop()


class RunningPipeline:
    """A pipeline that `start` has started."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, reporter: Reporter, *, owns_session: bool
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.latest: dict[str, QueryReport] = {}  # the last report of each query, by query name
        self.next_run_ms: int | None = None  # set while a pipeline waits for its next round
        self._reporter = reporter
        self._owns_session = owns_session
        self._stop_requested = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._starter: threading.Thread | None = None  # the thread that is in `start`
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the pipeline ends; return False if it is still running after the timeout.

        Raise `PipelineError` if a query has failed, or the exception that a callback raised.
        """
        has_ended = self._ended.wait(timeout_seconds)
        if has_ended and self._error is not None:
            raise self._error
        return has_ended

    def stop(self) -> None:
        """Stop the queries and wait until they have ended; raise the same errors as `wait`.

        When called from a callback, return without waiting.
        """
        self._stop_requested.set()
        if threading.current_thread() not in (self._starter, self._thread):
            self.wait()

    def __enter__(self) -> RunningPipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise  # otherwise, the error raised in the block takes precedence

    def _begin(
        self,
        on_progress: OnProgress | None,
        on_session: OnSession | None,
        on_wait: OnWait | None,
        check: Callable[[], None],
        *,
        available_now: bool,
    ) -> None:
        every_ms = None if available_now else self.pipeline.every_ms
        first_ms = SystemClock().now_ms()
        self._starter = threading.current_thread()
        try:
            self._reporter.set_state("running", ui_url=self.spark.sparkContext.uiWebUrl)
            if on_session is not None:
                on_session(self)
            self._check_not_stopped()
            queries = self._started(check, available_now=available_now or every_ms is not None)
        except _Stopped:
            self._close(None)
            return
        except BaseException as error:
            self._close(error)
            raise
        finally:
            self._starter = None

        def follow() -> None:
            if every_ms is None:
                self._follow(lambda: self._follow_round(queries, on_progress))
            else:
                rounds = _Rounds(first_ms, every_ms, on_wait)
                self._follow(lambda: self._follow_rounds(queries, on_progress, rounds))

        self._thread = threading.Thread(
            target=follow, name=f"strandlog-pipeline-{self.pipeline.name}", daemon=True
        )
        self._thread.start()

    def _started(self, check: Callable[[], None], *, available_now: bool) -> PipelineQueries:
        from strandlog.spark.pipeline.queries import PipelineQueries  # noqa: PLC0415 - needs Spark

        queries = PipelineQueries(self.spark, self.pipeline, check)
        queries.start(available_now=available_now)
        return queries

    # -- the background thread -----------------------------------------------------------------

    def _follow(self, run: Callable[[], None]) -> None:
        """Call `run`, then close the pipeline. Keep an error for `wait` to raise."""
        error: BaseException | None = None
        try:
            run()
        except _Stopped:
            pass
        except BaseException as raised:  # noqa: BLE001 - raised again by wait()
            error = raised
        self._close(error)

    def _follow_rounds(
        self, queries: PipelineQueries, on_progress: OnProgress | None, rounds: _Rounds
    ) -> None:
        while True:
            self._follow_round(queries, on_progress)
            self._wait_for_round(rounds)
            queries = self._started(self._check_not_stopped, available_now=True)

    def _wait_for_round(self, rounds: _Rounds) -> None:
        clock = SystemClock()
        due_ms = next_run_ms(rounds.first_ms, rounds.every_ms, clock.now_ms())
        self.next_run_ms = due_ms
        self._reporter.set_state("scheduled", next_run_ms=due_ms)
        if rounds.on_wait is not None:
            rounds.on_wait(due_ms)
        while (left_ms := due_ms - clock.now_ms()) > 0:
            self._stop_requested.wait(min(left_ms / 1000, CLOCK_CHECK_SECONDS))
            self._check_not_stopped()
        self.next_run_ms = None
        self._reporter.set_state("running")

    def _check_not_stopped(self) -> None:
        if self._stop_requested.is_set():
            raise _Stopped

    def _follow_round(self, queries: PipelineQueries, on_progress: OnProgress | None) -> None:
        """Report progress until the queries have ended or the pipeline is stopped."""
        try:
            self._deliver_until_end(queries, on_progress)
        except BaseException:
            queries.stop(STOP_PATIENCE_MS)
            raise
        queries.stop(STOP_PATIENCE_MS)
        self._deliver(queries, on_progress)  # for micro-batches that finished during stop()
        self._check_not_stopped()

    def _deliver_until_end(self, queries: PipelineQueries, on_progress: OnProgress | None) -> None:
        while not self._stop_requested.is_set():
            is_over = not queries.is_active  # checked first, so that the last report is not missed
            self._deliver(queries, on_progress)
            failure = queries.failure()
            if failure is not None:
                raise PipelineError(failure)
            if is_over:
                return
            self._stop_requested.wait(POLL_SECONDS)

    def _deliver(self, queries: PipelineQueries, on_progress: OnProgress | None) -> None:
        for report in queries.reports():
            self.latest[report.name] = report
            self._reporter.add(report)
            if on_progress is not None:
                on_progress(report)

    def _close(self, error: BaseException | None) -> None:
        self._error = error
        try:
            if self._owns_session:
                self.spark.stop()
            self._reporter.end(*_last_state(error))
        finally:
            self._ended.set()


class _Rounds(NamedTuple):
    """The schedule of a pipeline with `every`."""

    first_ms: int
    every_ms: int
    on_wait: OnWait | None


class _Stopped(Exception):  # noqa: N818 - not an error
    """`stop` was called."""


class StopSignals:
    """Records SIGINT and SIGTERM in a flag that is checked between calls into Spark.

    Spark's own handler for Ctrl-C cancels all jobs, which makes every query fail. An exception
    raised during a call into Java would leave its response unread, and the next call would read it.
    """

    def __init__(self, on_stop: Callable[[], object] | None = None) -> None:
        self._on_stop = on_stop
        self._has_come = False
        self._former: dict[int, Any] = {}

    def install(self) -> None:
        """Install handlers for both signals, if called from the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former.clear()

    def _handle(self, _number: int, _frame: object) -> None:
        self._has_come = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received."""
        if self._has_come:
            if self._on_stop is not None:
                self._on_stop()
            raise KeyboardInterrupt


def _reporter(pipeline: Pipeline) -> Reporter:
    client: Mapping[str, str] = {}
    if pipeline.bootstrap is not None:
        client = client_options(pipeline.bootstrap, pipeline.options)
    find = address_finder(pipeline.report, pipeline.bootstrap, client)
    return Reporter(pipeline.name, find, login=HttpLogin(client))


def _last_state(error: BaseException | None) -> tuple[Literal["stopped", "failed"], str | None]:
    if error is None or isinstance(error, KeyboardInterrupt):
        return "stopped", None
    return "failed", str(error)
