"""Thousands of clients that do not finish their TLS handshake keep no other client out."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority

HALF_OPEN = 5000
HANDSHAKES = 3000
WARM_UP = 500  # handshakes until the allocator has its pools
CHECK_EVERY = 500
MAX_GROWTH_MB = 150  # 1024 unfinished handshakes with their buffers
MAX_LEAK_MB = 8  # of 3000 handshakes: 2.7 KB each
API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the broker from /proc"
)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HALF_OPEN + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} file descriptors are allowed, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Scene:
    """A broker in its own process with one TLS listener."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        settings = {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(self.authority.issue("server").store),
            "ssl.handshake.timeout.ms": "10m",
        }
        self.broker = BrokerProcess(folder / "data", settings, log=folder / "log")
        self.context = ssl.create_default_context(cafile=str(self.authority.path))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.broker.port), timeout=60)

    def ask(self) -> None:
        """Connect with TLS, and send a request."""
        with (
            self.connect() as plain,
            self.context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            tls.sendall(API_VERSIONS)
            assert len(tls.recv(8)) == 8

    def status(self, name: str) -> int:
        assert self.broker.process is not None
        text = Path(f"/proc/{self.broker.process.pid}/status").read_text()
        return int(text.partition(f"{name}:")[2].split()[0])

    def memory_mb(self) -> float:
        return self.status("RssAnon") / 1024

    def open_files(self) -> int:
        assert self.broker.process is not None
        return len(list(Path(f"/proc/{self.broker.process.pid}/fd").iterdir()))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    found.broker.start()
    try:
        yield found
    finally:
        assert found.broker.stop() == 0, "a broker stops cleanly"


def _client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_half_open_handshakes_keep_no_client_out_and_take_bounded_memory(
    scene: Scene, many_descriptors: None
) -> None:
    scene.ask()
    before_mb, before_files = scene.memory_mb(), scene.open_files()
    hello = _client_hello(scene.context)
    with contextlib.ExitStack() as stack:
        for number in range(HALF_OPEN):
            connection = stack.enter_context(scene.connect())
            if number % 3 == 1:
                connection.sendall(hello)  # the server answers, and waits
            elif number % 3 == 2:
                connection.sendall(hello[:20])
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                scene.ask()
        assert scene.memory_mb() - before_mb < MAX_GROWTH_MB
        assert scene.open_files() - before_files < 1100, "the oldest ones are closed"
        scene.ask()


@pytest.mark.long
def test_finished_handshakes_leave_no_memory_behind(scene: Scene) -> None:
    for _ in range(WARM_UP):
        scene.ask()
    before_mb = scene.memory_mb()
    for _ in range(HANDSHAKES):
        scene.ask()
    assert scene.memory_mb() - before_mb < MAX_LEAK_MB
