"""TLS on the HTTP and gRPC listeners."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from tests.server.tls.scene import TIMEOUT_SECONDS, TlsScene, is_closed, running, serves
from tests.support.certificates import Authority, Issued
from tests.support.waiting import eventually

from strandlog.config.limits.http import HTTP_HEALTH_CONNECTIONS
from strandlog.errors import ConfigurationError
from strandlog.protocol.rpc import log_pb2
from strandlog.server.grpc import listener

HTTPS = {"http.listener": "https://127.0.0.1:0", "http.authentication": "none"}
GRPCS = {"grpc.listener": "grpcs://127.0.0.1:0"}
SOON = {"ssl.reload.interval.ms": "100"}
SERVICE = log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name
LIST_TOPICS, CREATE_TOPIC = f"/{SERVICE}/ListTopics", f"/{SERVICE}/CreateTopic"


def _get(scene: TlsScene, path: str, issued: Issued | None = None) -> tuple[int, bytes]:
    host, port = scene.address("http")
    connection = http.client.HTTPSConnection(
        "localhost" if host == "127.0.0.1" else host,
        port,
        timeout=TIMEOUT_SECONDS,
        context=scene.context(issued),
    )
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


@contextlib.contextmanager
def _channel(scene: TlsScene, issued: Issued | None = None) -> Iterator[grpc.Channel]:
    credentials = grpc.ssl_channel_credentials(
        scene.authority.path.read_bytes(),
        issued.key.read_bytes() if issued else None,
        issued.certificate.read_bytes() if issued else None,
    )
    # A local subchannel pool, because channels to one address share connections otherwise.
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(scene.server.listener("grpc"), credentials, options) as channel:
        yield channel


def _list_topics(scene: TlsScene, issued: Issued | None = None) -> None:
    with _channel(scene, issued) as channel:
        call = channel.unary_unary(
            LIST_TOPICS,
            request_serializer=log_pb2.ListTopicsRequest.SerializeToString,
            response_deserializer=log_pb2.ListTopicsResponse.FromString,
        )
        call(log_pb2.ListTopicsRequest(), timeout=TIMEOUT_SECONDS)


def _create_topic(scene: TlsScene, issued: Issued) -> None:
    with _channel(scene, issued) as channel:
        call = channel.unary_unary(
            CREATE_TOPIC,
            request_serializer=log_pb2.CreateTopicRequest.SerializeToString,
            response_deserializer=log_pb2.CreateTopicResponse.FromString,
        )
        call(log_pb2.CreateTopicRequest(name="t"), timeout=TIMEOUT_SECONDS)


def test_https_serves_the_api_and_the_broker_names_the_scheme(tmp_path: Path) -> None:
    with running(tmp_path, HTTPS) as scene:
        assert _get(scene, "/healthz")[0] == 200
        status, body = _get(scene, "/api/v1/topics")
        assert (status, body[:1]) in [(200, b"["), (200, b"{")]
        settings = scene.server.call(lambda: scene.server.server.kafka.dispatcher.listener_settings)
        assert settings["http.listener"] == f"https://{scene.server.listener('http')}"


def test_plaintext_on_the_https_port_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, HTTPS) as scene, scene.connect("http") as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert plain.recv(100)[:1] == b"\x15"
        assert is_closed(plain)
    assert "plaintext client on the TLS listener http" in caplog.text


def test_https_requires_a_client_certificate(tmp_path: Path) -> None:
    settings = {**HTTPS, "listener.name.http.ssl.client.auth": "required"}
    with running(tmp_path, settings) as scene:
        assert _get(scene, "/healthz", scene.client())[0] == 200
        with pytest.raises(OSError):
            _get(scene, "/healthz")
        other = Authority(tmp_path / "other", "other-ca").issue("alice", usage=None)
        with pytest.raises(OSError):
            _get(scene, "/healthz", other)


def test_required_certificates_on_ssl_listeners_do_not_lock_out_https_sasl_and_grpc_clients(
    tmp_path: Path,
) -> None:
    listeners = {"listeners": "SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0", **HTTPS, **GRPCS}
    with running(tmp_path, {**listeners, "ssl.client.auth": "required"}) as scene:
        assert _get(scene, "/healthz")[0] == 200
        assert _get(scene, "/healthz", scene.client())[0] == 200
        _list_topics(scene)
        with scene.tls(listener="kafka.sasl_ssl") as tls:
            assert serves(tls)
        with scene.tls(listener="kafka") as tls:
            assert not serves(tls)


def test_https_follows_a_changed_certificate(tmp_path: Path) -> None:
    with running(tmp_path, {**HTTPS, **SOON}) as scene:
        new = scene.authority.issue("server")
        scene.issued.store.write_bytes(new.store.read_bytes())
        scene.wait_for_metric("tls_reloads", lambda count: count == 2)  # also of Kafka's listener
        pem = ssl.get_server_certificate(scene.address("http"))
        assert x509.load_pem_x509_certificate(pem.encode()) == x509.load_der_x509_certificate(
            new.der
        )


def test_silent_connections_keep_no_https_client_out(tmp_path: Path) -> None:
    with running(tmp_path, {**HTTPS, "http.max.connections": "1"}) as scene:
        with contextlib.ExitStack() as stack:
            for _ in range(HTTP_HEALTH_CONNECTIONS + 5):
                stack.enter_context(scene.connect("http"))
            assert _get(scene, "/api/v1/topics")[0] == 200
            assert scene.metric("tls_handshakes_dropped") >= 4
        scene.wait_for_metric("http_connections_open", lambda count: count == 0)


def test_http_connections_count_towards_the_limit_of_an_address(tmp_path: Path) -> None:
    settings = {"http.listener": "http://127.0.0.1:0", "max.connections.per.ip": "1"}
    with running(tmp_path, settings) as scene, scene.connect("http") as first:
        scene.wait_for_metric("http_connections_open", lambda count: count == 1)
        with scene.connect("http") as second:
            assert is_closed(second)
        with scene.connect("kafka") as third:
            assert is_closed(third)
        first.close()
        scene.wait_for_metric("http_connections_open", lambda count: count == 0)
        with scene.connect("http") as fourth:
            fourth.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert fourth.recv(12) == b"HTTP/1.1 200"


def test_grpc_over_tls(tmp_path: Path) -> None:
    with running(tmp_path, GRPCS) as scene:
        _list_topics(scene)
        insecure = grpc.insecure_channel(scene.server.listener("grpc"))
        with insecure as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(LIST_TOPICS)(b"", timeout=TIMEOUT_SECONDS)


def test_the_handshake_timeout_applies_to_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GRPC_HANDSHAKE_TIMEOUT_MS", 3_600_000)
    settings = {**GRPCS, "listener.name.grpc.ssl.handshake.timeout.ms": "200"}
    with running(tmp_path, settings) as scene:
        silent = socket.create_connection(scene.address("grpc"), timeout=TIMEOUT_SECONDS)
        with silent, contextlib.suppress(ConnectionError):
            while silent.recv(1000):
                pass


def test_grpc_requires_a_client_certificate(tmp_path: Path) -> None:
    settings = {**GRPCS, "listener.name.grpc.ssl.client.auth": "required"}
    with running(tmp_path, settings) as scene:
        _list_topics(scene, scene.client())
        other = Authority(tmp_path / "other", "other-ca").issue("alice", usage=None)
        for issued in (None, other):
            with pytest.raises(grpc.RpcError) as caught:
                _list_topics(scene, issued)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_the_certificate_of_a_grpc_client_is_its_principal(tmp_path: Path) -> None:
    settings = {
        **GRPCS,
        "listener.name.grpc.ssl.client.auth": "required",
        "grpc.authentication": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/U",
        "authorizer.class.name": "strandlog",
        "super.users": "User:ALICE",
    }
    with running(tmp_path, settings) as scene:
        _create_topic(scene, scene.client("alice"))
        with pytest.raises(grpc.RpcError) as caught:
            _create_topic(scene, scene.client("bob"))
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as caught:
            _create_topic(scene, scene.client("x1"))  # no rule matches
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_grpc_follows_changed_certificates_and_cas(tmp_path: Path) -> None:
    settings = {**GRPCS, **SOON, "listener.name.grpc.ssl.client.auth": "required"}
    with running(tmp_path, settings) as scene:
        alice, other = scene.client(), Authority(tmp_path / "other", "other-ca")
        _list_topics(scene, alice)
        scene.trusted.write_bytes(other.path.read_bytes())
        scene.issued.store.write_bytes(scene.authority.issue("server").store.read_bytes())
        bob = other.issue("bob", usage=None)

        def is_replaced() -> bool:
            try:
                _list_topics(scene, bob)
            except grpc.RpcError:
                return False
            return True

        eventually(is_replaced, "the new CA")
        with pytest.raises(grpc.RpcError):
            _list_topics(scene, alice)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ssl.client.auth", "requested"), ("ssl.enabled.protocols", "TLSv1.3")],
)
def test_settings_that_grpc_cannot_follow_stop_the_start(
    tmp_path: Path, name: str, value: str
) -> None:
    scene = TlsScene(tmp_path, **GRPCS, **{f"listener.name.grpc.{name}": value})
    with pytest.raises(ConfigurationError, match=f"listener.name.grpc.{name}"):
        scene.server.start()
