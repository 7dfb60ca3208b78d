"""Other clients with a certificate instead of a password, and while certificates change."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.secure import SECURE_CLIENTS, Login, SecureClient
from tests.support.acls import allow_user
from tests.support.certificates import CLIENT, Authority, Issued
from tests.support.waiting import eventually

from strandlog.broker.access.permission import CREATE, GROUP, READ, TOPIC, WRITE
from strandlog.testing.server import ServerThread

VALUES = [b"value %d" % number for number in range(50)]
ROTATIONS = 5
SETTINGS = {
    "listeners": "SSL://127.0.0.1:0",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": r"RULE:^CN=([^,]+)$/$1/L",
    "ssl.reload.interval.ms": "100",
    "authorizer.class.name": "strandlog",
}

_numbers = itertools.count()


class Scene:
    """A server that requires certificates, and allows the user alice to write and read."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.issued = self.authority.issue("server")
        stores = {
            "ssl.keystore.location": str(self.issued.store),
            "ssl.truststore.location": str(self.authority.path),
        }
        self.server = ServerThread(folder / "data", {**SETTINGS, **stores})

    def login(self, issued: Issued) -> Login:
        ca = self.authority.path
        return Login(self.server.address, "SSL", ca=ca, certificate=issued.store)

    def rotate(self) -> None:
        """Replace the server's key and certificate, and wait until they are in use."""

        def reloads() -> int:
            return int(self.server.call(lambda: self.server.server.metrics()["tls_reloads"]))

        before = reloads()
        new = self.issued.store.with_suffix(".new")
        new.write_bytes(self.authority.issue("server").store.read_bytes())
        new.replace(self.issued.store)
        eventually(lambda: reloads() > before, "the new certificate")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    found = Scene(tmp_path_factory.mktemp("certificates"))
    with found.server:
        allowed = [(each.on(TOPIC), "*") for each in (CREATE, READ, WRITE)]
        allow_user(found.server, "alice", [*allowed, (READ.on(GROUP), "*")])
        yield found


@pytest.fixture
def alice(scene: Scene) -> Login:
    return scene.login(scene.authority.issue("Alice", usage=CLIENT))


@pytest.fixture
def topic() -> str:
    return f"t{next(_numbers)}"


@pytest.mark.parametrize("client", SECURE_CLIENTS, ids=lambda each: each.name)
def test_the_subject_of_the_certificate_is_the_user(
    scene: Scene, alice: Login, topic: str, client: SecureClient
) -> None:
    client.produce(alice, topic, VALUES)
    assert client.consume(alice, topic, len(VALUES)) == VALUES
    bob = scene.login(scene.authority.issue("bob", usage=CLIENT))
    with pytest.raises(Exception, match=r"(?i)authorization"):
        client.produce(bob, topic, VALUES[:1])


def test_certificates_change_under_load_without_an_error(
    scene: Scene, alice: Login, topic: str
) -> None:
    """In a loop, each client connects, writes and disconnects while the server's key changes."""
    stop = threading.Event()
    failed: list[BaseException] = []
    written = dict.fromkeys((each.name for each in SECURE_CLIENTS), 0)

    def work(client: SecureClient) -> None:
        try:
            while not stop.is_set():
                client.produce(alice, topic, VALUES[:5])
                written[client.name] += 5
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads = [threading.Thread(target=work, args=[each]) for each in SECURE_CLIENTS]
    for each in threads:
        each.start()
    for _ in range(ROTATIONS):
        scene.rotate()
    eventually(lambda: failed or all(written.values()), "every client has written")
    stop.set()
    for each in threads:
        each.join()
    assert not failed
    total = sum(written.values())
    assert len(SECURE_CLIENTS[0].consume(alice, topic, total)) == total
