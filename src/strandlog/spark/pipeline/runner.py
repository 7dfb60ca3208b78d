"""Runs a pipeline: starts its queries, reports their progress and stops them.

    run("flights.toml", on_progress=print)               blocks until it ends, Ctrl-C or SIGTERM

    with start("flights.toml", on_progress=print) as running:
        …                                                the pipeline runs in the background
        running.stop()                                   implicit at the end of the block

    starting ──▶ running ──▶ stopped     by stop(), a signal, or available_now with everything read
        └───────────┴──────▶ failed      a query or `on_progress` raised; all queries are stopped

`start` returns when every query has started its first micro-batch or is waiting for data. From
then on, a single background thread interacts with Spark: it calls `on_progress` once for each
micro-batch, stops the queries, and stops the Spark session if `start` created it. Queries get time
to finish their current micro-batch before they are stopped.

Exiting the program without `stop` has the same effect as a crash: the next run repeats the
unfinished micro-batch, and its rows are written only once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from strandlog.client.http.login import HttpLogin
from strandlog.errors import ConfigurationError, MissingExtraError, PipelineError
from strandlog.spark.monitoring.report_address import OFF, address_finder
from strandlog.spark.monitoring.reporter import Reporter
from strandlog.spark.options import client_options
from strandlog.spark.pipeline.file import PipelineFile
from strandlog.spark.pipeline.model import Pipeline, check_pipeline_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandlog.spark.monitoring.progress import QueryReport
    from strandlog.spark.pipeline.queries import PipelineQueries

OnProgress = Callable[["QueryReport"], object]
OnSession = Callable[["RunningPipeline"], object]

POLL_SECONDS = 0.5
STOP_PATIENCE_MS = 15_000


def load(path: str | os.PathLike[str]) -> Pipeline:
    """Load a pipeline file; if it has problems, raise a `ConfigurationError` that lists them."""
    read = read_file(path)
    if read.pipeline is None:
        raise ConfigurationError([f"{path}:{each.line}: {each.text}" for each in read.problems])
    return read.pipeline


def read_file(path: str | os.PathLike[str]) -> PipelineFile:
    """Read a pipeline file and return it with its problems."""
    try:
        return PipelineFile(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"cannot read {path}: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path} is not UTF-8 text"]) from None


def start(
    pipeline: Pipeline | str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    on_session: OnSession | None = None,
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
    exists now. `report` overrides the pipeline's own `report`. `on_session` is called when the
    session is ready, before the first query starts. `check` is called while queries start; it may
    raise to cancel the start.

    Raise `ConfigurationError` for an error in the pipeline, even if only Spark detects it, and
    `PipelineError` if Spark does not start.
    """
    wanted = pipeline if isinstance(pipeline, Pipeline) else load(pipeline)
    check_pipeline_name(wanted.name)
    if report is not None:
        wanted = replace(wanted, report=report)
    reporter = _reporter(wanted)
    try:
        running = _open(wanted, spark, master, conf, log, reporter)
    except BaseException as error:
        reporter.end(*_last_state(error))
        raise
    running._begin(on_progress, on_session, check, available_now=available_now)
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


class RunningPipeline:
    """A pipeline that `start` has started."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, reporter: Reporter, *, owns_session: bool
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.latest: dict[str, QueryReport] = {}  # the last report of each query, by query name
        self._reporter = reporter
        self._owns_session = owns_session
        self._stop_requested = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the pipeline ends; return False if it is still running after the time-out.

        Raise `PipelineError` if a query has failed, or the exception that `on_progress` raised.
        """
        has_ended = self._ended.wait(timeout_seconds)
        if has_ended and self._error is not None:
            raise self._error
        return has_ended

    def stop(self) -> None:
        """Stop the queries and wait until they have ended; raise the same errors as `wait`.

        When called from `on_progress`, return without waiting.
        """
        self._stop_requested.set()
        if threading.current_thread() is not self._thread:
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
        check: Callable[[], None],
        *,
        available_now: bool,
    ) -> None:
        from strandlog.spark.pipeline.queries import PipelineQueries  # noqa: PLC0415 - needs Spark

        try:
            self._reporter.set_state("running", ui_url=self.spark.sparkContext.uiWebUrl)
            if on_session is not None:
                on_session(self)
            queries = PipelineQueries(self.spark, self.pipeline, check)
            queries.start(available_now=available_now)
        except BaseException as error:
            self._close(error)
            raise
        self._thread = threading.Thread(
            target=self._follow,
            args=(queries, on_progress),
            name=f"strandlog-pipeline-{self.pipeline.name}",
            daemon=True,
        )
        self._thread.start()

    def _follow(self, queries: PipelineQueries, on_progress: OnProgress | None) -> None:
        """Report progress until the pipeline ends. Runs on the background thread."""
        error: BaseException | None = None
        try:
            self._deliver_until_end(queries, on_progress)
        except BaseException as raised:  # noqa: BLE001 - raised again by wait()
            error = raised
        queries.stop(STOP_PATIENCE_MS)
        try:
            if error is None:
                self._deliver(queries, on_progress)  # for micro-batches that finished during stop()
        except BaseException as raised:  # noqa: BLE001 - raised again by wait()
            error = raised
        self._close(error)

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


@contextmanager
def spark_log(path: Path | None, name: str) -> Iterator[Path]:
    """Yield a file for Spark's log: `path`, or a temporary file that is kept only after an error.

    The path of the log is added to the error as a note.
    """
    file = path
    if file is None:
        handle, temporary = tempfile.mkstemp(prefix=f"strandlog-{name}-", suffix=".log")
        os.close(handle)
        file = Path(temporary)
    is_kept = path is not None
    try:
        yield file
    except Exception as error:
        if file.exists() and file.stat().st_size:
            is_kept = True
            error.add_note(f"Spark's log: {file}")
        raise
    finally:
        if not is_kept:
            file.unlink(missing_ok=True)


def _open(
    pipeline: Pipeline,
    spark: SparkSession | None,
    master: str | None,
    conf: Mapping[str, str] | None,
    log: Path | None,
    reporter: Reporter,
) -> RunningPipeline:
    """Return a pipeline with its session, without starting any query."""
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession as Session  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("spark", error.name or "pyspark") from error
    from strandlog.spark.errors import one_line  # noqa: PLC0415 - needs Spark, like the next two
    from strandlog.spark.monitoring.progress import ensure_watched  # noqa: PLC0415
    from strandlog.spark.session import register, session  # noqa: PLC0415

    # py4j logs an error for each query that is stopped during a micro-batch.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    found = spark or Session.getActiveSession()
    if found is not None:
        register(found)
        ensure_watched(found)
        return RunningPipeline(pipeline, found, reporter, owns_session=False)
    try:
        with nullcontext() if log is None else _stderr_to(log):
            # The pipeline reports its queries itself; the session would report them as its own.
            found = session(
                master, conf, app_name=f"strandlog {pipeline.name}", quiet=True, report=OFF
            )
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"cannot start Spark: {one_line(error)}") from error
    return RunningPipeline(pipeline, found, reporter, owns_session=True)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the stderr of processes started inside the block to a file, until they exit."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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
