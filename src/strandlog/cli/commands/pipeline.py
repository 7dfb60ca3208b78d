"""The `strandlog pipeline` commands, which validate, test, list and run Spark pipelines.

    validate FILE    print all problems in the file with line numbers; with --sql, Spark then checks
                     a file without problems. The exit code is 1 if there is a problem
    test FILE        run its test cases; the exit code is 1 if one fails
    list FILE        print its sources, views and sinks
    run FILE         run it until Ctrl-C or, with --available-now, until all data is processed
    prepare          archive Spark's Java classes, so that Spark starts in half the time

With --json, `run` prints a JSON line to stdout for every micro-batch. Otherwise it shows a live
table of the queries on a terminal, or prints a line to stderr for each micro-batch with rows.
Ctrl-C and SIGTERM stop the pipeline with exit code 0. If a query fails, `run` prints the reason and
the path of Spark's log and exits with 1.

spark/pipeline/runner.py runs the pipeline; this module parses arguments and prints.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandlog.cli.formats.pipeline_table import QueryTable, can_show_live, live_table
from strandlog.cli.options import (
    BOOTSTRAP_VARIABLE,
    DATA_VARIABLE,
    Json,
    Target,
    command_app,
    named_target,
    settings_of,
    target_of,
)
from strandlog.cli.output import message, print_json, print_table, size_text, text, time_text
from strandlog.config.units import counted
from strandlog.spark.options import PREFIX
from strandlog.spark.pipeline.cases.file import case_path
from strandlog.spark.pipeline.cases.rows import plain
from strandlog.spark.pipeline.cases.run import CaseResult, load_cases, run_cases
from strandlog.spark.pipeline.file import Analysis, load, read_file
from strandlog.spark.pipeline.lineage import query_names
from strandlog.spark.pipeline.runner import RunningPipeline
from strandlog.spark.pipeline.runner import run as run_pipeline
from strandlog.spark.pipeline.runner import validate as validate_with_spark
from strandlog.spark.pipeline.session import spark_log
from strandlog.spark.prepare import make_archive

if TYPE_CHECKING:
    from strandlog.spark.monitoring.progress import QueryReport
    from strandlog.spark.pipeline.model import Pipeline

STARTING = "starting Spark; this takes up to a minute on a busy machine"

app = command_app("Run, validate, test and list Spark pipelines.")

Report = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL for progress reports, or `off`; default: the URL in the file, or else the "
        "broker's HTTP listener.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Broker; overrides the pipeline file. Default, if the file names no log: the log of "
        "the environment or of the current context.",
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file (TOML).", dir_okay=False)]


@app.command()
def validate(
    file: File,
    sql: Annotated[
        bool,
        typer.Option(
            "--sql",
            help="If there are no other problems, also check SQL, types and output modes. Starts "
            "Spark, but needs no broker.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print all problems in a pipeline file."""
    if sql and not json and not read_file(file).problems:
        message(STARTING)
    problems, unchecked = _analysis(file) if sql else (read_file(file).problems, [])
    if json:
        document: dict[str, object] = {"problems": [problem._asdict() for problem in problems]}
        print_json(document | ({"unchecked": unchecked} if sql else {}))
    else:
        for problem in problems:
            sys.stdout.write(f"{file}:{problem.line}: {problem.text}\n")
        message(counted(len(problems), "problem"))
        if unchecked:
            message(f"not checked, because of these problems: {', '.join(unchecked)}")
        if not (sql or problems):
            message("not checked without --sql: SQL, types and output modes")
    if problems:
        raise typer.Exit(1)


def _analysis(file: Path) -> Analysis:
    with spark_log(None, "validate") as log:
        return validate_with_spark(file, log=log)


@app.command()
def test(
    file: File,
    cases: Annotated[
        Path | None,
        typer.Argument(
            metavar="CASES", help="File with test cases; default: NAME.test.toml next to NAME.toml."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("-k", metavar="TEXT", help="Run only cases whose name contains TEXT."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for Spark's log; by default, the log is kept only if Spark fails.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run the test cases of a pipeline on Spark, with a temporary broker."""
    path = cases or case_path(file)
    wanted = [case for case in load_cases(file, path) if name is None or name in case.name]
    if not wanted:
        raise typer.BadParameter(f"no case of {path} has {name!r} in its name", param_hint="-k")
    if not json:
        message(STARTING)
    with spark_log(log, "test") as log_file, _without_broker_warnings():
        show = None if json else _print_case_in(path)
        results = run_cases(file, wanted, log=log_file, on_result=show)
    failed = sum(not result.has_passed for result in results)
    if json:
        print_json({"cases": [_case_document(result) for result in results]})
    else:
        message(f"{counted(len(results), 'case')}, {failed} failed")
    if failed:
        raise typer.Exit(1)


@contextmanager
def _without_broker_warnings() -> Iterator[None]:
    """Hide the warnings of the test brokers, which run in this process.

    The warnings concern the speed of the machine, and Python would print them without a level or a
    name, because `test` configures no logging.
    """
    broker = logging.getLogger("strandlog.server")
    level = broker.level
    broker.setLevel(logging.ERROR)
    try:
        yield
    finally:
        broker.setLevel(level)


def _print_case_in(path: Path) -> Callable[[CaseResult], None]:
    def print_case(result: CaseResult) -> None:
        state = "passed" if result.has_passed else "FAILED"
        case = result.case
        lines = [f"{path}:{case.line}: {state}: {case.name} ({result.seconds:.1f} s)"]
        lines += [f"    {line}" for line in result.lines()]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    return print_case


def _case_document(result: CaseResult) -> dict[str, object]:
    return {
        "name": result.case.name,
        "line": result.case.line,
        "passed": result.has_passed,
        "seconds": result.seconds,
        "error": result.error,
        "differences": [
            {
                "step": each.step,
                "output": each.output,
                "missing": [plain(row) for row in each.missing],
                "unexpected": [plain(row) for row in each.unexpected],
            }
            for each in result.differences
        ],
    }


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
    ctx: typer.Context,
    file: File,
    bootstrap: Broker = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark master: local[*], spark://HOST:PORT, …")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting. Repeatable."),
    ] = None,
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now", "--once", help="Process the available data once, then stop."
        ),
    ] = False,
    report: Report = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for Spark's log; by default, the log is kept only if the run fails.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline on Spark."""
    pipeline = _load_on_target(file, named_target(ctx, bootstrap, [], None))
    settings = {name: value or "" for name, value in settings_of(conf or [], "--conf").items()}
    with spark_log(log, pipeline.name) as log_file, ExitStack() as screen:
        table = QueryTable(query_names(pipeline))
        is_live = not json and can_show_live()
        if not json:
            message(STARTING)

        def announce_start() -> None:
            streams = counted(len(query_names(pipeline)), "stream")
            message(f"{pipeline.name}: {streams} (press Ctrl-C to stop)")
            if is_live:
                screen.enter_context(live_table(table))

        run_pipeline(
            pipeline,
            table.add if is_live else _print_json if json else _print_line,
            on_session=_announce_spark,
            on_wait=None if is_live or json else _announce_next,
            on_start=announce_start,
            on_stop=lambda: message("stopping"),
            master=master,
            conf=settings,
            available_now=available_now,
            report=report,
            log=log_file,
        )


def _load_on_target(file: Path, target: Target | None) -> Pipeline:
    """Read a pipeline, and let it use the log of `target`. Without a target, the pipeline uses the
    log that its file names, or else the log of the environment or of the current context.

    Client settings of a context override those of the file.
    """
    pipeline = load(file)
    if target is None:
        if pipeline.bootstrap is not None or pipeline.data is not None:
            return pipeline
        data, broker = (os.environ.get(name) for name in (DATA_VARIABLE, BOOTSTRAP_VARIABLE))
        target = target_of(data, broker, [])
    own = {f"{PREFIX}{name}": value for name, value in target.client_config.items()}
    kept = {name: value for name, value in pipeline.options.items() if name.lower() not in own}
    return replace(pipeline, bootstrap=target.bootstrap, data=target.data, options={**kept, **own})


@app.command()
def prepare(json: Json = False) -> None:
    """Archive Spark's Java classes, so that sessions and pipelines start in half the time.

    Takes about a minute and 200 MB below ~/.cache. Run it again after updating Java or Spark.
    """
    if not json:
        message("running Spark once to find the classes that it loads; this takes about a minute")
    path = make_archive()
    size_bytes = path.stat().st_size
    if json:
        print_json({"path": str(path), "size_bytes": size_bytes})
    else:
        message(f"Spark now starts from {path} ({size_text(size_bytes)})")


def _announce_spark(running: RunningPipeline) -> None:
    message(f"Spark {running.spark.version}: {running.spark.sparkContext.uiWebUrl}")


def _announce_next(due_ms: int) -> None:
    message(f"next run at {time_text(due_ms, 'seconds')}")


def _print_json(report: QueryReport) -> None:
    print_json(report._asdict())
    sys.stdout.flush()


def _print_line(report: QueryReport) -> None:
    if report.rows:
        message(str(report))
