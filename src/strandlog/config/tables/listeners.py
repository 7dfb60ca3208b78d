"""Settings of the HTTP and gRPC listeners and the schema registry. Kafka has no such settings."""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.authentication import AUTHENTICATION_CHOICES, AUTOMATIC
from strandlog.config.setting import MAX_INT, MAX_LONG, setting

KIB = 1024
MIB = 1024 * KIB
MINUTE_MS = 60_000


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ListenerSettings:
    """The part of `BrokerSettings` for HTTP, gRPC and the schema registry."""

    http_authentication: str = setting(
        kind="choice",
        default=AUTOMATIC,
        choices=AUTHENTICATION_CHOICES,
        dynamic=False,
        help=(
            "Whether HTTP clients must authenticate. `required`: a request without credentials "
            "gets a 401. `optional`: its principal is User:ANONYMOUS. `none`: the principal is "
            "always User:ANONYMOUS, and credentials are ignored. Empty: optional on loopback, "
            "otherwise required."
        ),
    )
    schema_registry_max_schema_bytes: int = setting(
        kind="bytes",
        default=512 * KIB,
        minimum=KIB,
        maximum=512 * KIB,
        dynamic=False,
        help=(
            "Maximum size of a schema as UTF-8. Parsing and comparing a schema of 512 KiB takes a "
            "second of CPU time."
        ),
    )
    schema_registry_enable: bool = setting(
        kind="bool",
        default=True,
        dynamic=False,
        help=(
            "Whether the broker provides a schema registry, with Confluent's API on the HTTP "
            "listener, and is the only writer of the topic `_schemas`. Set it to false to run "
            "another registry."
        ),
    )
    grpc_authentication: str = setting(
        kind="choice",
        default=AUTOMATIC,
        choices=AUTHENTICATION_CHOICES,
        dynamic=False,
        help=(
            "Whether gRPC clients must authenticate. The values are the same as for "
            "http.authentication; "
            "with `required`, a call without credentials gets UNAUTHENTICATED. Health checks never "
            "need credentials."
        ),
    )
    metrics_authentication: str = setting(
        kind="choice",
        default=AUTOMATIC,
        choices=(AUTOMATIC, "none", "required"),
        dynamic=False,
        help=(
            "Whether requests for /metrics must authenticate. Empty: as for http.authentication. "
            "`required`: always. In both cases, the principal needs DESCRIBE on the cluster. "
            "`none`: every client sees the names and figures of all topics and groups."
        ),
    )
    http_session_idle_timeout_ms: int = setting(
        kind="ms",
        default=30 * MINUTE_MS,
        minimum=1_000,
        maximum=MAX_LONG,
        dynamic=False,
        help="A console session ends after this time without a request or an open live stream.",
    )
    http_session_max_lifetime_ms: int = setting(
        kind="ms",
        default=12 * 60 * MINUTE_MS,
        minimum=1_000,
        maximum=MAX_LONG,
        dynamic=False,
        help="A console session ends this long after the login, even if it is in use.",
    )
    http_max_sessions: int = setting(
        kind="int",
        default=1_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of console sessions; a further login gets a 503.",
    )
    http_user_max_sessions: int = setting(
        kind="int",
        default=20,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of console sessions per user; a further login ends the oldest.",
    )
    http_max_failed_logins: int = setting(
        kind="int",
        default=30,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of failed logins over HTTP and gRPC per minute and client address; "
            "further attempts get a 429 or RESOURCE_EXHAUSTED without being checked. Sessions, and "
            "passwords and tokens that were verified in the last minute, are not affected."
        ),
    )
    http_max_connections: int = setting(
        kind="int",
        default=500,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of HTTP connections. A further one replaces the one that has been idle "
            "the longest; if none is idle, its requests get a 503, except /healthz and /readyz. "
            "Each connection takes a file descriptor."
        ),
    )
    http_idle_timeout_ms: int = setting(
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "HTTP connections are closed if they are idle for this long, or if a request line and "
            "its headers take longer to arrive."
        ),
    )
    http_upload_stall_ms: int = setting(
        kind="ms",
        default=5_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help="A request whose body makes no progress for this long gets a 408.",
    )
    http_upload_timeout_ms: int = setting(
        kind="ms",
        default=60_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help="Maximum time to receive an HTTP request body; after that, the request gets a 408.",
    )
    http_request_max_bytes: int = setting(
        kind="bytes",
        default=8 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum body size of an HTTP produce request; a larger request gets a 413.",
    )
    http_queued_max_request_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for the bodies of HTTP requests in progress. Above it, requests wait, "
            "and uploads that make no progress are aborted."
        ),
    )
    http_queued_max_response_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for large HTTP responses that clients have not read yet. Above it, "
            "requests wait, and clients that do not read are disconnected."
        ),
    )
    http_max_live_streams: int = setting(
        kind="int",
        default=100,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of concurrent /api/v1/live streams; further ones get a 503.",
    )
    http_max_json_objects: int = setting(
        kind="int",
        default=200_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of JSON objects, including nested ones, in the body of a request to "
            "the JSON API. Opening braces in strings count too."
        ),
    )
    grpc_max_connections: int = setting(
        kind="int",
        default=500,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of gRPC connections; further ones are closed. Each takes a file "
            "descriptor."
        ),
    )
    grpc_idle_timeout_ms: int = setting(
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "gRPC connections without a call for this long are closed to make room for others. "
            "Clients reconnect automatically."
        ),
    )
    grpc_max_calls: int = setting(
        kind="int",
        default=4096,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of concurrent gRPC calls; further ones get RESOURCE_EXHAUSTED. Streams "
            "may use three quarters of them."
        ),
    )
    grpc_connection_max_calls: int = setting(
        kind="int",
        default=1024,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of concurrent gRPC calls per connection; clients queue further ones.",
    )
    grpc_request_max_bytes: int = setting(
        kind="bytes",
        default=4 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum size of a gRPC message from a client.",
    )
    grpc_request_max_records: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of records and headers in one gRPC Produce request.",
    )
    grpc_queued_max_request_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for gRPC requests that are being received or processed. Above it, "
            "calls wait; see grpc.stall.timeout.ms."
        ),
    )
    grpc_queued_max_response_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for messages of gRPC Consume streams that clients have not received "
            "yet. Above it, streams wait; see grpc.stall.timeout.ms."
        ),
    )
    grpc_stall_timeout_ms: int = setting(
        kind="ms",
        default=2_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "If other calls wait for the memory of a gRPC call whose client does not read for this "
            "long, the client's connection is closed; a consumer can then resume at its next "
            "offset. If the client does not send its request, this happens after 250 ms at the "
            "latest."
        ),
    )
