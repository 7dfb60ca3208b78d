"""What an attack is, and what it has to work with.

An attack is a function that takes a `Scene`: a broker in a process of its own and helpers to reach
its ports. `@attack` registers it. It makes its requests, leaves its connections open (`scene.keep`)
and returns; the runner measures meanwhile and some seconds longer, then sends SIGTERM while the
connections are still open. A goal that only this attack has is checked in the function, which
raises `GoalMissedError`; a figure worth a remark is what it returns.

    @attack("many-members", "JoinGroup with N members in one group", count=2000, few=50)
    def many_members(scene: Scene) -> None:
        ...

`prepare` runs before anything is measured: it fills the topics that the attack needs. Counts come
from `scene.count`: `count` in `make attack`, `few` in the test suite.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire

PATIENCE_SECONDS = 60.0
RECEIVE_BUFFER_BYTES = 64 * 1024

T = TypeVar("T")


class GoalMissedError(AssertionError):
    """A goal that only this attack has was missed."""


@dataclass
class Scene:
    """A broker under attack."""

    broker: BrokerProcess
    count: int
    say: Callable[[str], None]
    kept: ExitStack = field(default_factory=ExitStack)

    @property
    def port(self) -> int:
        return self.broker.port

    def address_of(self, listener: str) -> tuple[str, int]:
        """Host and port of `http` or `grpc`, as the broker's ready line has them."""
        [word] = [each for each in self.broker.ready.split() if each.startswith(f"{listener}=")]
        host, _, port = word.removeprefix(f"{listener}=").rpartition(":")
        return host, int(port)

    def connect(self, port: int | None = None) -> socket.socket:
        """A connection that stays open until the broker has stopped."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(("127.0.0.1", port or self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kept.callback(connection.close)
        return connection

    def wire(self) -> Wire:
        """A connection that speaks in kio's objects; it stays open, too."""
        wire = self.kept.enter_context(Wire(self.port))
        wire.socket.settimeout(PATIENCE_SECONDS)
        return wire

    def keep(self, resource: T, close: Callable[[T], object]) -> T:
        """Keep something open until the broker has stopped."""
        self.kept.callback(close, resource)
        return resource

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        assert self.broker.process is not None
        return self.broker.process.pid

    def resident_bytes(self) -> int:
        """Memory of the broker that is not the page cache's."""
        return resident_bytes(self.pid)


def resident_bytes(pid: int) -> int:
    """Private memory of a process: pages of mapped log files belong to the page cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(_kilobytes(status, name) for name in ("RssAnon", "RssShmem")) * 1024


def _kilobytes(status: str, name: str) -> int:
    return int(status.partition(f"{name}:")[2].split()[0])


@dataclass(frozen=True)
class Attack:
    """One row of the table."""

    name: str
    title: str
    run: Callable[[Scene], str | None]
    count: int
    few: int
    prepare: Callable[[Scene], None]
    settings: dict[str, str]
    listeners: tuple[str, ...]
    settle_seconds: float
    limit_seconds: float


ATTACKS: dict[str, Attack] = {}


def attack(
    name: str,
    title: str,
    *,
    count: int,
    few: int,
    prepare: Callable[[Scene], None] = lambda _: None,
    settings: dict[str, str] | None = None,
    listeners: tuple[str, ...] = ("--no-grpc", "--no-http"),
    settle_seconds: float = 1.0,
    limit_seconds: float = 60.0,
) -> Callable[[Callable[[Scene], str | None]], Callable[[Scene], str | None]]:
    """Register an attack; `listeners` are arguments of `strandlog serve`."""

    def register(run: Callable[[Scene], str | None]) -> Callable[[Scene], str | None]:
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(
            name, title, run, count, few, prepare, settings or {}, listeners,
            settle_seconds, limit_seconds,
        )  # fmt: skip
        return run

    return register


def frame(api_key: int, version: int, body: bytes, *, tags: bytes = b"") -> bytes:
    """A whole request with its length; `tags` ends the header of flexible versions."""
    request = struct.pack(">hhih", api_key, version, 7, -1) + tags + body
    return struct.pack(">i", len(request)) + request


def receive(connection: socket.socket, *, keep: bool = True) -> bytes:
    """The next reply; ConnectionError when the broker closed the connection.

    `keep=False` reads the bytes and drops them, for replies of hundreds of megabytes.
    """
    (length,) = struct.unpack(">i", _exactly(connection, 4, keep=True))
    return _exactly(connection, length, keep=keep)


def _exactly(connection: socket.socket, length: int, *, keep: bool) -> bytes:
    data, left = bytearray(), length
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise ConnectionError("the broker closed the connection")
        left -= len(part)
        if keep:
            data += part
    return bytes(data)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition became true in time."""
    deadline = time.perf_counter() + seconds
    while not condition():
        if time.perf_counter() > deadline:
            return False
        time.sleep(0.01)
    return True
