"""Pipelined JoinGroup requests of one connection, sent before the offsets topic exists."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from strandlog.testing.server import ServerThread

JOIN_GROUP = 11


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _join(correlation_id: int, client_id: str, group: str) -> bytes:
    metadata = bytes(10)
    body = (
        _string(group)
        + struct.pack(">ii", 10_000, 10_000)
        + _string("")
        + _string("consumer")
        + struct.pack(">i", 1)
        + _string("range")
        + struct.pack(">i", len(metadata))
        + metadata
    )
    request = struct.pack(">hhi", JOIN_GROUP, 3, correlation_id) + _string(client_id) + body
    return struct.pack(">i", len(request)) + request


def test_members_keep_the_client_id_of_their_own_request(tmp_path: Path) -> None:
    """While the topic was created, both requests got the client id of the second one."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with (
        ServerThread(tmp_path / "data", settings) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection,
    ):
        connection.sendall(_join(1, "first", "g1") + _join(2, "second", "g2"))
        stream = connection.makefile("rb")
        for client_id in ("first", "second"):
            (size,) = struct.unpack(">i", stream.read(4))
            assert _string(f"{client_id}-")[2:] in stream.read(size)
