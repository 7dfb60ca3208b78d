"""TLS on a Kafka listener: which clients get in, and what becomes of the others."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.tls.scene import TlsScene, is_closed, running, serves
from tests.support.certificates import SERVER, Authority, Issued
from tests.support.waiting import eventually

from strandlog.errors import ConfigurationError


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsScene]:
    with running(tmp_path_factory.mktemp("tls")) as found:
        yield found


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsScene]:
    with running(tmp_path_factory.mktemp("mutual"), {"ssl.client.auth": "required"}) as found:
        yield found


def test_both_listeners_serve(scene: TlsScene) -> None:
    with scene.tls() as tls, scene.connect("kafka") as plain:
        assert tls.version() == "TLSv1.3"
        assert serves(tls)
        assert serves(plain)


def test_tls_1_2_is_accepted_and_1_1_is_not(scene: TlsScene) -> None:
    context = scene.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with scene.tls(context=context) as tls:
        assert tls.version() == "TLSv1.2"
        assert serves(tls)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError), scene.tls(context=old):
        pass


def test_enabled_protocols_may_exclude_a_version(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.enabled.protocols": "TLSv1.2"}) as scene, scene.tls() as tls:
        assert tls.version() == "TLSv1.2"
    with running(tmp_path / "2", {"ssl.enabled.protocols": "TLSv1.3"}) as scene:
        context = scene.context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError), scene.tls(context=context):
            pass


def test_a_client_that_does_not_trust_the_ca_is_a_logged_failure(
    scene: TlsScene, caplog: pytest.LogCaptureFixture
) -> None:
    failures = scene.metric("tls_handshake_failures")
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        scene.tls(context=ssl.create_default_context()),
    ):
        pass
    scene.wait_for_metric("tls_handshake_failures", lambda count: count == failures + 1)
    assert "on listener SSL failed: tlsv1 alert unknown ca" in caplog.text


def test_plaintext_on_the_tls_port_is_named_in_the_log(
    scene: TlsScene, caplog: pytest.LogCaptureFixture
) -> None:
    with scene.connect() as plain:
        plain.sendall(b"\0\0\0\x10\0\x12\0\0")
        assert plain.recv(100)[:1] == b"\x15"  # an alert, as Kafka sends it
        assert is_closed(plain)
    assert "plaintext client on the TLS listener SSL" in caplog.text


def test_tls_on_the_plaintext_port_is_named_in_the_log(
    scene: TlsScene, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError), scene.tls(listener="kafka"):
        pass
    assert "TLS client on a plaintext listener" in caplog.text


@given(st.binary(max_size=300))
def test_bytes_that_only_begin_like_tls_close_their_connection_alone(
    scene: TlsScene, rest: bytes
) -> None:
    with scene.connect() as odd:
        odd.sendall(b"\x16" + rest)
        odd.shutdown(socket.SHUT_WR)
        while not is_closed(odd):  # it may send an alert first
            pass
    with scene.tls() as tls:
        assert serves(tls)


def test_a_client_that_only_checks_the_port_is_not_a_failure(
    scene: TlsScene, caplog: pytest.LogCaptureFixture
) -> None:
    failures = scene.metric("tls_handshake_failures")
    scene.connect().close()
    with scene.tls() as tls:  # accepted after it
        assert serves(tls)
    assert scene.metric("tls_handshake_failures") == failures
    assert "failed" not in caplog.text


def test_a_certificate_of_the_ca_gets_in(mutual: TlsScene) -> None:
    with mutual.tls(mutual.client()) as tls:
        assert serves(tls)


def _wrong_authority(scene: TlsScene, folder: Path) -> Issued:
    del scene
    return Authority(folder, "other-ca").issue("alice", usage=None)


def _expired(scene: TlsScene, folder: Path) -> Issued:
    del folder
    return scene.authority.issue("alice", usage=None, expired=True)


def _for_servers(scene: TlsScene, folder: Path) -> Issued:
    del folder
    return scene.authority.issue("alice", usage=SERVER)


def _none(scene: TlsScene, folder: Path) -> None:
    del scene, folder


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_wrong_authority, "unable to get local issuer certificate"),
        (_expired, "certificate has expired"),
        (_for_servers, "unsuitable certificate purpose"),
        (_none, "peer did not return a certificate"),
    ],
)
def test_a_client_without_a_valid_certificate_is_turned_away(
    mutual: TlsScene, tmp_path: Path, caplog: pytest.LogCaptureFixture, make: object, reason: str
) -> None:
    assert callable(make)
    issued = make(mutual, tmp_path)
    # In TLS 1.3 the client finishes its handshake before the server checks the certificate.
    with mutual.connect() as plain:
        try:
            tls = mutual.context(issued).wrap_socket(plain, server_hostname="localhost")
        except (ConnectionError, ssl.SSLError):
            pass
        else:
            with tls:
                assert not serves(tls)
    eventually(
        lambda: (
            f"failed: the client's certificate: {reason}" in caplog.text
            or f"failed: {reason}" in caplog.text
        ),
        reason,
    )


def test_requested_certificates_are_optional_but_checked(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.client.auth": "requested"}) as scene:
        with scene.tls() as tls:
            assert serves(tls)
        with scene.tls(scene.client()) as tls:
            assert serves(tls)
        other = Authority(tmp_path / "other", "other-ca").issue("alice", usage=None)
        with scene.connect() as plain:
            tls = scene.context(other).wrap_socket(plain, server_hostname="localhost")
            with tls:
                assert not serves(tls)


def test_a_silent_client_is_disconnected_at_the_deadline(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.handshake.timeout.ms": "100"}) as scene:
        with scene.connect() as silent:
            assert is_closed(silent)
        with scene.connect() as slow:
            slow.sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a ClientHello
            assert is_closed(slow)
        scene.wait_for_metric("tls_handshake_failures", lambda count: count == 2)
        with scene.tls() as tls:
            assert serves(tls)


def test_a_new_client_replaces_the_oldest_unfinished_handshake(tmp_path: Path) -> None:
    with running(tmp_path, {"max.connections": "5"}) as scene:
        silent = [scene.connect() for _ in range(3)]
        begun = [scene.connect() for _ in range(2)]
        for each in begun:
            each.sendall(b"\x16\x03\x01\x02\x00")
        scene.server.wait_until(lambda server: server.kafka.room.used == 5, "all are accepted")
        with scene.tls() as first, scene.connect("kafka") as second:
            assert serves(first)
            assert serves(second)
            assert is_closed(silent[0])
            assert is_closed(silent[1])
            assert scene.metric("tls_handshakes_dropped") == 2
        for each in (*silent, *begun):
            each.close()


def test_without_unfinished_handshakes_a_further_client_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, {"max.connections": "1"}) as scene:
        with scene.tls() as first:
            assert serves(first)
            with scene.connect() as second:
                assert is_closed(second)
            assert scene.metric("connections_refused") == 1
            assert "raise max.connections" in caplog.text
        scene.server.wait_until(lambda server: server.kafka.room.used == 0, "it is closed")
        with scene.tls() as third:
            assert serves(third)


def test_a_handshake_that_fails_gives_its_place_back(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.client.auth": "required"}) as scene:
        for _ in range(3):
            with pytest.raises(OSError), scene.tls() as tls:
                tls.sendall(b"x")
                if tls.recv(1) == b"":
                    raise ConnectionResetError
        scene.server.wait_until(lambda server: server.kafka.room.used == 0, "all are closed")


def test_stopping_does_not_wait_for_unfinished_handshakes(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.handshake.timeout.ms": "1000000"}) as scene:
        silent, begun = scene.connect(), scene.connect()
        begun.sendall(b"\x16\x03\x01\x02\x00")
        scene.server.wait_until(lambda server: server.kafka.room.used == 2, "both are accepted")
        scene.server.stop()
        assert is_closed(silent)
        assert is_closed(begun)
        silent.close()
        begun.close()


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.truststore.location"])
def test_a_missing_file_stops_the_start(tmp_path: Path, name: str) -> None:
    scene = TlsScene(tmp_path, **{name: str(tmp_path / "none.pem"), "ssl.client.auth": "required"})
    with pytest.raises(ConfigurationError, match=f"listener SSL: {name} .*none.pem: cannot read"):
        scene.server.start()
    assert not scene.server.data.exists()


def test_an_encrypted_key_works(tmp_path: Path) -> None:
    issued = Authority(tmp_path / "other").issue("server", password="secret")
    store = {"ssl.keystore.location": str(issued.store), "ssl.key.password": "secret"}
    with running(tmp_path, store) as scene, scene.connect() as plain:
        context = ssl.create_default_context(cafile=str(tmp_path / "other" / "test-ca.pem"))
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            assert serves(tls)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_server_offers_no_session_to_resume(mutual: TlsScene, version: ssl.TLSVersion) -> None:
    context = mutual.context(mutual.client())
    context.maximum_version = version
    with mutual.tls(context=context) as tls:
        assert serves(tls)
        session = tls.session
    assert session is None or not session.has_ticket
    with (
        mutual.connect() as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
    ):
        assert serves(tls)
        assert not tls.session_reused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_cannot_be_resumed_after_its_ca_was_removed(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """TLS 1.2 could resume it by its id, TLS 1.3 by a ticket, which the server does not send."""
    mutual = {"ssl.client.auth": "required", "ssl.reload.interval.ms": "100"}
    with running(tmp_path, mutual) as scene:
        context = scene.context(scene.client())
        context.maximum_version = version
        with scene.tls(context=context) as tls:
            assert serves(tls)
            session = tls.session
        other = Authority(tmp_path / "other", "other-ca")
        scene.trusted.write_bytes(other.path.read_bytes())
        scene.wait_for_metric("tls_reloads", lambda count: count == 1)
        with scene.connect() as plain:
            try:
                tls = context.wrap_socket(plain, server_hostname="localhost", session=session)
            except (ConnectionError, ssl.SSLError):
                return
            with tls:
                assert not serves(tls)
