"""TLS: a real broker behind a proxy that decrypts, with certificates made for the test."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.wire_client.records import batch_of, numbered, values_of, write

from strandlog.client.wire.client import WireClient
from strandlog.errors import AuthenticationError, UnreachableError
from strandlog.model import TopicPartition
from strandlog.testing.server import ServerThread


class Certificates:
    """Two parties that trust each other, and no one else."""

    def __init__(self, folder: Path) -> None:
        self.server = self._made(folder, "server", "subjectAltName=DNS:localhost")
        self.client = self._made(folder, "client", "subjectAltName=DNS:client")

    def _made(self, folder: Path, name: str, extension: str) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
                *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", f"/CN={name}"),
                *("-addext", extension, "-out", str(certificate), "-keyout", str(key)),
            ],
            check=True,
            capture_output=True,
        )
        return certificate, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here: it makes the certificates")
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Proxy:
    """Takes TLS connections, and passes what is in them on to a broker."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context = context
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                threading.Thread(target=self._pass_on, args=[peer], daemon=True).start()

    def _pass_on(self, peer: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(peer, server_side=True) as tls,
            socket.create_connection(("127.0.0.1", self._port)) as broker,
        ):
            back = threading.Thread(target=_copy, args=[broker, tls], daemon=True)
            back.start()
            _copy(tls, broker)
            broker.shutdown(socket.SHUT_RDWR)
            back.join()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


@pytest.fixture(params=[False, True], ids=["server only", "both sides"])
def proxy(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path
) -> Iterator[tuple[Proxy, bool]]:
    """A proxy before a broker that tells clients to come to the proxy; whether it asks for us."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.server)
    if request.param:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.client[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Proxy(context, port)
    broker = ServerThread(
        tmp_path / "data",
        {"advertised.listeners": f"PLAINTEXT://localhost:{made.port}"},
        port=port,
    )
    broker.start()
    yield made, request.param
    made.close()
    broker.stop()


def _options(certificates: Certificates, with_client: bool, *, inline: bool) -> dict[str, str]:
    options = {"security.protocol": "SSL", "default.api.timeout.ms": "5000"}
    own, key = certificates.client
    if inline:
        options["ssl.truststore.certificates"] = certificates.server[0].read_text()
        if with_client:
            options["ssl.keystore.certificate.chain"] = own.read_text()
            options["ssl.keystore.key"] = key.read_text()
    else:
        options["ssl.ca.location"] = str(certificates.server[0])
        if with_client:
            options |= {"ssl.certificate.location": str(own), "ssl.key.location": str(key)}
    return options


@pytest.mark.parametrize("inline", [False, True])
def test_batches_go_and_come_through_tls(
    proxy: tuple[Proxy, bool], certificates: Certificates, inline: bool
) -> None:
    behind, with_client = proxy
    options = _options(certificates, with_client, inline=inline)
    with WireClient(f"localhost:{behind.port}", options) as client:
        tp = TopicPartition("t", 0)
        client.create_topic("t", 1)
        write(client, tp, *(batch_of(numbered(first, 100, 500)) for first in range(0, 2000, 100)))
        assert values_of(client, tp) == numbered(0, 2000, 500)


def test_an_untrusted_certificate_fails_at_once(
    proxy: tuple[Proxy, bool], certificates: Certificates
) -> None:
    behind, with_client = proxy
    options = _options(certificates, with_client, inline=False)
    options["ssl.ca.location"] = str(certificates.client[0])
    with (
        WireClient(f"localhost:{behind.port}", options) as client,
        pytest.raises(AuthenticationError, match=r"not trusted.*ssl\.ca\.location"),
    ):
        client.topics()
    options["enable.ssl.certificate.verification"] = "false"
    with WireClient(f"localhost:{behind.port}", options) as client:
        assert client.topics() == {}


def test_a_certificate_of_another_host_fails_unless_the_check_is_off(
    proxy: tuple[Proxy, bool], certificates: Certificates
) -> None:
    behind, with_client = proxy
    options = _options(certificates, with_client, inline=False)
    with (
        WireClient(f"127.0.0.1:{behind.port}", options) as client,
        pytest.raises(AuthenticationError, match=r"127\.0\.0\.1"),
    ):
        client.topics()
    options["ssl.endpoint.identification.algorithm"] = ""
    with WireClient(f"127.0.0.1:{behind.port}", options) as client:
        assert client.topics() == {}


def test_a_plaintext_listener_is_reported_if_tls_is_configured(
    proxy: tuple[Proxy, bool], certificates: Certificates
) -> None:
    behind, _ = proxy
    hasty = {"default.api.timeout.ms": "500", "request.timeout.ms": "500"}
    with (
        WireClient(f"localhost:{behind.port}", hasty) as client,
        pytest.raises(UnreachableError, match=f"localhost:{behind.port}"),
    ):
        client.topics()
