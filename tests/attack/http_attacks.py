"""Attacks on the HTTP listener."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

from tests.attack.kafka_attacks import fill
from tests.attack.scene import GoalMissedError, Scene, attack

LISTENERS = ("--no-grpc", "--http-port", "0")
BODY_BYTES = 8_000_000
HEALTH_GOAL_SECONDS = 2.0


def connect(scene: Scene, data: bytes = b"") -> socket.socket:
    connection = scene.connect(scene.address_of("http")[1])
    connection.sendall(data)
    return connection


def request(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


def upload(path: str, length: int) -> bytes:
    json_type = "Content-Type: application/json"
    return request("POST", path, json_type, f"Content-Length: {length}")


def ask(scene: Scene, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and content of a well-behaved request."""
    host, port = scene.address_of("http")
    made = urllib.request.Request(
        f"http://{host}:{port}{path}", body, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(made, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def healthy(scene: Scene) -> str:
    """Check that health is answered, quickly."""
    began = time.perf_counter()
    status, _ = ask(scene, "/healthz")
    took = time.perf_counter() - began
    if status != 200 or took > HEALTH_GOAL_SECONDS:
        raise GoalMissedError(f"/healthz: {status} after {took:.1f} s")
    return f"/healthz after {took * 1000:.0f} ms"


@attack("http-idle", "idle HTTP connections", count=4200, few=600, listeners=LISTENERS)
def idle(scene: Scene) -> str:
    for _ in range(scene.count):
        with contextlib.suppress(OSError):
            connect(scene)
    return healthy(scene)


@attack("http-slow-headers", "HTTP headers that never end", count=600, few=50, listeners=LISTENERS)
def slow_headers(scene: Scene) -> str:
    connections = [connect(scene, b"GET / HTTP/1.1\r\nHost: x\r\n") for _ in range(scene.count)]
    for _ in range(5):
        for each in connections:
            with contextlib.suppress(OSError):
                each.sendall(b"X: y\r\n")
    return healthy(scene)


@attack("http-stalled-uploads", "HTTP uploads that stop", count=100, few=10, listeners=LISTENERS)
def stalled_uploads(scene: Scene) -> str:
    for _ in range(scene.count):
        connection = connect(scene, upload("/api/v1/topics/probe/records", BODY_BYTES))
        connection.settimeout(0.05)
        with contextlib.suppress(OSError):
            connection.sendall(b" " * (BODY_BYTES - 1))
    began = time.perf_counter()
    status, _ = ask(scene, "/api/v1/topics", b'{"name":"made"}')
    took = time.perf_counter() - began
    if status != 201:
        raise GoalMissedError(f"another upload was answered {status}")
    return f"another upload took {took:.1f} s; {healthy(scene)}"


@attack("http-bodies", "HTTP bodies deep, wide and of millions of items", count=2_600_000,
        few=300_000, listeners=LISTENERS)  # fmt: skip
def bodies(scene: Scene) -> str:
    path = "/api/v1/topics/probe/records"
    deep = b'{"records":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    many = b'{"records":[' + b"{}," * scene.count + b"{}]}"
    nothing = b'{"records":[' + b"0," * scene.count + b"0]}"
    statuses = [ask(scene, path, body)[0] for body in (deep, many, nothing)]
    if any(status not in (400, 413, 422) for status in statuses):
        raise GoalMissedError(f"answered {statuses}")
    return f"answered {statuses}"


def _fill(scene: Scene) -> None:
    fill(scene, "large", 1, 64)


@attack("http-unread", "HTTP answers that are not read", count=400, few=20, prepare=_fill,
        listeners=LISTENERS, limit_seconds=90.0)  # fmt: skip
def unread(scene: Scene) -> str:
    path = "/api/v1/topics/large/records?limit=1000&max_value_bytes=16384"
    for _ in range(scene.count):
        connect(scene, request("GET", path))
    time.sleep(5)
    return healthy(scene)


@attack("http-unread-streams", "live streams that are not read", count=200, few=20,
        listeners=LISTENERS)  # fmt: skip
def unread_streams(scene: Scene) -> str:
    for _ in range(scene.count):
        connect(scene, request("GET", "/api/v1/live?interval_ms=100&topic=probe"))
    time.sleep(3)
    return healthy(scene)


@attack("http-search", "searches through a large topic", count=100, few=5, prepare=_fill,
        listeners=LISTENERS)  # fmt: skip
def search(scene: Scene) -> str:
    path = "/api/v1/topics/large/records?limit=10&value=nothing&max_bytes=33554432&max_ms=5000"
    for _ in range(scene.count):
        connect(scene, request("GET", path))
    time.sleep(3)
    return healthy(scene)


@attack("http-hammering", "/metrics, OpenAPI and topics as fast as they come", count=2000, few=60,
        listeners=LISTENERS)  # fmt: skip
def hammering(scene: Scene) -> str:
    paths = ["/metrics", "/api/v1/openapi.json", "/api/v1/topics", "/api/v1/groups"]

    def work(number: int) -> None:
        for turn in range(scene.count // 8):
            ask(scene, paths[(number + turn) % len(paths)])

    _together(8, work)
    return healthy(scene)


@attack("http-reports", "reports of ever new pipelines", count=4000, few=100, listeners=LISTENERS)
def reports(scene: Scene) -> str:
    queries = [{"name": "q" * 190 + str(number)} for number in range(32)]

    def work(number: int) -> None:
        for turn in range(scene.count // 8):
            body: dict[str, Any] = {"queries": queries, "error": "e" * 2000}
            path = f"/api/v1/pipelines/{'p' * 150}{number}-{turn}/progress"
            ask(scene, path, json.dumps(body).encode())

    _together(8, work)
    return healthy(scene)


@attack("http-passwords", "wrong passwords from ever new addresses", count=4000, few=200,
        settings={"http.authentication": "required"}, listeners=LISTENERS)  # fmt: skip
def passwords(scene: Scene) -> str:
    """Half of them as Basic, half on the login page; every third address guesses three times."""
    host, port = scene.address_of("http")
    statuses: Counter[int] = Counter()

    def work(number: int) -> None:
        for turn in range(scene.count // 16):
            address = f"127.{1 + number}.{turn // 3 // 250}.{1 + turn // 3 % 250}"
            guess = f"x{number}:{turn}".encode()
            basic = f"Authorization: Basic {base64.b64encode(guess).decode()}"
            data = request("GET", "/api/v1/topics", basic, "Connection: close")
            if turn % 2:
                body = json.dumps({"user": "x", "password": guess.decode()}).encode()
                data = upload("/api/v1/session", len(body)) + body
            with socket.create_connection((host, port), 60, (address, 0)) as connection:
                connection.sendall(data)
                statuses[int(connection.recv(1000).split()[1])] += 1

    _together(16, work)
    if set(statuses) - {401, 429}:
        raise GoalMissedError(f"answered {dict(statuses)}")
    return f"answered {dict(statuses)}; {healthy(scene)}"


@attack("http-garbage", "upgrades, long lines, garbage, hang-ups", count=2000, few=50,
        listeners=LISTENERS)  # fmt: skip
def garbage(scene: Scene) -> str:
    upgrade = request("GET", "/api/v1/live", "Upgrade: websocket", "Connection: Upgrade",
                      "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")  # fmt: skip
    samples = [
        upgrade,
        request("GET", "/" + "x" * 100_000),
        request("GET", "/api/v1/topics?" + "a=b&" * 15_000),
        request("GET", "/", *(f"X-{number}: y" for number in range(10_000))),
        b"\x16\x03\x01" + bytes(1000),
        b"\xff" * 1000 + b"\r\n\r\n",
        upload("/api/v1/topics", 100) + b"{",
        request("POST", "/api/v1/topics", "Transfer-Encoding: chunked") + b"ffffffffffff\r\n",
    ]
    for turn in range(scene.count):
        connection = connect(scene)
        with contextlib.suppress(OSError):
            connection.sendall(samples[turn % len(samples)])
        connection.close()
    return healthy(scene)


def _together(count: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
