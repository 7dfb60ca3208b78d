"""Certificates are replaced while the broker runs."""

from __future__ import annotations

import errno
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from tests.server.tls.scene import TlsScene, running, serves
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Issued
from tests.support.waiting import eventually

SOON = {"ssl.reload.interval.ms": "100"}
ROTATIONS = 5


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[TlsScene]:
    with running(tmp_path, SOON) as found:
        yield found


def _serial(tls: ssl.SSLSocket) -> int:
    der = tls.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def _replace(scene: TlsScene, issued: Issued) -> int:
    """Replace the server's key and certificate, and return the new serial number."""
    new = scene.issued.store.with_suffix(".new")
    new.write_bytes(issued.store.read_bytes())
    os.utime(new, (0, 0))  # the time of a file says nothing about its contents
    new.replace(scene.issued.store)
    return x509.load_der_x509_certificate(issued.der).serial_number


def test_new_connections_get_the_new_certificate_and_open_ones_continue(scene: TlsScene) -> None:
    with scene.tls() as before:
        old = _serial(before)
        new = _replace(scene, scene.authority.issue("server"))
        scene.wait_for_metric("tls_reloads", lambda count: count == 1)
        with scene.tls() as after:
            assert (_serial(before), _serial(after)) == (old, new)
            assert serves(before)
            assert serves(after)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_cannot_be_loaded_leaves_the_old_certificate(
    scene: TlsScene, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    scene.issued.store.write_bytes(content)
    scene.wait_for_metric("tls_reload_failures", lambda count: count >= 3)
    with scene.tls() as tls:
        assert serves(tls)
    errors = [each for each in caplog.messages if "keeping the previous certificate" in each]
    assert len(errors) == 1  # not one for each check
    assert "listener SSL: ssl.keystore.location" in errors[0]
    new = _replace(scene, scene.authority.issue("server"))
    scene.wait_for_metric("tls_reloads", lambda count: count == 1)
    with scene.tls() as tls:
        assert _serial(tls) == new


@pytest.mark.parametrize("is_told", [False, True], ids=["by itself", "SIGHUP"])
def test_the_last_line_about_certificates_stays_an_error_after_the_good_file_is_put_back(
    scene: TlsScene, caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    """The content equals the loaded one, so nothing was loaded and nothing was logged."""
    caplog.set_level("INFO", "strandlog")
    good = scene.issued.store.read_bytes()
    scene.issued.store.write_bytes(b"")
    scene.wait_for_metric("tls_reload_failures", lambda count: count >= 1)
    new = scene.issued.store.with_suffix(".new")
    new.write_bytes(good)
    new.replace(scene.issued.store)
    if is_told:
        scene.server.call(scene.server.server.reload.check_now)
    expected = "listener SSL: the certificate files are valid again"
    eventually(lambda: expected in caplog.messages, "the log says that the certificate is valid")
    with scene.tls() as tls:
        assert serves(tls)
    assert caplog.messages.count(expected) == 1


def test_a_missing_file_leaves_the_old_certificate(scene: TlsScene) -> None:
    scene.issued.store.unlink()
    scene.wait_for_metric("tls_reload_failures", lambda count: count >= 1)
    with scene.tls() as tls:
        assert serves(tls)


def test_an_empty_file_of_cas_does_not_stop_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, {"ssl.client.auth": "required", **SOON}) as scene:
        alice = scene.client()
        scene.trusted.write_bytes(b"")
        scene.wait_for_metric("tls_reload_failures", lambda count: count >= 1)
        with scene.tls(alice) as tls:
            assert serves(tls)
    assert "listener SSL: ssl.truststore.location" in caplog.text


def test_a_reload_without_a_free_descriptor_is_tried_again(
    scene: TlsScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", fail)
        new = _replace(scene, scene.authority.issue("server"))
        scene.wait_for_metric("tls_reload_failures", lambda count: count >= 1)
    scene.wait_for_metric("tls_reloads", lambda count: count == 1)
    with scene.tls() as tls:
        assert _serial(tls) == new


def test_a_removed_ca_counts_for_new_connections_only(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.client.auth": "required", **SOON}) as scene:
        alice, other = scene.client(), Authority(tmp_path / "other", "other-ca")
        with scene.tls(alice) as before:
            assert serves(before)
            scene.trusted.write_bytes(other.path.read_bytes())
            scene.wait_for_metric("tls_reloads", lambda count: count == 1)
            assert serves(before)
            with scene.tls(alice) as after:
                assert not serves(after)
            with scene.tls(other.issue("bob", usage=None)) as after:
                assert serves(after)


def test_the_expiry_of_the_first_certificate_is_a_metric(scene: TlsScene) -> None:
    before = scene.metric("tls_certificate_expiry_seconds")
    _replace(scene, scene.authority.issue("server", expired=True))
    scene.wait_for_metric("tls_certificate_expiry_seconds", lambda found: found < before)


def test_handshakes_during_many_reloads_all_succeed(scene: TlsScene) -> None:
    """Clients of several threads connect in a loop while the files change."""
    stop = threading.Event()
    failed: list[BaseException] = []
    counts: list[int] = []
    context = scene.context()

    def connect() -> None:
        count = 0
        try:
            while not stop.is_set():
                with scene.tls(context=context) as tls:
                    assert serves(tls)
                count += 1
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)
        counts.append(count)

    threads = [threading.Thread(target=connect) for _ in range(3)]
    for each in threads:
        each.start()
    for done in range(ROTATIONS):
        _replace(scene, scene.authority.issue(f"server-{done}"))
        scene.wait_for_metric("tls_reloads", (done + 1).__eq__)
    stop.set()
    for each in threads:
        each.join()
    assert not failed
    assert min(counts) > 0
    assert scene.metric("tls_handshake_failures") == 0


def test_sighup_reloads_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("server")
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(issued.store),
        "ssl.reload.interval.ms": "10h",
    }
    broker = BrokerProcess(tmp_path / "data", settings, log=tmp_path / "log")
    broker.start()
    try:
        new = authority.issue("other")
        issued.store.write_bytes(new.store.read_bytes())
        serial = x509.load_der_x509_certificate(new.der).serial_number

        def current() -> int:
            pem = ssl.get_server_certificate(("127.0.0.1", broker.port))
            return x509.load_pem_x509_certificate(pem.encode()).serial_number

        assert current() != serial
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGHUP)
        eventually(lambda: current() == serial, "the new certificate")
    finally:
        assert broker.stop() == 0
    assert "loaded the changed certificate files" in (tmp_path / "log").read_text()
