"""Attacks on the group coordinator: huge groups, and requests that name many of them."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Iterable

from tests.attack.scene import Scene, attack, frame, receive
from tests.support.kafka_requests import Wire, create_topic

JOIN_GROUP, LEAVE_GROUP, DESCRIBE_GROUPS = 11, 13, 15
OFFSET_COMMIT, OFFSET_FETCH, DELETE_GROUPS = 8, 9, 42
MEMBERS_PER_CONNECTION = 50
JOIN_SECONDS = 20.0


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def _join_frame(group: str, metadata: bytes = b"m" * 50) -> bytes:
    protocols = struct.pack(">i", 1) + _text("range") + struct.pack(">i", len(metadata)) + metadata
    body = _text(group) + struct.pack(">ii", 30_000, 60_000) + _text("") + _text("consumer")
    return frame(JOIN_GROUP, 2, body + protocols)


def _drain(connections: Iterable[socket.socket], seconds: float) -> int:
    """Read whatever comes for a while; how many bytes that was."""
    got, deadline = 0, time.perf_counter() + seconds
    left = list(connections)
    while left and time.perf_counter() < deadline:
        ready, _, _ = select.select(left, [], [], 0.2)
        for connection in ready:
            with contextlib.suppress(OSError):
                data = connection.recv(1_000_000)
                got += len(data)
                if data:
                    continue
            left.remove(connection)
    return got


def _join_many(scene: Scene, groups: Iterable[str], metadata: bytes = b"m" * 50) -> str:
    names = list(groups)
    connections = [scene.connect() for _ in range(-(-len(names) // MEMBERS_PER_CONNECTION))]
    for number, name in enumerate(names):
        connections[number % len(connections)].sendall(_join_frame(name, metadata))
    return f"{_drain(connections, JOIN_SECONDS):,} bytes of replies"


@attack(
    "many-members",
    "JoinGroup with 10,000 members in one group",
    count=10_000,
    few=300,
    settle_seconds=3.0,
)
def many_members(scene: Scene) -> str:
    return _join_many(scene, ["crowd"] * scene.count)


@attack("many-groups", "JoinGroup into 20,000 groups", count=20_000, few=300)
def many_groups(scene: Scene) -> str:
    return _join_many(scene, [f"group-{number}" for number in range(scene.count)])


@attack(
    "large-metadata",
    "JoinGroup of 2,000 members with 500 KB of metadata each",
    count=2_000,
    few=20,
)
def large_metadata(scene: Scene) -> str:
    return _join_many(scene, ["heavy"] * scene.count, bytes(500_000))


def _ask(scene: Scene, request: bytes) -> str:
    connection = scene.connect()
    began = time.perf_counter()
    connection.sendall(request)
    try:
        reply = receive(connection)
    except (OSError, AssertionError, struct.error):
        return f"disconnected after {time.perf_counter() - began:.1f} s"
    return f"answered in {time.perf_counter() - began:.1f} s, {len(reply):,} bytes"


def _crowd(scene: Scene) -> None:
    """A group of many members, which stay behind for half a minute."""
    _join_many(scene, ["crowd"] * min(2_000, scene.count))


@attack(
    "describe-groups-repeated",
    "DescribeGroups, one group of 2,000 members 3,000 times",
    count=3_000,
    few=200,
    prepare=_crowd,
)
def describe_groups_repeated(scene: Scene) -> str:
    names = struct.pack(">i", scene.count) + _text("crowd") * scene.count
    return _ask(scene, frame(DESCRIBE_GROUPS, 0, names))


@attack("leave-group-repeated", "LeaveGroup, a million members", count=1_000_000, few=20_000)
def leave_group_repeated(scene: Scene) -> str:
    member = _text("stranger") + struct.pack(">h", -1)
    body = _text("crowd") + struct.pack(">i", scene.count) + member * scene.count
    return _ask(scene, frame(LEAVE_GROUP, 3, body))


@attack("delete-groups-many", "DeleteGroups, a million names", count=1_000_000, few=15_000)
def delete_groups_many(scene: Scene) -> str:
    names = b"".join(_text(f"g{number}") for number in range(scene.count))
    return _ask(scene, frame(DELETE_GROUPS, 0, struct.pack(">i", scene.count) + names))


def _wide_topic(scene: Scene) -> None:
    with Wire(scene.port) as wire:
        create_topic(wire, "wide", 100)


@attack(
    "offset-commit-many",
    "OffsetCommit, a million rows",
    count=1_000_000,
    few=10_000,
    prepare=_wide_topic,
)
def offset_commit_many(scene: Scene) -> str:
    rows = b"".join(
        struct.pack(">iq", number % 100, number) + _text("") for number in range(scene.count)
    )
    head = _text("g") + struct.pack(">i", -1) + _text("") + struct.pack(">q", -1)
    topics = struct.pack(">i", 1) + _text("wide") + struct.pack(">i", scene.count) + rows
    return _ask(scene, frame(OFFSET_COMMIT, 2, head + topics))


@attack(
    "offset-fetch-many",
    "OffsetFetch, a million partitions",
    count=1_000_000,
    few=15_000,
    prepare=_wide_topic,
)
def offset_fetch_many(scene: Scene) -> str:
    rows = b"".join(struct.pack(">i", number % 100) for number in range(scene.count))
    topics = struct.pack(">i", 1) + _text("wide") + struct.pack(">i", scene.count) + rows
    return _ask(scene, frame(OFFSET_FETCH, 1, _text("g") + topics))
