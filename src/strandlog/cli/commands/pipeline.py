"""The `strandlog pipeline` command: validates, lists and runs Spark pipelines.

    validate FILE    print all problems in the file with line numbers; exit code 1 if any
    list FILE        print its sources, views and sinks
    run FILE         run it until Ctrl-C or, with --available-now, until all data is processed

On a terminal, `run` shows a live table of the queries. Otherwise it prints a line to stderr for
each micro-batch that has rows; with --json, it prints a JSON line to stdout for every micro-batch.
Ctrl-C and SIGTERM stop the pipeline with exit code 0. If a query fails, `run` prints the reason and
the path of Spark's log and exits with 1.

spark/pipeline/runner.py runs the pipeline; this module parses arguments and prints.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandlog.cli.formats.pipeline_table import QueryTable, can_show_live, live_table
from strandlog.cli.options import Json, command_app, settings_of
from strandlog.cli.output import counted, message, print_json, print_table, text
from strandlog.spark.pipeline.runner import RunningPipeline, load, read_file, spark_log
from strandlog.spark.pipeline.runner import run as run_pipeline

if TYPE_CHECKING:
    from strandlog.spark.monitoring.progress import QueryReport

app = command_app("Run, validate and list Spark pipelines.")

File = Annotated[Path, typer.Argument(help="Pipeline file (TOML).", dir_okay=False)]


@app.command()
def validate(file: File, json: Json = False) -> None:
    """Print all problems in a pipeline file, without starting Spark."""
    problems = read_file(file).problems
    if json:
        print_json({"problems": [problem._asdict() for problem in problems]})
    else:
        for problem in problems:
            sys.stdout.write(f"{file}:{problem.line}: {problem.text}\n")
        message(counted(len(problems), "problem"))
    if problems:
        raise typer.Exit(1)


@app.command(name="list")
def list_(file: File, json: Json = False) -> None:
    """List the sources, views and sinks of a pipeline."""
    pipeline = load(file)
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
        names = ("kind", "name", "target", "detail")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table([text("KIND"), text("NAME"), text("TARGET"), text("DETAIL")], rows)


@app.command()
def run(
    file: File,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "-b", "--bootstrap", metavar="HOST:PORT", help="Broker; overrides the pipeline file."
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master: local[*], spark://HOST:PORT, …")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting. Repeatable."),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the available data, then stop.")
    ] = False,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL for progress reports, or `off`; default: the URL in the file, or else the "
            "broker's HTTP listener.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="File for Spark's log; by default it is kept only if the run fails."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline on Spark."""
    pipeline = load(file)
    if bootstrap is not None:
        pipeline = replace(pipeline, bootstrap=bootstrap, data=None)
    settings = {name: value or "" for name, value in settings_of(conf or [], "--conf").items()}
    with spark_log(log, pipeline.name) as log_file, ExitStack() as screen:
        table = QueryTable(pipeline.query_names)
        is_live = not json and can_show_live()

        def announce_start() -> None:
            streams = counted(len(pipeline.query_names), "stream")
            message(f"{pipeline.name}: {streams} (press Ctrl-C to stop)")
            if is_live:
                screen.enter_context(live_table(table))

        run_pipeline(
            pipeline,
            table.add if is_live else _print_json if json else _print_line,
            on_session=_announce_spark,
            on_start=announce_start,
            on_stop=lambda: message("stopping"),
            master=master,
            conf=settings,
            available_now=available_now,
            report=report,
            log=log_file,
        )


def _announce_spark(running: RunningPipeline) -> None:
    message(f"Spark {running.spark.version}: {running.spark.sparkContext.uiWebUrl}")


def _print_json(report: QueryReport) -> None:
    print_json(report._asdict())
    sys.stdout.flush()


def _print_line(report: QueryReport) -> None:
    if report.rows:
        message(str(report))
