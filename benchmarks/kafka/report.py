"""Turns the figures into a table, a JSON file, a plot and a section of docs/benchmarks.md."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tools.fetch_peers import KAFKA_BROKER

from benchmarks.kafka.brokers import KINDS, STRANDLOG

BEGIN, END = "<!-- bench-kafka: begin -->", "<!-- bench-kafka: end -->"
BETTER, WORSE = "#2a9d4a", "#c0392b"


@dataclass
class Figure:
    """One workload: the values of each broker, one per round."""

    name: str
    unit: str
    higher_is_better: bool
    values: dict[str, list[float]] = field(default_factory=dict)
    series: str = ""
    size: int = 0

    @property
    def ratios(self) -> dict[str, float]:
        """How much better strandlog is than each kind of Kafka; above 1 it is better."""
        medians = {broker: statistics.median(values) for broker, values in self.values.items()}
        ours = medians.get(STRANDLOG.name)
        kafkas = [kind.name for kind in KINDS if kind.is_kafka and kind.name in medians]
        if not ours:
            return {}
        if self.higher_is_better:
            return {broker: ours / medians[broker] for broker in kafkas}
        return {broker: medians[broker] / ours for broker in kafkas}


def growth(figures: list[Figure]) -> dict[str, dict[str, float]]:
    """The exponent with which each broker's figure grows with the size, by series.

    It is the slope of a line through the logarithms of sizes and medians: 0 means that the size
    makes no difference, -1 that ten times the size has a tenth of the rate.
    """
    found: dict[str, dict[str, float]] = {}
    for series in dict.fromkeys(figure.series for figure in figures if figure.series):
        points: dict[str, list[tuple[float, float]]] = {}
        for figure in figures:
            if figure.series == series:
                for broker, values in figure.values.items():
                    point = math.log(figure.size), math.log(statistics.median(values))
                    points.setdefault(broker, []).append(point)
        found[series] = {
            broker: statistics.linear_regression(*zip(*rows, strict=True)).slope
            for broker, rows in points.items()
            if len(rows) > 1
        }
    return found


def shown(value: float) -> str:
    """A value with three digits, shortened by thousands and millions."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _cell(values: list[float]) -> str:
    median = shown(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} ({shown(min(values))} to {shown(max(values))})"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


def markdown(figures: list[Figure], rounds: int) -> str:
    """The section of the document: set-up, table and plot."""
    kafka = f"Apache Kafka {KAFKA_BROKER.version} (G1, 1 GB heap)"
    client = f"librdkafka of confluent-kafka {version('confluent-kafka')}"
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        f"`make bench-kafka` wrote this section on {today}: strandlog beside {kafka}, {client}, "
        f"Python {platform.python_version()}, {machine()}. All brokers ran at the same time and "
        f"were measured in turn; medians of {rounds} rounds, with the lowest and the highest. "
        "A ratio above 1 means that strandlog is better.",
        "",
        "| workload | unit | broker | median (range) | ratio |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        for number, (broker, values) in enumerate(figure.values.items()):
            ratio = figure.ratios.get(broker)
            text = "" if ratio is None else f"{ratio:.2f}"
            bold = f"**{text}**" if ratio is not None and ratio < 1 else text
            name, unit = (figure.name, figure.unit) if number == 0 else ("", "")
            lines.append(f"| {name} | {unit} | {broker} | {_cell(values)} | {bold} |")
    if exponents := growth(figures):
        lines += ["", "How the figures grow with the size (exponent; 0 is no change):", ""]
        for series, by_broker in exponents.items():
            rows = [f"{broker} {value:+.2f}" for broker, value in by_broker.items()]
            lines.append(f"- {series}: {', '.join(rows)}")
    lines += ["", "![Ratios of all workloads](images/bench-kafka.png)"]
    return "\n".join(lines)


def write_section(document: Path, section: str) -> None:
    """Replace the section between the two marks, or append it to the document."""
    text = document.read_text()
    before, mark, rest = text.partition(BEGIN)
    if not mark:
        before, rest = f"{text.rstrip()}\n\n## Beside Apache Kafka\n\n", END + "\n"
    document.write_text(f"{before}{BEGIN}\n{section}\n{END}{rest.partition(END)[2]}")


def write_json(figures: list[Figure], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "name": figure.name,
            "unit": figure.unit,
            "higher_is_better": figure.higher_is_better,
            "values": figure.values,
            "ratios": figure.ratios,
        }
        for figure in figures
    ]
    path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n")


def plot(figures: list[Figure], path: Path) -> None:
    """A bar per comparison on a logarithmic scale, green where strandlog is better."""
    import matplotlib  # noqa: PLC0415 - takes a second, and only this function needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    bars = [
        (f"{figure.name}: {STRANDLOG.name} / {broker}", ratio)
        for figure in reversed(figures)
        for broker, ratio in reversed(figure.ratios.items())
    ]
    if not bars:
        return
    labels, ratios = zip(*bars, strict=True)
    colours = [BETTER if ratio >= 1 else WORSE for ratio in ratios]
    _, axes = pyplot.subplots(figsize=(9, 0.32 * len(bars) + 1), layout="constrained")
    drawn = axes.barh(labels, [ratio - 1 for ratio in ratios], left=1, color=colours)
    axes.bar_label(drawn, [f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("ratio; to the right of 1, strandlog is better")
    axes.margins(x=0.12)
    axes.tick_params(labelsize=8)
    pyplot.savefig(path, dpi=120)
    pyplot.close()
