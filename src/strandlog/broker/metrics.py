"""Declares the counters, gauges and histograms of one broker.

Each field of `Metrics` defines one metric, or one family of histograms with a label: its name, its
kind, and its help text. Code updates the fields directly. There is no lock: only the thread that
owns the broker updates metrics; other threads pass their numbers to it.

    counter      starts at 0 and only increases
    gauge        goes up and down
    histogram    durations, in buckets with the upper bounds `LIMITS_SECONDS`

Updating metrics costs a few additions per request, never per record. Names follow the Prometheus
conventions: the name includes the unit, and `exported_name` adds the prefix and, for counters, the
suffix.
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
    """A distribution of durations."""

    __slots__ = ("counts", "max_seconds", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LIMITS_SECONDS) + 1)  # the last bucket has no upper bound
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
        """Return the upper bound of this quantile's bucket, or the maximum if that is lower."""
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
    """The definition of one metric."""

    name: str
    kind: Kind
    help: str
    label: str  # distinguishes the histograms of a family; "" for a single metric

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
    """The metrics of one broker."""

    produced_bytes: int = _counter("Bytes of record batches produced.")
    produced_records: int = _counter("Records produced.")
    fetched_bytes: int = _counter("Bytes of record batches fetched.")
    fetched_records: int = _counter(
        "Records consumed, measured as the distance between successive fetch offsets."
    )
    request_seconds: dict[str, Histogram] = field(
        default_factory=dict,
        metadata=_row(
            "histogram",
            "Time from Kafka request to response, including waiting.",
            "api",
        ),
    )
    handler_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row(
            "histogram", "Time the event loop spent on one Kafka request, excluding waiting."
        ),
    )
    http_seconds: dict[str, Histogram] = field(
        default_factory=dict,
        metadata=_row("histogram", "Time from HTTP request to response.", "call"),
    )
    slow_handlers: int = _counter(
        "Kafka requests that blocked the event loop for too long; see the log."
    )
    failed_requests: int = _counter("Kafka requests whose failure closed the connection.")
    denied_requests: int = _counter("Operations denied because the client lacked a permission.")
    topics: int = _gauge("Topics, including internal ones (topics.max.count).")
    partitions: int = _gauge("Partitions of all topics (max.partitions.per.broker).")
    groups: int = _gauge("Consumer groups (groups.max.count).")
    group_members: int = _gauge("Members of all groups (groups.max.members).")
    producers: int = _gauge("Idempotent producers in all partitions (producer.ids.max.count).")
    transactional_ids: int = _gauge("Transactional ids (transactional.ids.max.count).")
    open_transactions: int = _gauge("Open transactions (open.transactions.max.count).")
    acls: int = _gauge("ACLs (acls.max.count).")
    users: int = _gauge("Users with a password (users.max.count).")
    throttled_requests: int = _counter("Requests from clients that exceeded a quota.")
    throttle_ms: int = _counter("Total time that quotas made Kafka clients pause, in milliseconds.")
    client_quotas: int = _gauge("Client quotas that are set (client.quotas.max.count).")
    quota_sensors: int = _gauge("Users, client ids and addresses whose rates are measured.")
    audit_events_lost: int = _counter("Events that could not be written to the audit log.")
    requests_in_flight: int = _gauge("Kafka requests that have not been answered yet.")
    waiting_fetches: int = _gauge("Fetches waiting for more records.")
    connections_open: int = _gauge("Open Kafka connections.")
    connections_paused: int = _gauge("Kafka connections paused by back-pressure or a quota.")
    connections_muted: int = _gauge("Kafka connections paused because of a quota.")
    connections_throttled: int = _counter("Connections closed because of a quota on their address.")
    connections_stalled_closed: int = _counter(
        "Stalled connections closed to free the memory used by their requests or responses."
    )
    queued_request_bytes: int = _gauge("Bytes of requests that are being received or processed.")
    queued_response_bytes: int = _gauge("Bytes of responses that clients have not read yet.")
    connections_accepted: int = _counter("Kafka connections accepted.")
    connections_refused: int = _counter("Kafka connections refused because of max.connections.")
    connections_refused_per_ip: int = _counter(
        "Kafka and HTTP connections refused because of max.connections.per.ip."
    )
    connections_delayed: int = _counter(
        "Times that max.connection.creation.rate delayed the acceptance of connections."
    )
    accept_failures: int = _counter("Times that the operating system failed to accept connections.")
    connections_idle_closed: int = _counter("Idle Kafka connections closed.")
    connections_authenticating: int = _gauge("Kafka connections that are authenticating.")
    connections_ended: int = _counter(
        "Connections closed because their user's credential was changed or deleted."
    )
    logins_succeeded: int = _counter("Successful logins of Kafka clients.")
    logins_failed: int = _counter("Failed logins of Kafka clients.")
    logins_delayed: int = _counter("Logins of Kafka clients delayed because earlier ones failed.")
    logins_timed_out: int = _counter(
        "Connections closed because the client did not authenticate in time."
    )
    logins_dropped: int = _counter(
        "Connections closed before they authenticated, to stay within max.connections."
    )
    sessions_expired: int = _counter(
        "Connections closed because the client did not re-authenticate in time."
    )
    tls_handshake_failures: int = _counter("TLS handshakes that failed or took too long.")
    tls_handshakes_dropped: int = _counter(
        "Unfinished TLS handshakes dropped to make room for newer connections."
    )
    tls_reloads: int = _counter("Reloads of changed certificate files.")
    tls_reload_failures: int = _counter("Failed reloads of changed certificate files.")
    tls_certificate_expiry_seconds: float = _gauge(
        "Earliest expiry of a listener's certificate, in seconds since 1970; 0 without TLS."
    )
    http_connections_open: int = _gauge("Open HTTP connections.")
    http_connections_accepted: int = _counter("HTTP connections accepted.")
    http_connections_refused: int = _counter(
        "HTTP connections refused because of http.max.connections."
    )
    http_connections_idle_closed: int = _counter("Idle HTTP connections closed.")
    grpc_calls_stalled: int = _counter(
        "Stalled gRPC calls cancelled to free the memory used by their requests or responses."
    )
    fsyncs: int = _counter("Fsyncs of partitions, including those that failed.")
    fsync_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row("histogram", "Time of a group commit, which fsyncs partitions that are due."),
    )
    fsync_failures: int = _counter("Fsyncs that failed.")
    event_loop_delay_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_row("histogram", "Delay of the event loop's timers."),
    )
    retention_segments: int = _counter("Segments deleted by retention.")
    retention_bytes: int = _counter("Bytes deleted by retention.")
    retention_held_bytes: int = _gauge(
        "Expired bytes that retention keeps because they are not in the topic's lake table yet."
    )
    tables: int = _gauge("Topics with a lake table (table.format).")
    tables_failing: int = _gauge("Lake tables whose last sync failed.")
    table_process_restarts: int = _counter(
        "Restarts of the process that syncs lake tables, after it ended unexpectedly."
    )
    compactions: int = _counter("Partition compactions completed.")
    compacted_bytes: int = _counter("Bytes read by compaction.")
    compaction_saved_bytes: int = _counter("Bytes saved by compaction.")
    torn_bytes: int = _gauge("Bytes of torn tails cut off at start-up.")
    problems: int = _gauge(
        "Problems found in the data, failures of maintenance tasks, and problems with lake tables."
    )

    def request_done(self, api: str, seconds: float) -> None:
        times = self.request_seconds.get(api)
        if times is None:
            times = self.request_seconds[api] = Histogram()
        times.observe(seconds)

    def http_call_done(self, call: str, seconds: float) -> None:
        self.http_seconds.setdefault(call, Histogram()).observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """Return all metrics as plain values, by name."""
        return {row.name: _plain(getattr(self, row.name)) for row in table()}


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.snapshot()
    if isinstance(value, dict):
        return {name: each.snapshot() for name, each in sorted(value.items())}
    return value


def table() -> Iterator[Metric]:
    """Yield the definition of every metric."""
    for each in fields(Metrics):
        facts = each.metadata
        yield Metric(each.name, facts["kind"], facts["help"], facts["label"])
