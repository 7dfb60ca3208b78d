"""Measures strandlog beside Apache Kafka, and writes the figures to docs/benchmarks.md.

    python -m benchmarks.kafka [--rounds N] [--scale X] [--only TEXT]     (make bench-kafka)

All brokers run at the same time, on the same disk, and each workload measures them in turn, in an
order that changes every round. A first round that does not count warms up the JVM and the page
cache. The memory after the workloads comes next. Starts, stops and a kill -9 are measured at the
end, with one new broker at a time. The JSON file is written after every workload.
Without Apache Kafka (`make peers` fetches it), strandlog is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.kafka.brokers import KAFKA, KINDS, STRANDLOG, Broker, Kind
from benchmarks.kafka.cases import Case, all_cases
from benchmarks.kafka.report import Figure, markdown, plot, shown, write_json, write_section
from benchmarks.wire import create_topic

ROOT = Path(__file__).parent.parent.parent
LIFECYCLE_PARTITIONS = 5000
PARTITIONS_PER_TOPIC = 1000


def measure_cases(
    cases: list[Case], brokers: dict[Kind, Broker], rounds: int, console: Console
) -> Iterator[Figure]:
    """Run every workload in all rounds, after one round that does not count."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar:
        for case in cases:
            kinds = [kind for kind in case.kinds if kind in brokers]
            figure = Figure(
                case.name, case.unit, case.higher_is_better, series=case.series, size=case.size
            )
            figure.values = {kind.name: [] for kind in kinds}
            task = bar.add_task(case.name, total=(rounds + 1) * len(kinds))
            for number in range(rounds + 1):
                start = number % len(kinds)
                for kind in kinds[start:] + kinds[:start]:
                    value = case.measure(brokers[kind])
                    if number:
                        figure.values[kind.name].append(value)
                    bar.advance(task)
            yield figure


def measure_memory(brokers: dict[Kind, Broker]) -> Figure:
    values = {
        kind.name: [brokers[kind].resident_megabytes()]
        for kind in (STRANDLOG, KAFKA)
        if kind in brokers
    }
    return Figure("memory after the workloads", "MB", higher_is_better=False, values=values)


def measure_lifecycle(home: Path, partitions: int) -> list[Figure]:
    """Start, stop, creation of partitions, and a kill -9, with a new data folder."""
    names = (
        "first start",
        "clean stop",
        "start",
        f"create {partitions:,} partitions",
        f"clean stop with {partitions:,} partitions",
        f"start with {partitions:,} partitions",
        f"start with {partitions:,} partitions after kill -9",
    )
    figures = [Figure(name, "s", higher_is_better=False) for name in names]
    for kind in (STRANDLOG, KAFKA):
        if not kind.is_available:
            continue
        broker = Broker(kind, home / f"lifecycle-{kind.name}")
        with contextlib.ExitStack() as stack:
            stack.callback(_kill_if_running, broker)
            values = [broker.start(), broker.stop(), broker.start()]
            values.append(_create_many(broker, partitions))
            values += [broker.stop(), broker.start()]
            broker.kill()
            values.append(broker.start())
        for figure, value in zip(figures, values, strict=True):
            figure.values[kind.name] = [value]
    return figures


def _create_many(broker: Broker, partitions: int) -> float:
    began = time.perf_counter()
    for number in range(0, partitions, PARTITIONS_PER_TOPIC):
        count = min(PARTITIONS_PER_TOPIC, partitions - number)
        create_topic(broker.address, f"lifecycle-{number}", count)
    return time.perf_counter() - began


def print_figures(figures: list[Figure], console: Console) -> None:
    table = Table("workload", "unit", "broker", "median", "range", "ratio")
    for figure in figures:
        for number, (broker, values) in enumerate(figure.values.items()):
            ratio = figure.ratios.get(broker)
            colour = "green" if ratio is None or ratio >= 1 else "red"
            table.add_row(
                figure.name if not number else "",
                figure.unit if not number else "",
                broker,
                shown(sorted(values)[len(values) // 2]),
                f"{shown(min(values))} to {shown(max(values))}",
                "" if ratio is None else f"[{colour}]{ratio:.2f}[/]",
            )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies numbers of records")
    parser.add_argument("--only", default="", help="workloads whose name contains this text")
    parser.add_argument("--partitions", type=int, default=LIFECYCLE_PARTITIONS)
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "bench_kafka.json")
    parser.add_argument("--no-docs", action="store_true", help="do not change docs/benchmarks.md")
    options = parser.parse_args()
    console = Console(stderr=True)
    cases = [case for case in all_cases(options.scale) if options.only in case.name]
    needed = {kind for case in cases for kind in case.kinds} or set(KINDS)
    if missing := [kind.name for kind in KINDS if kind in needed and not kind.is_available]:
        print(f"not measured: {', '.join(missing)}; `make peers` fetches Kafka", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-kafka-")))
        brokers = {}
        for number, kind in enumerate(KINDS):
            if kind in needed and kind.is_available:
                brokers[kind] = broker = Broker(kind, home / str(number))
                stack.callback(_kill_if_running, broker)
                broker.start()
        figures: list[Figure] = []
        for figure in measure_cases(cases, brokers, options.rounds, console):
            figures.append(figure)
            write_json(figures, options.json)
        if not options.only:
            figures.append(measure_memory(brokers))
            for broker in brokers.values():
                broker.kill()
            figures += measure_lifecycle(home, options.partitions)
    print_figures(figures, console)
    write_json(figures, options.json)
    if not options.no_docs and not options.only:
        plot(figures, ROOT / "docs" / "images" / "bench-kafka.png")
        write_section(ROOT / "docs" / "benchmarks.md", markdown(figures, options.rounds))
    return 0


def _kill_if_running(broker: Broker) -> None:
    if broker.process is not None:
        broker.kill()


if __name__ == "__main__":
    raise SystemExit(main())
