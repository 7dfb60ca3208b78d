"""Limits of the HTTP and gRPC listeners. Kafka has no such settings."""

from __future__ import annotations

from strandlog.config.setting import MAX_INT, MAX_LONG, Setting

MIB = 1024 * 1024
HEALTH_CONNECTIONS = 32  # of HTTP clients over http.max.connections, for health checks only

LISTENER_ROWS = (
    Setting(
        name="http.max.connections",
        kind="int",
        default=500,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "HTTP connections over this number are answered 503 and closed, unless they ask for "
            "/healthz or /readyz. Each takes a file descriptor."
        ),
    ),
    Setting(
        name="http.idle.timeout.ms",
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "An HTTP connection without a request for this long is closed; so is one whose request "
            "line and headers are not complete by then."
        ),
    ),
    Setting(
        name="http.upload.stall.ms",
        kind="ms",
        default=5_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help="A request whose body makes no progress for this long is answered 408 and closed.",
    ),
    Setting(
        name="http.upload.timeout.ms",
        kind="ms",
        default=60_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help="The body of a request must be complete within this time.",
    ),
    Setting(
        name="http.max.json.objects",
        kind="int",
        default=200_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="The most JSON objects in the body of a request, nested ones included.",
    ),
    Setting(
        name="grpc.max.connections",
        kind="int",
        default=500,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="gRPC connections over this number are closed. Each takes a file descriptor.",
    ),
    Setting(
        name="grpc.idle.timeout.ms",
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "A gRPC connection without a call for this long is closed, so that idle ones keep no "
            "client out. Clients connect again by themselves."
        ),
    ),
    Setting(
        name="grpc.max.calls",
        kind="int",
        default=4096,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "gRPC calls at the same time; more get RESOURCE_EXHAUSTED. Streams get three quarters "
            "of them."
        ),
    ),
    Setting(
        name="grpc.connection.max.calls",
        kind="int",
        default=1024,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="gRPC calls at the same time on one connection; clients keep more back.",
    ),
    Setting(
        name="grpc.request.max.bytes",
        kind="bytes",
        default=4 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="The largest message that a gRPC client may send.",
    ),
    Setting(
        name="grpc.request.max.records",
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="The most records and headers in one gRPC Produce.",
    ),
    Setting(
        name="grpc.queued.max.request.bytes",
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Memory for gRPC requests that are being received or worked on. More calls wait; see "
            "grpc.stall.timeout.ms."
        ),
    ),
    Setting(
        name="grpc.queued.max.response.bytes",
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Memory for messages of gRPC Consume streams that their clients have not taken. More "
            "streams wait; see grpc.stall.timeout.ms."
        ),
    ),
    Setting(
        name="grpc.stall.timeout.ms",
        kind="ms",
        default=2_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "A gRPC call whose client neither reads nor sends for this long is cancelled if other "
            "calls wait for its memory. A client that pauses goes on from the next offset."
        ),
    ),
)
