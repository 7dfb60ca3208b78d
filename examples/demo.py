"""`make demo`: a year of flights as live events, through a broker and Spark, checked to the last.

    1. a broker starts on a temporary folder          strandlog serve
    2. a pipeline starts on Spark                     strandlog pipeline run flights.toml
       and shows in the broker's console, in a browser, while it runs
    3. the year is replayed over the wire while the pipeline reads it: 336,776 departures, a quarter
       of them out of order, some that cannot be parsed; then some that come weeks too late
    4. what came out, in a topic and in Parquet, is held against pandas on the original file

Exit code 1 when anything differs. Ctrl-C stops everything; --keep leaves all of it running.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from examples.flights import replay as replaying
from examples.flights.dataset import MONTHS
from examples.flights.report import airports_table, plot, worst_hours_table
from examples.flights.results import Results, differences, expected_results, read_results
from examples.running import Broker, Pipeline, ProcessEndedError
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import strandlog

PIPELINE = Path(__file__).parent / "flights" / "flights.toml"
PLOT = Path("out") / "flights.png"
CATCH_UP_SECONDS = 240

console = Console()


def run(folder: Path, options: argparse.Namespace) -> int:
    """The whole of it; returns the exit code."""
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
            with console.status("making events of the data set while Spark starts"):
                replay = replaying.make_replay(options.months)
                pipeline.wait_until_started()
            console.print("the pipeline runs")
            console.rule("2. A year of departures, live")
            _replay(log, replay, pipeline, options.seconds)
            console.rule("3. The result")
            code = _show(read_results(log, folder), replay, options)
        is_kept = options.keep and code == 0
        _say_what_next(broker, pipeline, folder, is_kept=is_kept)
    except ProcessEndedError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    finally:
        if not is_kept:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave half behind
            pipeline.stop()
            broker.stop()
    return code


def _page(broker: Broker) -> str:
    """The pipeline in the broker's console."""
    return f"{broker.console}/#/pipelines/flights"


def _replay(
    log: strandlog.RemoteLog, replay: replaying.Replay, pipeline: Pipeline, seconds: float
) -> None:
    """Send everything while the pipeline reads, and wait until it has read all."""
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
            pipeline.look()

        replaying.send_steps(log, replay, seconds, on_step)
        sent = replay.departures + replay.bad
        pipeline.wait_for(_records_to_read(replay, sent), CATCH_UP_SECONDS)
        progress.update(task, description="stragglers", date=f"{len(replay.stragglers)}")
        replaying.send_stragglers(log, replay)
        pipeline.wait_for(_records_to_read(replay, replay.flight_records), CATCH_UP_SECONDS)
        progress.update(task, description="all is read", date="")


def _records_to_read(replay: replaying.Replay, flights: int) -> dict[str, int]:
    """How many records each query has read when it has read all, by a part of its name."""
    return {
        "dead-letter": flights,
        "delays": flights,
        "in_weather": flights + replay.observations,
    }


def _show(results: Results, replay: replaying.Replay, options: argparse.Namespace) -> int:
    """Tables, counts, the picture, and whether pandas agrees; returns the exit code."""
    console.print(airports_table(results), worst_hours_table(results))
    counted = int(results.delays["flights"].sum())
    late = replay.flight_records - results.bad - counted
    console.print(
        f"{replay.flight_records:,} records of flights were sent:\n"
        f"  {counted:>9,} are in {len(results.delays):,} windows of one hour, "
        f"{replay.out_of_order:,} of them came out of order\n"
        f"  {late:>9,} came weeks behind the watermark and were left out\n"
        f"  {results.bad:>9,} could not be parsed and are in the dead-letter topic\n"
        f"  {len(results.in_weather):>9,} are in Parquet, with their weather and airline"
    )
    plot(results, options.plot)
    console.print(f"picture: {options.plot}")
    told = differences(results, expected_results(replay, options.months))
    if late != len(replay.stragglers):
        told.append(f"late: {late} instead of {len(replay.stragglers)}")
    if told:
        console.print("[bold red]pandas says otherwise:[/bold red]", *told, sep="\n  ")
        return 1
    console.print(
        "[bold green]pandas agrees:[/bold green] every window and every row is as it computes "
        "them from the original file"
    )
    return 0


def _say_what_next(broker: Broker, pipeline: Pipeline, folder: Path, *, is_kept: bool) -> None:
    console.rule("Look next")
    if not is_kept:
        console.print(
            "  make demo ARGS=--keep         leaves broker and pipeline running\n"
            "  examples/flights/README.md    the parts, and the same in PySpark\n"
            "  docs/guides/pipelines.md      how to write your own"
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
    parser.add_argument("--seconds", type=float, default=60, help="how long the year takes")
    parser.add_argument("--months", type=int, default=MONTHS, help="how many, from January")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the picture goes")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="strandlog-demo-"))
    started = time.monotonic()
    code = 130
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = run(folder, options)
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        if not (options.keep and code == 0):
            shutil.rmtree(folder, ignore_errors=True)
    console.print(f"\n{time.monotonic() - started:.0f} s")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
