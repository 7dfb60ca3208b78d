"""Batches of a million records: a few hundred kilobytes that are expensive to decode."""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from functools import cache

from tests.attack.kafka_attacks import produce_frame
from tests.attack.scene import GoalMissedError, Scene, attack, frame, receive
from tests.support.kafka_requests import create_topic

from strandlog.record.builder import BatchBuilder, build_batch
from strandlog.record.codecs import Codec

REQUESTS = 6
LARGE = {"message.max.bytes": "20971520"}
LATER_MS = 60_000


@cache
def _batch(count: int, codec: Codec = Codec.ZSTD) -> tuple[bytes, int]:
    """A batch of small records of different sizes, of which the last is the latest; its time."""
    now_ms = int(time.time() * 1000)
    times = [now_ms] * (count - 1) + [now_ms + LATER_MS]
    values = [b"v" * (number % 3) for number in range(count)]
    data = build_batch(now_ms, values, [b"k"] * count, codec=codec, timestamps=times)
    return bytes(data), times[-1]


def _exchange(scene: Scene, request: bytes, times: int) -> list[bytes]:
    connection = scene.connect()
    began = time.perf_counter()
    connection.sendall(request * times)
    replies = [receive(connection) for _ in range(times)]
    scene.say(f"{times} replies in {time.perf_counter() - began:.1f} s")
    return replies


def _compacted_topic(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "keyed", 1, **{"cleanup.policy": "compact"})
    _batch(scene.count)


@attack(
    "compacted-millions",
    "Produce of a million records in one batch to a compacted topic",
    count=1_000_000,
    few=50_000,
    prepare=_compacted_topic,
    settings=LARGE,
)
def compacted_millions(scene: Scene) -> str:
    data, _ = _batch(scene.count)
    replies = _exchange(scene, produce_frame("keyed", data), REQUESTS)
    if len(set(replies)) != REQUESTS:
        raise GoalMissedError("every batch gets offsets of its own")
    return f"{REQUESTS} batches of {len(data)} bytes"


def _plain_topic(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "plain", 1)
    _exchange(scene, produce_frame("plain", _batch(scene.count)[0]), 1)


@attack(
    "list-offsets-large-batch",
    "ListOffsets by time inside a batch of a million records",
    count=1_000_000,
    few=50_000,
    prepare=_plain_topic,
    settings=LARGE,
)
def list_offsets_large_batch(scene: Scene) -> str:
    topic = struct.pack(">h", 5) + b"plain"
    part = struct.pack(">iiq", 1, 0, _batch(scene.count)[1])
    body = struct.pack(">ii", -1, 1) + topic + part
    replies = _exchange(scene, frame(2, 1, body), REQUESTS)
    found = {struct.unpack(">q", reply[-8:])[0] for reply in replies}
    if found != {scene.count - 1}:
        raise GoalMissedError(f"the last record of the batch is the answer, not {found}")
    return f"{REQUESTS} lookups"


@attack(
    "http-limit-one",
    "HTTP records with limit=1 inside a batch of a million records",
    count=1_000_000,
    few=50_000,
    prepare=_plain_topic,
    settings=LARGE,
    listeners=("--no-grpc", "--http-port", "0"),
)
def http_limit_one(scene: Scene) -> str:
    host, port = scene.address_of("http")
    began = time.perf_counter()
    for offset in (0, scene.count // 2, scene.count - 1):
        query = f"partition=0&limit=1&offset={offset}"
        url = f"http://{host}:{port}/api/v1/topics/plain/records?{query}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = json.load(answer)
        if [record["offset"] for record in page["records"]] != [offset]:
            raise GoalMissedError(f"offset {offset} was asked for: {page}")
    return f"3 pages in {time.perf_counter() - began:.1f} s"


@cache
def _many_headers(count: int) -> bytes:
    """A batch of records with 90,000 empty headers each, 50 KB compressed."""
    headers = (("", b""),) * 90_000
    builder = BatchBuilder(Codec.GZIP)
    for _ in range(count):
        builder.append(int(time.time() * 1000), None, b"v", headers)
    return bytes(builder.build())


def _header_topic(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "headers", 1)
    _exchange(scene, produce_frame("headers", _many_headers(scene.count)), 1)


@attack(
    "http-many-headers",
    "HTTP records with limit=1 of 300 records with 90,000 headers each",
    count=300,
    few=20,
    prepare=_header_topic,
    settings=LARGE,
    listeners=("--no-grpc", "--http-port", "0"),
)
def http_many_headers(scene: Scene) -> str:
    host, port = scene.address_of("http")
    began = time.perf_counter()
    url = f"http://{host}:{port}/api/v1/topics/headers/records?limit=1"
    with urllib.request.urlopen(url, timeout=60) as answer:
        size = len(answer.read())
    return f"a page of {size} bytes in {time.perf_counter() - began:.1f} s"
