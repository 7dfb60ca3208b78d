"""Where the keys for bearer tokens come from: files and HTTPS servers, failures, limits."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import pytest
from tests.support.tokens import Provider
from tests.support.waiting import eventually_in_loop

from strandlog.broker.access.tokens.bearer import KeySet
from strandlog.cli.security.certificates import (
    certificate_pem,
    key_pem,
    new_authority,
    new_key,
    new_server,
)
from strandlog.config.limits.access import JWKS_MAX_BYTES
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings, broker_settings
from strandlog.errors import ConfigurationError, DataError, InvalidSettingError
from strandlog.server.access import jwks
from strandlog.server.access.jwks import JwksSource, load
from strandlog.server.app import token_keys

URL = "sasl.oauthbearer.jwks.endpoint.url"


def settings(url: str, **more: str) -> BrokerSettings:
    values = {URL: url, **{name.replace("_", "."): value for name, value in more.items()}}
    return broker_settings(BROKER_SETTINGS.parse(values))


def checked_url(url: str) -> SplitResult:
    found = settings(url).jwks_address()
    assert found is not None
    return found


def opened(url: str, **more: str) -> JwksSource:
    found = token_keys(settings(url, **more))
    assert found is not None
    return found


@pytest.fixture
def provider() -> Provider:
    found = Provider()
    found.add_key("k1")
    return found


@pytest.fixture
def file(tmp_path: Path, provider: Provider) -> Path:
    path = tmp_path / "keys with space.json"
    path.write_bytes(provider.jwks())
    return path


class Site:
    """An HTTP server on loopback whose answer a test chooses."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.headers: dict[str, str] = {}
        self.trickle = b""  # a header that takes over a second to send
        self.requests: list[str] = []
        self.asked = threading.Event()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append(self.path)
                self.send_response(site.status)
                for name, value in site.headers.items():
                    self.send_header(name, value)
                with contextlib.suppress(OSError):
                    for byte in site.trickle:
                        self.flush_headers()
                        self.wfile.write(bytes([byte]))
                        threading.Event().wait(0.01)
                    self.end_headers()
                    self.wfile.write(site.body)
                site.asked.set()

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example/keys",
        "https://login.example:8443/keys?x=1",
        "http://127.0.0.1:8080/keys",
        "http://[::1]/keys",
        "http://localhost/keys",
        "file:///etc/keys.json",
        "file://localhost/etc/keys.json",
        "FILE:///etc/keys.json",
    ],
)
def test_keys_come_from_files_https_and_the_same_machine(url: str) -> None:
    checked_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/keys",
        "http://127.0.0.1.example/keys",
        "http://192.0.2.1/keys",
        "ftp://login.example/keys",
        "file://other/etc/keys.json",
        "file:",
        "https:///keys",
        "https://user:secret@login.example/keys",
        "https://[::1/keys",
        "/etc/keys.json",
        "data:application/json,{}",
        "jar:file:///x",
    ],
)
def test_other_addresses_are_errors_that_show_no_password(url: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        checked_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", [f"https://{'a' * 64}.example/keys", "file:///no%00such"])
def test_an_address_that_python_rejects_is_reported_like_one_that_does_not_answer(
    url: str,
) -> None:
    """Otherwise the thread would end without a report, and no later load would start."""
    with pytest.raises(DataError, match="cannot be read"):
        load(checked_url(url))


def test_oauthbearer_requires_an_address() -> None:
    assert token_keys(broker_settings()) is None
    chosen = broker_settings(BROKER_SETTINGS.parse({"sasl.enabled.mechanisms": "OAUTHBEARER"}))
    with pytest.raises(InvalidSettingError, match="OAUTHBEARER requires a URL"):
        token_keys(chosen)


# -- one load --------------------------------------------------------------------------------------


def test_a_file_is_loaded_at_once(file: Path) -> None:
    source = opened(file.as_uri())
    assert list(source.keys().by_id) == ["k1"]


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"keys": []}', b"x" * 300_000])
def test_a_server_does_not_start_without_a_usable_file(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=URL):
        opened(path.as_uri())


def test_keys_are_loaded_over_http_on_the_same_machine(site: Site, provider: Provider) -> None:
    site.body = provider.jwks()
    assert list(load(checked_url(site.url)).by_id) == ["k1"]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://127.0.0.1:1/", "/other"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error(site: Site, status: int, target: str) -> None:
    site.status, site.headers = status, {"Location": target}
    with pytest.raises(DataError, match=f"status {status}"):
        load(checked_url(site.url))
    assert site.requests == ["/keys"]


@pytest.mark.parametrize("status", [204, 400, 404, 500])
def test_another_status_is_an_error(site: Site, status: int) -> None:
    site.status = status
    with pytest.raises(DataError):
        load(checked_url(site.url))


def test_a_large_document_is_not_read_to_its_end(site: Site, provider: Provider) -> None:
    site.body = provider.jwks() + b" " * JWKS_MAX_BYTES
    with pytest.raises(DataError, match=str(JWKS_MAX_BYTES)):
        load(checked_url(site.url))


def test_errors_do_not_show_the_query(site: Site) -> None:
    site.status = 500
    with pytest.raises(DataError) as caught:
        load(checked_url(site.url + "?api_key=secret"))
    assert "secret" not in str(caught.value)
    assert site.requests == ["/keys?api_key=secret"]


def test_a_slow_document_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 1000, 3))
    monkeypatch.setattr(jwks, "stopwatch", lambda: float(next(times)))
    with pytest.raises(DataError, match="slowly"):
        jwks._read(lambda size: b"x", 10.0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_trickles_its_headers_is_given_up(
    scheme: str,
    site: Site,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if scheme == "https":
        monkeypatch.setenv("SSL_CERT_FILE", str(request.getfixturevalue("authority")))
    site.body, site.trickle = provider.jwks(), b"X-Long: " + b"x" * 100 + b"\r\n"
    monkeypatch.setattr(jwks, "LOAD_SECONDS", 0.5)
    with pytest.raises(DataError, match=r"slowly|timed out"):
        load(checked_url(site.url))


@pytest.fixture
def authority(site: Site, tmp_path: Path) -> Path:
    """The CA of the site, which now uses TLS."""
    now = datetime.now(UTC)
    signer = new_authority(new_key(), now)
    server = new_server(signer, ["127.0.0.1"], now, days=1)
    chain, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    chain.write_bytes(key_pem(server.key) + certificate_pem(server.certificate))
    ca.write_bytes(certificate_pem(signer.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
    site.url = site.url.replace("http:", "https:")
    return ca


def test_an_https_server_must_have_a_trusted_certificate(
    site: Site, authority: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.body = provider.jwks()
    with pytest.raises(DataError, match="certificate"):
        load(checked_url(site.url))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert list(load(checked_url(site.url)).by_id) == ["k1"]
    with pytest.raises(DataError, match="certificate"):
        load(checked_url(site.url.replace("127.0.0.1", "localhost")))


# -- refreshing ------------------------------------------------------------------------------------


async def until(is_reached: Callable[[], bool]) -> None:
    await eventually_in_loop(is_reached, "the keys are loaded")


def test_keys_are_loaded_in_the_background_and_a_failure_keeps_the_old_ones(
    site: Site, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        site.status = 503
        source = opened(
            site.url,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_ms="1",
            sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms="2",
        )
        source.start()
        assert source.keys().by_id == {}
        await until(lambda: len(site.requests) >= 3)  # it tries again
        site.body, site.status = provider.jwks(), 200
        await until(lambda: list(source.keys().by_id) == ["k1"])
        provider.add_key("k2")
        site.status = 500
        count = len(site.requests)
        source.refresh()
        await until(lambda: len(site.requests) > count)
        assert list(source.keys().by_id) == ["k1"]
        site.body, site.status = provider.jwks(), 200
        await until(lambda: list(source.keys().by_id) == ["k1", "k2"])
        source.stop()

    asyncio.run(scenario())
    assert "cannot load the keys for bearer tokens" in caplog.text
    assert "503" in caplog.text
    assert "loaded 1 key for bearer tokens" in caplog.text


def test_an_error_of_a_library_does_not_end_the_loads(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loads: list[Any] = []

    def unsupported(url: SplitResult) -> KeySet:
        loads.append(url)
        raise RuntimeError("this curve is not supported")

    monkeypatch.setattr(jwks, "load", unsupported)

    async def scenario() -> None:
        source = opened(site.url, sasl_oauthbearer_jwks_endpoint_retry_backoff_ms="1")
        source.start()
        await until(lambda: len(loads) >= 2)
        source.stop()

    asyncio.run(scenario())
    assert "tokens: RuntimeError: this curve is not supported; trying again" in caplog.text


def test_unknown_keys_cause_one_early_load_at_a_time(
    file: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(jwks, "stopwatch", lambda: now[0])
    loads: list[Any] = []
    real = jwks.load

    def counted(url: SplitResult) -> KeySet:
        loads.append(url)
        return real(url)

    monkeypatch.setattr(jwks, "load", counted)

    async def scenario() -> None:
        source = opened(file.as_uri())
        source.start()
        assert len(loads) == 1
        provider.add_key("k2")
        file.write_bytes(provider.jwks())
        for _ in range(100):
            source.refresh()
        await until(lambda: "k2" in source.keys().by_id)
        for _ in range(100):
            source.refresh()
        now[0] += 9.9
        source.refresh()
        assert len(loads) == 2
        now[0] += 0.1
        source.refresh()
        await until(lambda: len(loads) == 3)
        source.stop()
        now[0] += 100
        source.refresh()

    asyncio.run(scenario())
    assert len(loads) == 3


def test_a_file_is_read_again_after_an_interval(file: Path, provider: Provider) -> None:
    async def scenario() -> None:
        source = opened(file.as_uri(), sasl_oauthbearer_jwks_endpoint_refresh_ms="1000")
        source.start()
        provider.rows.clear()
        provider.add_key("k2")
        file.write_bytes(provider.jwks())
        await until(lambda: list(source.keys().by_id) == ["k2"])
        file.unlink()
        source.stop()

    asyncio.run(scenario())


def test_keys_that_are_not_used_are_logged(
    file: Path, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*provider.rows, {"kty": "oct", "k": "c2VjcmV0"}]
    file.write_text(json.dumps({"keys": rows}))
    opened(file.as_uri())
    assert "key 2 of the JWKS is not used" in caplog.text
    assert "c2VjcmV0" not in caplog.text
