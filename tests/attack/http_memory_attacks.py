"""Attacks on the HTTP listener with answers and values that are large."""

from __future__ import annotations

import contextlib
import time

from tests.attack.http_attacks import LISTENERS, ask, connect, healthy, request
from tests.attack.kafka_attacks import produce_frame
from tests.attack.scene import GoalMissedError, Scene, attack, receive
from tests.support.kafka_requests import create_topic

from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec

PARTITIONS = 10_000


def _many_partitions(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "wide", PARTITIONS)


@attack("http-unread-metrics", "/metrics of 10,000 partitions that is not read", count=200, few=20,
        prepare=_many_partitions, listeners=LISTENERS, limit_seconds=120.0)  # fmt: skip
def unread_metrics(scene: Scene) -> str:
    for _ in range(scene.count):
        connect(scene, request("GET", "/metrics"))
    time.sleep(30)
    return healthy(scene)


@attack("http-unread-files", "files of the console that are not read", count=400, few=20,
        listeners=LISTENERS)  # fmt: skip
def unread_files(scene: Scene) -> str:
    for _ in range(scene.count):
        connect(scene, request("GET", "/console/plotly.min.js"))
    time.sleep(5)
    return healthy(scene)


@attack("http-wide-topic", "a topic of 10,000 partitions, described again and again", count=40,
        few=4, prepare=_many_partitions, listeners=LISTENERS)  # fmt: skip
def wide_topic(scene: Scene) -> str:
    began = time.perf_counter()
    for _ in range(scene.count):
        status, body = ask(scene, "/api/v1/topics/wide")
        assert status == 200
        ask(scene, "/api/v1/topics")
    return f"{len(body):,} bytes, {(time.perf_counter() - began) / scene.count:.2f} s each"


def _json_batch(megabytes: int) -> bytes:
    """A batch of one value in JSON: tiny on disk, millions of objects when it is parsed."""
    value = b'{"a":[' + b"[]," * (megabytes * 1_000_000 // 3) + b"0]}"
    return bytes(build_batch(int(time.time() * 1000), [value], codec=Codec.GZIP))


def _json_values(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "json", 1)
    _produce(scene, "json", _json_batch(scene.count), 3)


def _produce(scene: Scene, topic: str, batch: bytes, times: int, pause: float = 0.0) -> None:
    connection = scene.connect()
    for _ in range(times):
        connection.sendall(produce_frame(topic, batch))
        receive(connection)
        time.sleep(pause)


@attack("http-json-search", "search by path in JSON values of 60 MB", count=60, few=4,
        prepare=_json_values, listeners=LISTENERS)  # fmt: skip
def json_search(scene: Scene) -> str:
    status, body = ask(scene, "/api/v1/topics/json/records?limit=10&path=$.b&max_bytes=33554432")
    return f"answered {status} {body[:300]!r}"


@attack("http-json-shown", "JSON values of 8 MB, shown", count=7, few=4,
        prepare=_json_values, listeners=LISTENERS)  # fmt: skip
def json_shown(scene: Scene) -> str:
    status, body = ask(scene, "/api/v1/topics/json/records?limit=10&max_value_bytes=8388608")
    return f"answered {status} {len(body)}"


@attack("http-json-tails", "filtered live streams over JSON values of 7 MB", count=7, few=4,
        prepare=_json_values, listeners=LISTENERS)  # fmt: skip
def json_tails(scene: Scene) -> str:
    for _ in range(100):
        connect(scene, request("GET", "/api/v1/live?interval_ms=100&topic=json&path=$.b"))
    _produce(scene, "json", _json_batch(scene.count), 5, pause=1.0)
    return healthy(scene)


@attack("http-wide-bodies", "HTTP bodies with a million settings, partitions or headers",
        count=1_000_000, few=100_000, listeners=LISTENERS)  # fmt: skip
def wide_bodies(scene: Scene) -> str:
    settings = b",".join(b'"%x":1' % number for number in range(scene.count * 7 // 10))
    headers = b'{"name":"n"},' * min(190_000, scene.count)
    bodies = {
        "/api/v1/topics": b'{"name":"x","config":{' + settings + b"}}",
        "/api/v1/groups/g/reset": b'{"to":"earliest","topic":"probe","partitions":['
        + b"1000," * scene.count
        + b"0]}",
        "/api/v1/topics/probe/records": b'{"records":[{"headers":[' + headers + b'{"name":"n"}]}]}',
    }
    statuses = [ask(scene, path, body)[0] for path, body in bodies.items()]
    if statuses != [413, 413, 200]:
        raise GoalMissedError(f"answered {statuses}")
    return f"answered {statuses}"


@attack("http-pipelined", "10,000 HTTP requests in one packet", count=10_000, few=1000,
        listeners=LISTENERS)  # fmt: skip
def pipelined(scene: Scene) -> str:
    for path in ("/healthz", "/metrics", "/console/plotly.min.js"):
        for _ in range(5):
            connection = connect(scene)
            connection.settimeout(2)
            with contextlib.suppress(OSError):
                connection.sendall(request("GET", path) * scene.count)
    time.sleep(3)
    return healthy(scene)


def _large_values(scene: Scene) -> None:
    with scene.wire() as wire:
        create_topic(wire, "values", 1)
    batch = bytes(build_batch(int(time.time() * 1000), [b"\x00" * 30_000] * 30))
    _produce(scene, "values", batch, 64)


@attack("http-unread-pages", "pages of records, 32 MB each, that are not read", count=400, few=20,
        prepare=_large_values, listeners=LISTENERS)  # fmt: skip
def unread_pages(scene: Scene) -> str:
    path = "/api/v1/topics/values/records?limit=1000&max_bytes=33554432"
    path += "&max_value_bytes=65536&format=text"
    for _ in range(scene.count):
        connect(scene, request("GET", path))
    time.sleep(20)
    return healthy(scene)
