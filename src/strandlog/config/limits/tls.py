"""Limits on TLS handshakes and on key and certificate files."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import MIB, fixed_limit

TLS_MAX_HANDSHAKES = fixed_limit(
    1024,
    "connections of a Kafka or HTTP listener that have not finished their TLS handshake",
    above="the oldest one is closed",
    why="a client finishes within a second; more indicate an attack or a network failure",
)
TLS_STORE_MAX_BYTES = fixed_limit(
    16 * MIB,
    "size of a PEM file with a key or certificates",
    above="an error at startup; a changed file is not loaded",
    why="a file with all public CAs has 0.2 MB",
)
