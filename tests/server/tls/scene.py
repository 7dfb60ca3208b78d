"""A server with TLS, its CA, and clients that connect to it."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from tests.support.certificates import CLIENT, Authority, Issued

from strandlog.testing.server import ServerThread

TIMEOUT_SECONDS = 60
API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"  # correlation id 7


class TlsScene:
    """A server whose second Kafka listener has TLS; the first has none."""

    def __init__(self, folder: Path, **given: str) -> None:
        self.authority = Authority(folder / "ca")
        self.issued = self.authority.issue("server")
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(self.authority.path.read_bytes())
        settings = {
            name if "." in name else name.replace("_", "."): value for name, value in given.items()
        }
        self.server = ServerThread(
            folder / "data",
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
                "ssl.keystore.location": str(self.issued.store),
                "ssl.truststore.location": str(self.trusted),
                **settings,
            },
            http="http.listener" in settings,
            grpc="grpc.listener" in settings,
        )

    def client(self, name: str = "alice") -> Issued:
        return self.authority.issue(name, usage=CLIENT)

    def address(self, listener: str = "kafka.ssl") -> tuple[str, int]:
        host, _, port = self.server.listener(listener).rpartition(":")
        return host, int(port)

    def connect(self, listener: str = "kafka.ssl") -> socket.socket:
        """Open a TCP connection without TLS."""
        return socket.create_connection(self.address(listener), TIMEOUT_SECONDS)

    def context(self, issued: Issued | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts the CA, with its own certificate if given."""
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if issued is not None:
            context.load_cert_chain(issued.store)
        return context

    @contextlib.contextmanager
    def tls(
        self,
        issued: Issued | None = None,
        *,
        context: ssl.SSLContext | None = None,
        listener: str = "kafka.ssl",
    ) -> Iterator[ssl.SSLSocket]:
        """Connect with TLS."""
        with (
            self.connect(listener) as plain,
            (context or self.context(issued)).wrap_socket(
                plain, server_hostname="localhost"
            ) as tls,
        ):
            yield tls

    def config(self, issued: Issued | None = None, **more: str) -> dict[str, Any]:
        """Return the settings of a client of confluent-kafka."""
        own = {}
        if issued is not None:
            own = {
                "ssl.certificate.location": str(issued.certificate),
                "ssl.key.location": str(issued.key),
            }
        return {
            "bootstrap.servers": self.server.listener("kafka.ssl"),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.path),
            **own,
            **more,
        }

    def admin(self, issued: Issued | None = None) -> AdminClient:
        return AdminClient(self.config(issued))

    def metric(self, name: str) -> Any:
        return self.server.call(lambda: self.server.server.metrics()[name])

    def wait_for_metric(self, name: str, is_reached: Callable[[Any], bool]) -> None:
        self.server.wait_until(
            lambda server: is_reached(server.metrics()[name]), name, TIMEOUT_SECONDS
        )


@contextlib.contextmanager
def running(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[TlsScene]:
    """Run a server with TLS."""
    scene = TlsScene(folder, **dict(settings or {}))
    with scene.server:
        yield scene


def serves(connection: socket.socket) -> bool:
    """Return whether the broker answers ApiVersions; False if it closes the connection."""
    try:
        connection.sendall(API_VERSIONS)
        return len(connection.recv(8)) == 8
    except (ConnectionError, ssl.SSLError):  # not a timeout
        return False


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection, without sending anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:  # not a timeout
        return True
