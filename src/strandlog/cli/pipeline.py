"""`strandlog pipeline`: Spark pipelines out of a TOML file.

    validate FILE    everything that is wrong with it, by line; exit code 1 when something is
    list FILE        its sources, views and sinks
    run FILE         on Spark, until Ctrl-C or, with --available-now, until everything is read

While it runs a line for each micro-batch goes to stderr, or to stdout as JSON with --json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandlog.cli.options import Json, command_app, settings_of
from strandlog.cli.output import counted, print_json, print_table, talk, text
from strandlog.clock import pause
from strandlog.errors import ConfigurationError
from strandlog.spark.pipeline_file import Pipeline, PipelineFile, Problem

if TYPE_CHECKING:
    from strandlog.spark.pipeline_run import PipelineRun
    from strandlog.spark.progress import QueryReport

app = command_app("Run, validate and list Spark pipelines.")

LOOK_SECONDS = 0.5
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
    rows = [["source", each.name, f"topic {each.topic}", each.format] for each in pipeline.sources]
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
    master: Annotated[
        str | None, typer.Option(help="Where Spark runs: local[*], spark://HOST:PORT, …")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read what is there, then stop.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a pipeline on Spark."""
    pipeline = _pipeline(file)
    from strandlog.spark.pipeline_run import PipelineRun  # noqa: PLC0415 - needs Spark
    from strandlog.spark.session import session  # noqa: PLC0415 - needs Spark

    settings = {name: value or "" for name, value in settings_of(conf or [], "--conf").items()}
    spark = session(master, settings, app_name=f"strandlog {pipeline.name}")
    spark.sparkContext.setLogLevel("ERROR")
    running = PipelineRun(spark, pipeline)
    try:
        running.start(available_now=available_now)
        talk(f"{pipeline.name}: {counted(len(running.queries), 'stream')}; Ctrl-C stops")
        _watch(running, as_json=json)
    except KeyboardInterrupt:
        talk("stopping")
    finally:
        running.stop()
        failure = running.failure()
        spark.stop()
    if failure is not None:
        sys.stderr.write(f"error: {failure}\n")
        raise typer.Exit(1)


def _watch(running: PipelineRun, *, as_json: bool) -> None:
    """Show each micro-batch once, until all queries have ended or one failed."""
    shown: dict[str, int] = {}
    while True:
        is_over = not running.is_active
        for report in running.reports():
            if shown.get(report.name) != report.batch_id and report.rows:
                shown[report.name] = report.batch_id
                _show(report, as_json=as_json)
        if is_over or running.failure() is not None:
            return
        pause(LOOK_SECONDS)


def _show(report: QueryReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report._asdict())
        sys.stdout.flush()
        return
    lag = "" if report.lag is None else f"  lag {report.lag:,}"
    state = f"  state {report.state_rows:,}" if report.state_rows else ""
    talk(
        f"{report.name}: batch {report.batch_id}  {report.rows:,} rows  "
        f"{report.rows_per_second:,.0f} rows/s  {report.batch_ms:,} ms{lag}{state}"
    )
