"""The report of a benchmark, as a JSON document or as a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from strandlog.cli.bench.histogram import Histogram
from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.output import message, number, print_table, text
from strandlog.config.units import counted

PERCENTILES = (50, 95, 99)


class Report(NamedTuple):
    """The result of a benchmark, with its target and options."""

    benchmark: str
    target: str
    topic: str
    options: dict[str, Any]
    started: str
    is_interrupted: bool
    measurement: Measurement

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        measured = self.measurement
        total = measured.total()
        seconds = measured.seconds
        return {
            "benchmark": self.benchmark,
            "target": self.target,
            "topic": self.topic,
            "options": self.options,
            "started": self.started,
            "interrupted": self.is_interrupted,
            "seconds": round(seconds, 3),
            "records": total.records,
            "size_bytes": total.size_bytes,
            "records_per_second": round(total.records / seconds, 1),
            "bytes_per_second": round(total.size_bytes / seconds, 1),
            "latency_ms": latency_ms(total.latency),
            "errors": total.errors,
            "error_messages": dict(measured.messages),
            "interval_seconds": measured.interval_seconds,
            "intervals": [
                {
                    "records": each.records,
                    "size_bytes": each.size_bytes,
                    "errors": each.errors,
                    "latency_ms": latency_ms(each.latency),
                }
                for each in measured.intervals
            ],
        }


def latency_ms(histogram: Histogram) -> dict[str, float | None]:
    """Return percentiles, maximum and mean in milliseconds; each is None if nothing was counted."""
    found = {f"p{percent}": histogram.percentile(percent) for percent in PERCENTILES}
    found["max"] = histogram.max_seconds if histogram.count else None
    found["mean"] = histogram.mean
    return {
        name: None if value is None else round(value * 1000, 3) for name, value in found.items()
    }


def print_report(document: dict[str, Any]) -> None:
    """Print the table, and the error messages to stderr."""
    latency = document["latency_ms"]
    columns = [text("BENCHMARK"), number("RECORDS"), number("SECONDS"), number("RECORDS/S")]
    columns += [number("MB/S"), *(number(f"{name.upper()} MS") for name in ("p50", "p95", "p99"))]
    columns += [number("MAX MS"), number("ERRORS")]
    row = [
        document["benchmark"],
        document["records"],
        f"{document['seconds']:.2f}",
        round(document["records_per_second"]),
        f"{document['bytes_per_second'] / 1e6:.2f}",
        *(_milliseconds(latency[name]) for name in ("p50", "p95", "p99", "max")),
        document["errors"],
    ]
    print_table(columns, [row])
    for reason, count in document["error_messages"].items():
        message(f"error: {reason} ({counted(count, 'time')})")
    if document["interrupted"]:
        message("interrupted: these results are partial")


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
