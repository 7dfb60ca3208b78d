"""The principal of a client that has a certificate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.x509.oid import NameOID
from tests.server.tls.scene import TIMEOUT_SECONDS, TlsScene, is_closed, running, serves
from tests.support.certificates import CLIENT, Issued, subject
from tests.support.users import set_password

from strandlog.broker.context import ANONYMOUS
from strandlog.server.app import Server

MUTUAL = {
    "ssl.client.auth": "required",
    "authorizer.class.name": "strandlog",
    "super.users": "User:CN=alice",
}


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsScene]:
    with running(tmp_path_factory.mktemp("mutual"), MUTUAL) as scene:
        yield scene


def _principals(server: Server) -> list[str]:
    return [each.context.principal_text for each in server.kafka.connections()]


def _principal(scene: TlsScene, issued: Issued | None) -> str:
    """Return the principal of a connection before it has sent a request."""
    with scene.tls(issued):
        scene.server.wait_until(lambda server: bool(server.kafka.connections()), "connected")
        [found] = scene.server.call(lambda: _principals(scene.server.server))
    scene.server.wait_until(lambda server: not server.kafka.connections(), "closed")
    return found


def _create(admin: AdminClient, name: str) -> None:
    admin.create_topics([NewTopic(name, 1)])[name].result(timeout=TIMEOUT_SECONDS)


def test_a_user_with_a_certificate_may_do_what_its_principal_may(mutual: TlsScene) -> None:
    alice, bob = mutual.admin(mutual.client("alice")), mutual.admin(mutual.client("bob"))
    _create(alice, "of-alice")
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        _create(bob, "of-bob")
    described = bob.describe_topics(TopicCollection(["of-alice"]))["of-alice"]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        described.result(timeout=TIMEOUT_SECONDS)


def test_the_principal_is_the_whole_subject(tmp_path: Path) -> None:
    with running(tmp_path, {"ssl.client.auth": "requested"}) as scene:
        who = subject((NameOID.ORGANIZATION_NAME, "Acme, Inc"), (NameOID.COMMON_NAME, "carol"))
        carol = scene.authority.issue(who, usage=CLIENT)
        assert _principal(scene, carol) == r"User:CN=carol,O=Acme\, Inc"
        assert _principal(scene, None) == str(ANONYMOUS)


def test_rules_map_a_subject_to_a_name_and_close_connections_without_a_match(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = r"RULE:^CN=([A-Za-z]+)$/$1/L"
    settings = {"ssl.client.auth": "requested", "ssl.principal.mapping.rules": rules}
    with running(tmp_path, settings) as scene:
        assert _principal(scene, scene.client("Alice")) == "User:alice"
        assert _principal(scene, None) == str(ANONYMOUS)
        tricked = scene.client("x,CN=admin")
        with scene.tls(tricked) as tls:
            assert is_closed(tls)
    assert "matches no rule of ssl.principal.mapping.rules" in caplog.text
    assert r"CN=x\,CN\=admin" in caplog.text


@pytest.mark.parametrize("name", ["ANONYMOUS", "*", "admin\nforged line"])
def test_a_certificate_for_a_name_that_no_user_can_have_is_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    rules = r"RULE:^CN=(.*)$/$1/"
    settings = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": rules}
    with running(tmp_path, settings) as scene, scene.tls(scene.client(name)) as tls:
        assert not serves(tls)
    assert "\nforged line" not in caplog.text


def test_a_certificate_that_only_openssl_can_parse_is_reported_and_not_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, {"ssl.client.auth": "required"}) as scene:
        strange = scene.authority.with_version(scene.client("alice"), 5)
        with scene.tls(strange) as tls:
            assert is_closed(tls)
    assert "the certificate cannot be parsed" in caplog.text


def test_a_connection_without_a_match_executes_no_request(tmp_path: Path) -> None:
    settings = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "RULE:^CN=a$/a/"}
    with running(tmp_path, settings) as scene:
        with scene.tls(scene.client("b")) as tls:
            assert not serves(tls)
        scene.server.wait_until(lambda server: server.kafka.room.used == 0, "closed")


@contextlib.contextmanager
def _sasl_scene(folder: Path) -> Iterator[TlsScene]:
    scene = TlsScene(
        folder,
        **{
            **MUTUAL,
            "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
            "listener.name.sasl_ssl.ssl.client.auth": "required",
            "super.users": "User:admin",
        },
    )
    with scene.server:
        yield scene


def test_with_sasl_the_certificate_is_checked_and_the_user_is_the_principal(
    tmp_path: Path,
) -> None:
    with _sasl_scene(tmp_path) as scene:
        set_password(scene.server, "admin", "secret")
        login = {
            "bootstrap.servers": scene.server.listener("kafka.sasl_ssl"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "secret",
        }
        admin = AdminClient(scene.config(scene.client("bob"), **login))
        _create(admin, "t")
        assert "User:admin" in scene.server.call(lambda: _principals(scene.server.server))
        with scene.connect("kafka.sasl_ssl") as plain:  # without a certificate
            tls = scene.context().wrap_socket(plain, server_hostname="localhost")
            with tls:
                assert not serves(tls)


def test_a_certificate_does_not_authenticate_on_a_listener_with_sasl(tmp_path: Path) -> None:
    with (
        _sasl_scene(tmp_path) as scene,
        scene.tls(scene.client("admin"), listener="kafka.sasl_ssl") as tls,
    ):
        metadata = b"\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x07\xff\xff\xff\xff\xff\xff"
        tls.sendall(metadata)
        assert is_closed(tls)


def test_the_address_in_rules_is_that_of_the_connection(mutual: TlsScene) -> None:
    with mutual.tls(mutual.client("carol")) as tls:
        assert serves(tls)
        hosts = mutual.server.call(
            lambda: [
                each.context.client_host
                for each in mutual.server.server.kafka.connections()
                if each.context.principal_text == "User:CN=carol"
            ]
        )
        assert hosts == ["127.0.0.1"]
