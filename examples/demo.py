"""`make demo`: streams a year of flights through a broker and Spark, and checks every row.

    1. a broker starts on a temporary folder          strandlog serve
    2. a pipeline starts on Spark                     strandlog pipeline run flights.toml
       the broker's console shows it in a browser while it runs
    3. the year is replayed while the pipeline reads it: 336,776 departures, a quarter of them out
       of order, plus some records that cannot be parsed; the last ones are weeks late
    4. the results, in a topic and in a Delta table, are compared with pandas on the original file
    5. DuckDB queries the table

The exit code is 1 if anything differs. Ctrl-C stops everything; --keep leaves it running.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import duckdb
from examples.flights import replay as replaying
from examples.flights.dataset import MONTHS
from examples.flights.report import airports_table, plot, worst_hours_table
from examples.flights.verify import (
    LAKE,
    Results,
    differences,
    expected_results,
    read_results,
    table_files,
)
from examples.processes import Broker, Pipeline, ProcessEndedError
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table as RichTable

import strandlog

PIPELINE = Path(__file__).parent / "flights" / "flights.toml"
PLOT = Path("out") / "flights.png"
CATCH_UP_SECONDS = 240
SQL = """\
SELECT airline, count(*) AS flights, round(avg(dep_delay), 1) AS delay,
       round(avg(dep_delay) FILTER (WHERE precip > 0), 1) AS delay_in_rain
FROM read_parquet($files)
GROUP BY airline ORDER BY delay DESC LIMIT 5
"""
PROGRAM = """
import deltalake, duckdb

files = deltalake.DeltaTable("{table}").file_uris()
duckdb.execute(\"\"\"
    {sql}\"\"\", {{"files": files}})
"""

console = Console()


def run(folder: Path, options: argparse.Namespace) -> int:
    """Run the demo and return the exit code."""
    console.rule("1. A broker, and a pipeline on Spark")
    broker, pipeline = Broker(folder), Pipeline(folder, PIPELINE)
    is_kept = False
    try:
        broker.start()
        console.print(f"broker on {broker.address}, data in {broker.data}")
        console.print(
            f"watch it in a browser: [bold]{_page(broker)}[/bold]", soft_wrap=True, highlight=False
        )
        with strandlog.connect(broker.address) as log:
            replaying.create_topics(log)
            pipeline.start(broker.address)
            console.print("starting Spark: half a minute, or more if the machine is busy")
            with console.status("preparing the events while Spark starts"):
                replay = replaying.make_replay(options.months)
                pipeline.wait_until_started()
            console.print("the pipeline is running")
            console.rule("2. A year of departures, live")
            _replay(log, replay, pipeline, options.seconds)
            console.rule("3. The result")
            code = _show(read_results(log, folder), replay, options)
            console.rule("4. The flights as a table")
            _query(folder)
        is_kept = options.keep and code == 0
        _print_next_steps(broker, pipeline, folder, is_kept=is_kept)
    except ProcessEndedError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    finally:
        if not is_kept:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # ignore a second Ctrl-C while stopping
            pipeline.stop()
            broker.stop()
    return code


def _page(broker: Broker) -> str:
    """Return the URL of the pipeline's page in the broker's console."""
    return f"{broker.console}/#/pipelines/flights"


def _replay(
    log: strandlog.RemoteLog, replay: replaying.Replay, pipeline: Pipeline, seconds: float
) -> None:
    """Send all events while the pipeline reads, and wait until it has read them."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[date]}"),
        TimeElapsedColumn(),
    )
    task = progress.add_task("replaying 2013", total=len(replay.steps), date="")
    with Live(Group(progress, pipeline.table), console=console, refresh_per_second=4):

        def on_step(step: replaying.Step) -> None:
            progress.update(task, advance=1, date=f"{step.until:%d %b}")
            pipeline.read_progress()

        replaying.send_steps(log, replay, seconds, on_step)
        sent = replay.departures + replay.bad
        pipeline.wait_for(_records_to_read(replay, sent), CATCH_UP_SECONDS)
        progress.update(task, description="stragglers", date=f"{len(replay.stragglers)}")
        replaying.send_stragglers(log, replay)
        pipeline.wait_for(_records_to_read(replay, replay.flight_records), CATCH_UP_SECONDS)
        progress.update(task, description="all records read", date="")


def _records_to_read(replay: replaying.Replay, flights: int) -> dict[str, int]:
    """Return how many records each query reads in total, by a part of its name."""
    return {
        "dead-letter": flights,
        "delays": flights,
        "in_weather": flights + replay.observations,
    }


def _show(results: Results, replay: replaying.Replay, options: argparse.Namespace) -> int:
    """Print tables, counts and the comparison with pandas, and return the exit code."""
    console.print(airports_table(results), worst_hours_table(results))
    counted = int(results.delays["flights"].sum())
    late = replay.flight_records - results.bad - counted
    console.print(
        f"{replay.flight_records:,} flight records were sent:\n"
        f"  {counted:>9,} are in {len(results.delays):,} windows of one hour, "
        f"{replay.out_of_order:,} of them out of order\n"
        f"  {late:>9,} arrived weeks behind the watermark and were dropped\n"
        f"  {results.bad:>9,} could not be parsed and are in the dead-letter topic\n"
        f"  {len(results.in_weather):>9,} are in a Delta table, with weather and airline"
    )
    plot(results, options.plot)
    console.print(f"plot: {options.plot}")
    found = differences(results, expected_results(replay, options.months))
    if late != len(replay.stragglers):
        found.append(f"late: {late} instead of {len(replay.stragglers)}")
    if found:
        console.print("[bold red]pandas disagrees:[/bold red]", *found, sep="\n  ")
        return 1
    console.print(
        "[bold green]pandas agrees:[/bold green] every window and every row matches the original "
        "file"
    )
    return 0


def _query(folder: Path) -> None:
    """Query the Delta table with DuckDB, and show how."""
    program = PROGRAM.format(table=folder / LAKE, sql=SQL.replace("\n", "\n    "))
    console.print(Syntax(program.strip(), "python", word_wrap=True))
    found = duckdb.execute(SQL, {"files": table_files(folder)})
    table = RichTable(*(column[0] for column in found.description or ()))
    for row in found.fetchall():
        table.add_row(*map(str, row))
    console.print(table)


def _print_next_steps(broker: Broker, pipeline: Pipeline, folder: Path, *, is_kept: bool) -> None:
    console.rule("Next steps")
    if not is_kept:
        console.print(
            "  make demo ARGS=--keep         leave broker and pipeline running\n"
            "  examples/flights/README.md    the parts, and the same pipeline in PySpark\n"
            "  docs/guides/pipelines.md      write your own pipeline"
        )
        return
    console.print(f"  {_page(broker)}    in a browser", soft_wrap=True, highlight=False)
    strandlog_command = f"{Path(sys.executable).parent}/strandlog"
    for command in (
        f"group describe flights -b {broker.address}",
        f"consume flights.delays -b {broker.address} -n 3 -e",
        f"consume flights.bad -b {broker.address} -n 3 -e --json",
        f"topic list -b {broker.address}",
        f"log stats {broker.data}",
        f"table status {folder / LAKE}",
    ):
        console.print(f"  {strandlog_command} {command}", soft_wrap=True, highlight=False)
    console.print(
        f"\nto stop them: kill {pipeline.pid} {broker.pid}    and then: rm -r {folder}",
        soft_wrap=True,
        highlight=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Flights as live events, through Spark.")
    parser.add_argument("--keep", action="store_true", help="leave broker and pipeline running")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the replay")
    parser.add_argument("--months", type=int, default=MONTHS, help="number of months, from January")
    parser.add_argument("--plot", type=Path, default=PLOT, help="file for the plot")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandlog-demo-"))
    started = time.monotonic()
    code = 130
    is_interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        code = run(folder, options)
    except (Exception, KeyboardInterrupt):
        # If pandas is interrupted while parsing a file, it raises ParserError.
        if not is_interrupted:
            raise
        console.print("stopped")
    finally:
        if not (options.keep and code == 0):
            shutil.rmtree(folder, ignore_errors=True)
    console.print(f"\n{time.monotonic() - started:.0f} s")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
