"""`strandlog pipeline`: Spark pipelines out of a TOML file.

    validate FILE    everything that is wrong with it, by line; exit code 1 when something is
    list FILE        its sources, views and sinks
    run FILE         on Spark, until Ctrl-C or, with --available-now, until everything is read

While it runs a terminal shows one line for each query, kept up to date. In a pipe there is a line
for each micro-batch, on stderr, or on stdout as JSON with --json.

Ctrl-C and SIGTERM stop the queries after what they are at, and that is no failure: exit code 0.
When a query fails, one line says why, and all are stopped: exit code 1.

The run reports its progress to a broker with an HTTP listener, for its console
(spark/monitoring/reporter.py).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandlog.cli.formats.pipeline_table import QueryTable, can_show_live, live_table
from strandlog.cli.options import Json, command_app, settings_of
from strandlog.cli.output import counted, print_json, print_table, talk, text
from strandlog.clock import pause
from strandlog.errors import ConfigurationError, MissingExtraError
from strandlog.spark.monitoring.report_address import OFF, address_finder
from strandlog.spark.monitoring.reporter import Reporter
from strandlog.spark.options import client_options
from strandlog.spark.pipeline.file import PipelineFile, Problem
from strandlog.spark.pipeline.model import Pipeline

if TYPE_CHECKING:
    from strandlog.spark.monitoring.progress import QueryReport
    from strandlog.spark.pipeline.queries import PipelineQueries

app = command_app("Run, validate and list Spark pipelines.")

LOOK_SECONDS = 0.5
STOP_PATIENCE_MS = 15_000
File = Annotated[Path, typer.Argument(help="The pipeline, as TOML.", dir_okay=False)]


def _read(path: Path) -> PipelineFile:
    try:
        return PipelineFile(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"{path} cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path} is not UTF-8 text"]) from None


def _told(path: Path, problem: Problem) -> str:
    return f"{path}:{problem.line}: {problem.text}"


def _pipeline(path: Path) -> Pipeline:
    read = _read(path)
    if read.pipeline is None:
        raise ConfigurationError([_told(path, problem) for problem in read.problems])
    return read.pipeline


@app.command()
def validate(file: File, json: Json = False) -> None:
    """Tell what is wrong with a pipeline, without Spark."""
    read = _read(file)
    if json:
        print_json({"problems": [problem._asdict() for problem in read.problems]})
    else:
        for problem in read.problems:
            sys.stdout.write(_told(file, problem) + "\n")
        talk(counted(len(read.problems), "problem"))
    if read.problems:
        raise typer.Exit(1)


@app.command(name="list")
def list_(file: File, json: Json = False) -> None:
    """Show the sources, views and sinks of a pipeline."""
    pipeline = _pipeline(file)
    rows = [
        [
            "source",
            each.name,
            f"topic {each.topic}",
            f"{each.format}, static" if each.is_static else each.format,
        ]
        for each in pipeline.sources
    ]
    rows += [["view", each.name, "", " ".join(each.sql.split())] for each in pipeline.views]
    rows += [
        ["sink", each.name, f"{each.kind} {each.target}".strip(), f"{each.view}, {each.mode}"]
        for each in pipeline.sinks
    ]
    if json:
        names = ("kind", "name", "place", "detail")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table([text("KIND"), text("NAME"), text("PLACE"), text("DETAIL")], rows)


@app.command()
def run(
    file: File,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "-b", "--bootstrap", metavar="HOST:PORT", help="Another broker than the file's."
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*], spark://HOST:PORT, …")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read what is there, then stop.")
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Who is told how it is doing, or off; the file's, else the broker's HTTP door.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Where Spark's own log goes; nowhere, unless it fails.")
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline on Spark."""
    pipeline = _pipeline(file)
    if bootstrap is not None:
        pipeline = replace(pipeline, bootstrap=bootstrap, data=None)
    if report is not None:
        pipeline = replace(pipeline, report=report)
    settings = {name: value or "" for name, value in settings_of(conf or [], "--conf").items()}
    place = log or Path(tempfile.gettempdir()) / f"strandlog-{pipeline.name}-{os.getpid()}.log"
    reporter = _reporter(pipeline)
    failure = None
    try:
        failure = _run(pipeline, reporter, master, settings, place, available_now, json)
    except KeyboardInterrupt:
        talk("stopped")
    except Exception as error:
        reporter.end("failed", str(error))
        raise
    finally:
        if log is None and failure is None:
            place.unlink(missing_ok=True)
    reporter.end("stopped" if failure is None else "failed", failure)
    if failure is not None:
        sys.stderr.write(f"error: {failure} (Spark's log: {place})\n")
        raise typer.Exit(1)


def _run(
    pipeline: Pipeline,
    reporter: Reporter,
    master: str | None,
    settings: dict[str, str],
    log: Path,
    available_now: bool,
    as_json: bool,
) -> str | None:
    """Run it to its end; returns why it failed, or None."""
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("spark", error.name or "pyspark") from error
    from strandlog.spark.errors import one_line  # noqa: PLC0415 - needs Spark, as the next two
    from strandlog.spark.pipeline.queries import PipelineQueries  # noqa: PLC0415
    from strandlog.spark.session import session  # noqa: PLC0415

    # A query that is stopped in the middle of a batch is told of by py4j, too.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    name = f"strandlog {pipeline.name}"
    try:
        with stderr_in(log):
            # We tell of its queries; the session would do so under another name.
            spark = session(master, settings, app_name=name, quiet=True, report=OFF)
    except (PySparkException, Py4JError) as error:
        return f"Spark does not start: {one_line(error)}"
    stop = StopSwitch()
    ui_url = spark.sparkContext.uiWebUrl
    talk(f"Spark {spark.version}: {ui_url}")
    reporter.say("running", ui_url=ui_url)
    running = PipelineQueries(spark, pipeline, stop.check)
    try:
        running.start(available_now=available_now)
        talk(f"{pipeline.name}: {counted(len(running.queries), 'stream')}; Ctrl-C stops")
        _watch(running, stop, reporter, as_json=as_json)
        return running.failure()
    except KeyboardInterrupt:
        talk("stopping")
        return None
    finally:
        running.stop(STOP_PATIENCE_MS)
        spark.stop()


def _reporter(pipeline: Pipeline) -> Reporter:
    """What tells the broker, or whoever is named, how the pipeline is doing."""
    client: Mapping[str, str] = {}
    if pipeline.bootstrap is not None:
        client = client_options(pipeline.bootstrap, pipeline.options)
    return Reporter(pipeline.name, address_finder(pipeline.report, pipeline.bootstrap, client))


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """What is started meanwhile writes its stderr to a file, for as long as it lives."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class StopSwitch:
    """Ctrl-C and SIGTERM, to be looked at between two words with Spark.

    Spark's own answer to Ctrl-C is to cancel all jobs, and then every query has failed. An
    exception in the middle of a word with Java would leave the answer for whoever asks next.
    """

    def __init__(self) -> None:
        self._is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: object) -> None:
        self._is_asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a signal."""
        if self._is_asked:
            raise KeyboardInterrupt


def _watch(
    running: PipelineQueries, stop: StopSwitch, reporter: Reporter, *, as_json: bool
) -> None:
    """Show each micro-batch once, until all queries have ended or one failed."""
    if as_json or not can_show_live():
        _follow(running, stop, [_print_json if as_json else _print_line, reporter.tell])
        return
    table = QueryTable(query.name for query in running.queries)
    with live_table(table):
        _follow(running, stop, [table.add, reporter.tell])


def _follow(
    running: PipelineQueries, stop: StopSwitch, listeners: list[Callable[[QueryReport], None]]
) -> None:
    while True:
        is_over = not running.is_active  # asked first: what it told last is still to be shown
        for report in running.reports():
            for listener in listeners:
                listener(report)
        if is_over or running.failure() is not None:
            return
        stop.check()
        pause(LOOK_SECONDS)


def _print_json(report: QueryReport) -> None:
    print_json(report._asdict())
    sys.stdout.flush()


def _print_line(report: QueryReport) -> None:
    if report.rows:
        talk(str(report))
