"""Attacks on the Kafka listener: peers that do not read, and requests with huge counts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time

from tests.attack.scene import Scene, attack, frame, receive
from tests.support.kafka_requests import Wire, create_topic

from strandlog.record.builder import build_batch

MEGABYTE = 1_000_000
FRAME_BYTES = 98 * MEGABYTE
PIECE_BYTES = MEGABYTE
UNREAD_SECONDS = 10.0
MANY = 50  # requests at a time


def _text(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def _array(count: int, items: bytes) -> bytes:
    return struct.pack(">i", count) + items


def _one_topic(name: str, count: int, partitions: bytes) -> bytes:
    return _array(1, _text(name) + _array(count, partitions))


def _batch(size: int) -> bytes:
    return bytes(build_batch(int(time.time() * 1000), [b"x" * 1000] * (size // 1000)))


def produce_frame(topic: str, batch: bytes, *, times: int = 1) -> bytes:
    """A Produce request, acks=all, that names partition 0 so many times."""
    part = struct.pack(">ii", 0, len(batch)) + batch
    body = struct.pack(">hhi", -1, -1, 30_000) + _one_topic(topic, times, part * times)
    return frame(0, 3, body)


def fetch_frame(topic: str, partitions: list[int], max_bytes: int, each_bytes: int) -> bytes:
    """A Fetch request from offset 0 of each of the partitions."""
    parts = b"".join(struct.pack(">iqi", number, 0, each_bytes) for number in partitions)
    body = struct.pack(">iiiib", -1, 0, 1, max_bytes, 0)
    return frame(1, 4, body + _one_topic(topic, len(partitions), parts))


def fill(scene: Scene, topic: str, partitions: int, megabytes: int) -> None:
    """Make a topic and write that much into each of its partitions."""
    batch = _batch(900_000)
    with Wire(scene.port) as wire:
        create_topic(wire, topic, partitions)
        for number in range(partitions):
            part = struct.pack(">ii", number, len(batch)) + batch
            body = struct.pack(">hhi", -1, 1, 30_000) + _one_topic(topic, 1, part)
            for _ in range(megabytes):
                wire.socket.sendall(frame(0, 3, body))
                wire.receive()


def _ask(scene: Scene, request: bytes) -> str:
    """Send one request and read its reply; how long that took."""
    connection = scene.connect()
    began = time.perf_counter()
    connection.sendall(request)
    reply = receive(connection)
    return f"answered in {time.perf_counter() - began:.1f} s, {len(reply):,} bytes"


# -- peers that stop -----------------------------------------------------------------------------


@attack(
    "consumers-that-never-read",
    "100 consumers that never read",
    count=100,
    few=20,
    prepare=lambda scene: fill(scene, "big", 1, 60),
    settle_seconds=8.0,
)
def consumers_that_never_read(scene: Scene) -> None:
    request = fetch_frame("big", [0], 50 * MEGABYTE, 50 * MEGABYTE)
    for _ in range(scene.count):
        scene.connect().sendall(request * 3)


@attack(
    "consumers-that-fetch-at-once",
    "100 idle consumers that fetch in the same moment and never read",
    count=100,
    few=40,
    prepare=lambda scene: fill(scene, "big", 1, 60),
    settle_seconds=8.0,
)
def consumers_that_fetch_at_once(scene: Scene) -> None:
    request = fetch_frame("big", [0], 50 * MEGABYTE, 50 * MEGABYTE)
    connections = [scene.connect() for _ in range(scene.count)]
    for connection in connections:
        connection.sendall(frame(18, 0, b""))
        receive(connection)
    os.kill(scene.pid, signal.SIGSTOP)  # so that the broker sees all requests at once
    for connection in connections:
        connection.sendall(request)
    os.kill(scene.pid, signal.SIGCONT)


@attack(
    "parked-consumers-that-never-read",
    "100 consumers with 60 parked fetches each that never read",
    count=100,
    few=10,
    prepare=lambda scene: fill(scene, "big", 1, 0),
    settle_seconds=8.0,
)
def parked_consumers_that_never_read(scene: Scene) -> None:
    parts = struct.pack(">iqi", 0, 0, 50 * MEGABYTE)
    body = struct.pack(">iiiib", -1, 60_000, 20 * MEGABYTE, 50 * MEGABYTE, 0)
    request = frame(1, 4, body + _one_topic("big", 1, parts))
    for _ in range(scene.count):
        scene.connect().sendall(request * 60)
    writer = scene.connect()
    batch = _batch(900_000)
    for _ in range(30):
        writer.sendall(produce_frame("big", batch))
        receive(writer)


@attack("unfinished-frames", "40 unfinished frames of 98 MB", count=40, few=4)
def unfinished_frames(scene: Scene) -> str:
    connections = [scene.connect() for _ in range(scene.count)]
    start = struct.pack(">i", FRAME_BYTES) + struct.pack(">hhih", 0, 3, 7, -1)
    piece = bytes(PIECE_BYTES)
    left = dict.fromkeys(connections, FRAME_BYTES - MEGABYTE)
    for connection in connections:
        connection.settimeout(0)
        connection.sendall(start)
    deadline = time.perf_counter() + UNREAD_SECONDS
    while left and time.perf_counter() < deadline:
        sent = 0
        for connection in list(left):
            try:
                sent += (now := connection.send(piece))
            except BlockingIOError:
                continue
            except OSError:  # the broker closed it
                del left[connection]
                continue
            left[connection] -= now
            if left[connection] <= 0:
                del left[connection]
        if not sent:
            time.sleep(0.01)
    return f"{len(left)} senders are paused"


@attack(
    "huge-fetch",
    "Fetch of 2 GB from 1,000 partitions of 1 MB",
    count=1000,
    few=50,
    prepare=lambda scene: fill(scene, "wide", scene.count, 1),
)
def huge_fetch(scene: Scene) -> str:
    request = fetch_frame("wide", list(range(scene.count)), 2**31 - 1, MEGABYTE)
    connection = scene.connect()
    connection.sendall(request * 4)
    began = time.perf_counter()
    for _ in range(4):
        receive(connection, keep=False)
    return f"4 replies in {time.perf_counter() - began:.1f} s"


# -- the same item again -------------------------------------------------------------------------


def _small_topic(scene: Scene) -> None:
    fill(scene, "small", 1, 1)


@attack(
    "list-offsets-repeated",
    "ListOffsets, one partition 20,000 times, by time",
    count=20_000,
    few=2_000,
    prepare=_small_topic,
)
def list_offsets_repeated(scene: Scene) -> str:
    part = struct.pack(">iq", 0, 1)
    body = struct.pack(">i", -1) + _one_topic("small", scene.count, part * scene.count)
    return _ask(scene, frame(2, 1, body))


@attack(
    "fetch-repeated",
    "Fetch, one partition a million times",
    count=1_000_000,
    few=20_000,
    prepare=_small_topic,
)
def fetch_repeated(scene: Scene) -> str:
    return _ask(scene, fetch_frame("small", [0] * scene.count, 50 * MEGABYTE, MEGABYTE))


PRODUCERS = 20_000


def _many_producers(scene: Scene) -> None:
    """A partition that knows the sequence numbers of thousands of producers."""
    now_ms = int(time.time() * 1000)
    with Wire(scene.port) as wire:
        create_topic(wire, "small")
        for start in range(0, PRODUCERS, MANY):
            for number in range(start, start + MANY):
                batch = build_batch(
                    now_ms, [b"v"], producer_id=number, producer_epoch=0, base_sequence=0
                )
                wire.socket.sendall(produce_frame("small", bytes(batch)))
            for _ in range(MANY):
                wire.receive()


@attack(
    "describe-producers-repeated",
    "DescribeProducers, a partition with 20,000 producers 100 times",
    count=100,
    few=10,
    prepare=_many_producers,
)
def describe_producers_repeated(scene: Scene) -> str:
    partitions = bytes([scene.count + 1]) + struct.pack(">i", 0) * scene.count
    body = b"\x02" + bytes([len("small") + 1]) + b"small" + partitions + b"\0\0"
    return _ask(scene, frame(61, 0, body, tags=b"\0"))


@attack(
    "produce-repeated",
    "Produce, one partition 1,000 times",
    count=1_000,
    few=100,
    prepare=_small_topic,
)
def produce_repeated(scene: Scene) -> str:
    return _ask(scene, produce_frame("small", _batch(1000), times=scene.count))


# -- names that are not there --------------------------------------------------------------------


def _metadata(names: int, *, create: bool) -> bytes:
    listed = b"".join(_text(f"n{number}") for number in range(names))
    return frame(3, 4, _array(names, listed) + (b"\1" if create else b"\0"))


@attack(
    "metadata-unknown-names",
    "Metadata with a million unknown names",
    count=1_000_000,
    few=20_000,
)
def metadata_unknown_names(scene: Scene) -> str:
    return _ask(scene, _metadata(scene.count, create=False))


@attack(
    "auto-creation",
    "auto-creation by one request of 100,000 names",
    count=100_000,
    few=3_000,
    settle_seconds=5.0,
)
def auto_creation(scene: Scene) -> str:
    connection = scene.connect()
    connection.settimeout(15)
    connection.sendall(_metadata(scene.count, create=True))
    with contextlib.suppress(socket.timeout):
        return f"answered with {len(receive(connection)):,} bytes"
    return "no answer after 15 s"
