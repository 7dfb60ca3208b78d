"""Limits on the calls and streams of the gRPC listener."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import KIB, MIB, fixed_limit

GRPC_REMEMBERED_CERTIFICATES = fixed_limit(
    1_000,
    "gRPC: client certificates whose principal is cached",
    above="the oldest certificate is parsed again",
    why="each takes memory, and parsing one takes a tenth of a millisecond",
)
GRPC_SMALL_REQUEST_BYTES = fixed_limit(
    64 * KIB,
    "gRPC: size of a request other than Produce",
    above="INVALID_ARGUMENT",
    why="such a request contains only names and numbers",
)
GRPC_MAX_METADATA_BYTES = fixed_limit(
    16 * KIB,
    "gRPC: size of the metadata of a call",
    above="RESOURCE_EXHAUSTED",
    why="methods use only the credentials, which are shorter",
)
GRPC_CONSUME_MESSAGE_BYTES = fixed_limit(
    MIB,
    "gRPC: size of the records in a Consume message, unless a single record is larger",
    above="the records are sent in several messages",
    why="a larger message is not faster",
)
GRPC_HANDSHAKE_TIMEOUT_MS = fixed_limit(
    10_000,
    "gRPC without TLS: time for the HTTP/2 handshake, in ms",
    above="the connection is closed",
    why="clients complete it within milliseconds",
)
GRPC_MAX_NAME_BYTES = fixed_limit(
    KIB,
    "gRPC: size of a health or reflection request",
    above="INVALID_ARGUMENT",
    why="it contains only one name",
)
GRPC_REFLECTION_STREAMS = fixed_limit(
    4,
    "gRPC: open reflection streams",
    above="further ones wait, and a silent stream is closed",
    why="only developers use reflection, not programs",
)
