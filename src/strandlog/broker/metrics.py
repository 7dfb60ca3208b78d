"""What a broker counts: plain numbers, declared once.

Each field of `Metrics` is one row of the table: its name, its kind, and the sentence that explains
it. Whoever does something adds to the number; whoever wants to know takes a `snapshot`. Nothing is
locked: the thread that owns the broker counts, other threads hand their figures to it.

    counter      only grows, from 0 at the start
    gauge        goes up and down
    histogram    how often something took how long; `LIMITS_SECONDS` are the upper bounds

Counting costs a few additions per request, never per record. Names follow Prometheus: the unit is
in the name, and `exported_name` adds what its conventions ask for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

LIMITS_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """How long things took."""

    __slots__ = ("counts", "max_seconds", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LIMITS_SECONDS) + 1)  # the last one: longer than every limit
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LIMITS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds
        if seconds > self.max_seconds:
            self.max_seconds = seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The limit below which that share of all observations lies; at most the longest one."""
        wanted, seen = share * self.count, 0
        for limit, count in zip((*LIMITS_SECONDS, self.max_seconds), self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return min(limit, self.max_seconds)
        return self.max_seconds

    def snapshot(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "sum_seconds": self.sum_seconds,
            "max_seconds": self.max_seconds,
            "counts": list(self.counts),
        }


class Metric(NamedTuple):
    """One row of the table."""

    name: str
    kind: Kind
    help: str
    label: str  # what a family of histograms is divided by; "" for a single figure

    @property
    def exported_name(self) -> str:
        return (
            f"strandlog_{self.name}_total" if self.kind == "counter" else f"strandlog_{self.name}"
        )


def _row(kind: Kind, words: str, label: str = "") -> dict[str, str]:
    return {"kind": kind, "help": words, "label": label}


def _counter(words: str) -> Any:
    return field(default=0, metadata=_row("counter", words))


def _gauge(words: str) -> Any:
    return field(default=0, metadata=_row("gauge", words))


@dataclass(slots=True)
class Metrics:
    """The figures of one broker."""

    produced_bytes: int = _counter("Bytes of record batches that were appended.")
    produced_records: int = _counter("Offsets that were given to appended records.")
    fetched_bytes: int = _counter("Bytes of record batches that were read for consumers.")
    fetched_records: int = _counter(
        "Offsets by which consumers got on, from one answer with records to their next fetch."
    )
    request_seconds: dict[str, Histogram] = field(
        default_factory=dict,
        metadata=_row(
            "histogram",
            "From the whole request being there to its reply being ready, waiting included.",
            "api",
        ),
    )
    handler_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row(
            "histogram", "How long the event loop was busy with one request, waiting not included."
        ),
    )
    http_seconds: dict[str, Histogram] = field(
        default_factory=dict,
        metadata=_row(
            "histogram", "From a call of the HTTP API to its answer being ready.", "call"
        ),
    )
    slow_handlers: int = _counter("Requests that kept the event loop busy for long; see the log.")
    failed_requests: int = _counter("Requests that ended in hanging up.")
    requests_in_flight: int = _gauge("Requests that are not answered yet.")
    parked_fetches: int = _gauge("Fetches that wait for more records.")
    connections_open: int = _gauge("Clients that are connected.")
    connections_paused: int = _gauge("Clients that are not read from: too much is under way.")
    connections_stalled_closed: int = _counter(
        "Clients that neither sent nor read while requests or replies took too much memory."
    )
    queued_request_bytes: int = _gauge("Bytes of requests that are unfinished or under way.")
    queued_response_bytes: int = _gauge("Bytes in memory of responses that clients have not read.")
    connections_accepted: int = _counter("Clients that connected.")
    connections_refused: int = _counter("Clients that were turned away at max.connections.")
    connections_idle_closed: int = _counter("Clients that were silent for too long.")
    http_connections_open: int = _gauge("HTTP clients that are connected.")
    http_connections_accepted: int = _counter("HTTP clients that connected.")
    http_connections_refused: int = _counter(
        "HTTP clients that were turned away at http.max.connections."
    )
    http_connections_idle_closed: int = _counter(
        "HTTP clients that were closed because they were idle."
    )
    grpc_calls_stalled: int = _counter(
        "gRPC calls that were cancelled: their clients were silent and others needed the memory."
    )
    syncs: int = _counter("Partitions that were synced to disk.")
    sync_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row("histogram", "One group of syncs: all partitions that were due."),
    )
    failed_syncs: int = _counter("Syncs that the disk refused.")
    loop_stall_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row("histogram", "How late the event loop came to its heartbeat."),
    )
    retention_segments: int = _counter("Segments that retention dropped.")
    retention_bytes: int = _counter("Bytes of segments that retention dropped.")
    compactions: int = _counter("Partitions that were compacted.")
    compacted_bytes: int = _counter("Bytes that compaction read.")
    compaction_saved_bytes: int = _counter("Bytes that compaction saved.")
    torn_bytes: int = _gauge("Bytes of torn tails that the start cut off.")
    problems: int = _gauge("What the start found wrong and what chores could not do.")

    def request_done(self, api: str, seconds: float) -> None:
        times = self.request_seconds.get(api)
        if times is None:
            times = self.request_seconds[api] = Histogram()
        times.observe(seconds)

    def http_call_done(self, call: str, seconds: float) -> None:
        self.http_seconds.setdefault(call, Histogram()).observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """All figures as plain values, by name."""
        return {row.name: _plain(getattr(self, row.name)) for row in table()}


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.snapshot()
    if isinstance(value, dict):
        return {name: each.snapshot() for name, each in sorted(value.items())}
    return value


def table() -> Iterator[Metric]:
    """Every figure there is."""
    for each in fields(Metrics):
        facts = each.metadata
        yield Metric(each.name, facts["kind"], facts["help"], facts["label"])
