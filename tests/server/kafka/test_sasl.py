"""Logins on a SASL listener: the order of requests, answers, sessions, limits."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import CLIENT, Authority
from tests.support.kafka_requests import Wire, create_topic
from tests.support.samples import one_in
from tests.support.sasl import (
    API_VERSIONS,
    PLAIN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SCRAM_256,
    SCRAM_512,
    SaslWire,
    frame,
    let_pass,
)
from tests.support.users import delete_user, set_password

from strandlog.broker.context import OWNER, RequestContext
from strandlog.client.wire.sasl import tokens
from strandlog.server.app import Server
from strandlog.server.kafka.api import KafkaApi
from strandlog.server.kafka.handlers import declared_apis
from strandlog.testing.server import ServerThread

LISTENER = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "connection.failed.authentication.delay.ms": "0",
}
FETCH, METADATA = 1, 3
CHECK_MS = 1000
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, UNSUPPORTED_VERSION, FAILED = 33, 34, 35, 58
USER, PASSWORD = "alice", "wonder=land,42"
OWN = RequestContext(OWNER)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("sasl") / "data", LISTENER) as running:
        set_password(running, USER, PASSWORD)
        set_password(running, "bob", "builder")
        yield running


@pytest.fixture
def wire(broker: ServerThread) -> Iterator[SaslWire]:
    with SaslWire(broker.port) as connection:
        yield connection


def _works(wire: Wire) -> bool:
    """Whether requests are answered."""
    return bool(wire.ask(METADATA, 12, topics=[]).brokers)


# -- the usual order -------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [SCRAM_256, SCRAM_512, PLAIN])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_logs_in(wire: SaslWire, mechanism: str, version: int) -> None:
    assert wire.ask(API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    answer = wire.log_in(USER, PASSWORD, mechanism, version)
    assert answer.error_code == 0
    if version:
        assert answer.session_lifetime.total_seconds() == 0
    assert _works(wire)


def test_the_handshake_lists_the_mechanisms(wire: SaslWire) -> None:
    answer = wire.handshake()
    assert (answer.error_code, set(answer.mechanisms)) == (0, {SCRAM_256, SCRAM_512, PLAIN})


def test_requests_carry_the_principal_of_the_login(broker: ServerThread, wire: SaslWire) -> None:
    wire.log_in(USER, PASSWORD)
    assert _works(wire)
    names = broker.call(
        lambda: {each.context.principal_text for each in broker.server.kafka.connections()}
    )
    assert "User:alice" in names


def test_a_login_with_tokens_without_header(wire: SaslWire) -> None:
    assert wire.handshake(SCRAM_256, version=0).error_code == 0
    exchange = tokens(SCRAM_256, USER, PASSWORD)
    message = next(exchange)
    with pytest.raises(StopIteration):
        while True:
            wire.send(message)
            message = exchange.send(wire.receive())
    assert _works(wire)


def test_plain_without_header_answers_an_empty_frame(wire: SaslWire) -> None:
    assert wire.handshake(PLAIN, version=0).error_code == 0
    wire.send(f"\0{USER}\0{PASSWORD}".encode())
    assert wire.receive() == b""
    assert _works(wire)


def test_a_failed_login_without_header_closes_the_connection(wire: SaslWire) -> None:
    assert wire.handshake(PLAIN, version=0).error_code == 0
    wire.send(f"\0{USER}\0wrong".encode())
    assert wire.is_closed()


@pytest.mark.parametrize("mechanism", [SCRAM_256, SCRAM_512, PLAIN])
@pytest.mark.parametrize("user", [USER, "unknown"])
def test_a_wrong_password_gets_58_and_the_connection_closes(
    wire: SaslWire, mechanism: str, user: str
) -> None:
    answer = wire.log_in(user, "wrong", mechanism)
    assert answer.error_code == FAILED
    assert user not in answer.error_message
    assert wire.is_closed()


def test_the_log_names_the_user_of_a_failed_login(
    wire: SaslWire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    wire.log_in("eve\n" + 100 * "x", "wrong", PLAIN)
    assert f"failed login from 127.0.0.1 as 'eve\\n{60 * 'x'}': PLAIN" in caplog.messages


def test_an_unsupported_version_of_api_versions_may_be_repeated(wire: SaslWire) -> None:
    wire.send(b"\0\x12\0\x63" + (7).to_bytes(4) + b"\xff\xff")
    answer = wire.receive()
    assert answer[:6] == (7).to_bytes(4) + UNSUPPORTED_VERSION.to_bytes(2)
    assert wire.ask(API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    assert wire.log_in(USER, PASSWORD).error_code == 0


def test_an_unsupported_mechanism_gets_33_with_the_supported_ones(wire: SaslWire) -> None:
    answer = wire.handshake("GSSAPI")
    assert answer.error_code == UNSUPPORTED_MECHANISM
    assert SCRAM_512 in answer.mechanisms
    assert wire.is_closed()


def test_both_apis_are_advertised_on_every_listener(broker: ServerThread) -> None:
    for port in (broker.port, int(broker.listener("kafka.plaintext").rpartition(":")[2])):
        with Wire(port) as wire:
            found = {row.api_key: row for row in wire.ask(API_VERSIONS, 0).api_keys}
        handshake, authenticate = found[SASL_HANDSHAKE], found[SASL_AUTHENTICATE]
        assert (handshake.min_version, handshake.max_version) == (0, 1)
        assert (authenticate.min_version, authenticate.max_version) == (0, 2)


def test_a_listener_without_sasl_answers_34(broker: ServerThread) -> None:
    with SaslWire(int(broker.listener("kafka.plaintext").rpartition(":")[2])) as wire:
        answer = wire.handshake()
        assert (answer.error_code, answer.mechanisms) == (ILLEGAL_STATE, ())
        assert wire.token(b"x").error_code == ILLEGAL_STATE
        assert _works(wire)


def test_after_the_login_both_apis_answer_34(wire: SaslWire) -> None:
    wire.log_in(USER, PASSWORD)
    assert wire.handshake().error_code == ILLEGAL_STATE
    answer = wire.token(b"x")
    assert answer.error_code == ILLEGAL_STATE
    assert "after successful authentication" in answer.error_message
    assert _works(wire)


# -- what is not allowed ---------------------------------------------------------------------------


def _request(key: int, version: int) -> bytes:
    """A request that would be valid: with the shortest body of its version."""
    return frame(key, version)


OTHERS = [api for api in declared_apis() if api.key not in (API_VERSIONS, SASL_HANDSHAKE)]


@pytest.mark.parametrize("api", one_in(7, OTHERS), ids=lambda api: api.name)
def test_no_other_api_is_answered_before_the_login(wire: SaslWire, api: KafkaApi) -> None:
    wire.socket.sendall(_request(api.key, api.last_version))
    assert wire.is_closed()


@pytest.mark.parametrize("api", one_in(7, OTHERS), ids=lambda api: api.name)
def test_no_other_api_is_answered_after_api_versions(wire: SaslWire, api: KafkaApi) -> None:
    wire.ask(API_VERSIONS, 0)
    wire.socket.sendall(_request(api.key, api.last_version))
    assert wire.is_closed()


@pytest.mark.parametrize("api", one_in(7, declared_apis()), ids=lambda api: api.name)
def test_no_other_api_is_answered_between_handshake_and_token(
    wire: SaslWire, api: KafkaApi
) -> None:
    if api.key == SASL_AUTHENTICATE:
        return
    assert wire.handshake().error_code == 0
    wire.socket.sendall(_request(api.key, api.last_version))
    if api.key in (API_VERSIONS, SASL_HANDSHAKE):
        assert wire.receive()[4:6] == ILLEGAL_STATE.to_bytes(2)
    assert wire.is_closed()


@pytest.mark.parametrize("api", one_in(7, declared_apis()), ids=lambda api: api.name)
def test_requests_behind_a_failing_login_are_not_executed(
    broker: ServerThread, wire: SaslWire, api: KafkaApi
) -> None:
    topics = broker.call(lambda: len(broker.server.broker.topic_names(OWN)))
    handled = broker.call(lambda: dict(broker.server.metrics()["request_seconds"]))
    assert wire.handshake(PLAIN).error_code == 0
    # A user of its own, because repeated failures of one user are delayed.
    token = frame(SASL_AUTHENTICATE, 2, auth_bytes=f"\0for-{api.name}\0wrong".encode())
    wire.socket.sendall(token + _request(api.key, api.last_version) * 3)
    assert wire.receive()[5:7] == FAILED.to_bytes(2)
    assert wire.is_closed()
    if api.key not in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
        after = broker.call(lambda: dict(broker.server.metrics()["request_seconds"]))
        assert handled.get(api.name, {}).get("count") == after.get(api.name, {}).get("count")
    assert topics == broker.call(lambda: len(broker.server.broker.topic_names(OWN)))


def test_requests_behind_a_successful_login_wait_for_it(wire: SaslWire) -> None:
    assert wire.handshake(PLAIN).error_code == 0
    token = frame(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
    wire.socket.sendall(token + frame(METADATA, 12, 2, topics=[]))
    assert wire.receive()[5:7] == b"\0\0"
    assert wire.receive()[:4] == (2).to_bytes(4)


def test_api_versions_can_be_asked_once(wire: SaslWire) -> None:
    wire.ask(API_VERSIONS, 0)
    wire.socket.sendall(frame(API_VERSIONS, 0))
    assert wire.is_closed()


# -- sessions --------------------------------------------------------------------------------------


@pytest.fixture
def short_sessions(tmp_path: Path) -> Iterator[ServerThread]:
    settings = {**LISTENER, "connections.max.reauth.ms": "1500"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        set_password(running, "bob", "builder")
        yield running


def _is_expired(server: Server) -> bool:
    """Whether the session of the only connection has expired."""
    [connection] = server.kafka.connections()
    assert connection.sasl is not None
    expires_ms = connection.sasl.authentication.expires_ms
    return expires_ms is not None and expires_ms + 100 < server.broker.clock.monotonic_ms()


def test_the_last_answer_has_the_lifetime_of_the_session(short_sessions: ServerThread) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.handshake(SCRAM_256)
        exchange = tokens(SCRAM_256, USER, PASSWORD)
        first = wire.token(next(exchange))
        assert first.session_lifetime.total_seconds() == 0
        last = wire.token(exchange.send(first.auth_bytes))
        assert last.session_lifetime.total_seconds() == 1.5


@pytest.mark.slow
def test_a_client_keeps_its_connection_by_authenticating_again(
    short_sessions: ServerThread,
) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD)
        for _ in range(3):
            let_pass(short_sessions, 1100)
            answer = wire.log_in(USER, PASSWORD)
            assert (answer.error_code, answer.session_lifetime.total_seconds()) == (0, 1.5)
            assert _works(wire)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 2])  # in version 0, the client does not learn its lifetime
def test_an_expired_session_closes_at_the_next_request(
    short_sessions: ServerThread, version: int
) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD, version=version)
        assert _works(wire)
        short_sessions.wait_until(_is_expired, "the session expires")
        wire.socket.sendall(frame(METADATA, 12, topics=[]))
        assert wire.is_closed()


def test_an_expired_session_can_be_renewed(short_sessions: ServerThread) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD)
        short_sessions.wait_until(_is_expired, "the session expires")
        assert wire.log_in(USER, PASSWORD).error_code == 0
        assert _works(wire)


def test_a_second_renewal_within_a_second_gets_34(short_sessions: ServerThread) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD)
        assert wire.log_in(USER, PASSWORD).error_code == 0
        assert wire.handshake().error_code == ILLEGAL_STATE
        assert _works(wire)


def test_no_other_user_can_take_over_the_connection(short_sessions: ServerThread) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD)
        answer = wire.log_in("bob", "builder")
        assert answer.error_code == FAILED
        assert "bob" not in answer.error_message
        assert wire.is_closed()


def test_a_renewal_with_another_mechanism_closes_the_connection(
    short_sessions: ServerThread,
) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD, SCRAM_256)
        assert wire.handshake(SCRAM_512).error_code == 0
        assert wire.is_closed()


def test_during_a_renewal_only_tokens_are_accepted(short_sessions: ServerThread) -> None:
    with SaslWire(short_sessions.port) as wire:
        wire.log_in(USER, PASSWORD)
        assert wire.handshake().error_code == 0
        wire.socket.sendall(frame(METADATA, 12, topics=[]))
        assert wire.is_closed()


# -- changed and deleted users ---------------------------------------------------------------------


@pytest.mark.parametrize("change", ["password", "deletion"])
def test_a_change_of_a_user_closes_its_connections(broker: ServerThread, change: str) -> None:
    set_password(broker, "carol", "old")
    with SaslWire(broker.port) as carol, SaslWire(broker.port) as other:
        assert carol.log_in("carol", "old").error_code == 0
        assert other.log_in(USER, PASSWORD).error_code == 0
        if change == "password":
            set_password(broker, "carol", "new")
        else:
            delete_user(broker, "carol")
        assert carol.is_closed()
        assert _works(other)
    with SaslWire(broker.port) as carol:
        answer = carol.log_in("carol", "new")
        assert answer.error_code == (0 if change == "password" else FAILED)


def test_a_deleted_user_cannot_commit_its_open_transaction(broker: ServerThread) -> None:
    """No request is handled after the deletion was acknowledged, not even one sent at once."""
    name = "gone"
    set_password(broker, name, "old")
    with SaslWire(broker.port) as wire, SaslWire(broker.port) as admin:
        assert admin.log_in(USER, PASSWORD).error_code == 0
        create_topic(admin, name)
        assert wire.log_in(name, "old").error_code == 0
        started = wire.ask(22, 2, transactional_id=name, transaction_timeout=60_000)
        producer = {"producer_id": started.producer_id, "producer_epoch": started.producer_epoch}
        added = wire.ask(
            24,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_topics=[{"name": name, "partitions": [0]}],
            **{f"v3_and_below_{key}": value for key, value in producer.items()},
        )
        [topic] = added.results_by_topic_v3_and_below
        assert topic.results_by_partition[0].partition_error_code == 0
        [deleted] = admin.ask(51, 0, deletions=[{"name": name, "mechanism": 1}]).results
        assert deleted.error_code == 0
        wire.socket.sendall(frame(26, 3, transactional_id=name, committed=True, **producer))
        assert wire.is_closed()
        [state] = admin.ask(65, 0, transactional_ids=[name]).transaction_states
        assert state.transaction_state == "Ongoing"


def test_a_user_gets_the_response_to_the_change_of_its_own_password(broker: ServerThread) -> None:
    set_password(broker, "self", "old")
    with SaslWire(broker.port) as wire:
        assert wire.log_in("self", "old").error_code == 0
        [changed] = wire.ask(51, 0, deletions=[{"name": "self", "mechanism": 1}]).results
        assert changed.error_code == 0
        assert wire.is_closed()


def test_a_request_sent_together_with_the_deletion_of_its_user_is_not_handled(
    broker: ServerThread,
) -> None:
    set_password(broker, "self", "old")
    with SaslWire(broker.port) as wire:
        assert wire.log_in("self", "old").error_code == 0
        deletion = frame(51, 0, deletions=[{"name": "self", "mechanism": 1}], upsertions=[])
        wire.socket.sendall(deletion + frame(METADATA, 12, topics=[]))
        wire.receive()
        assert wire.is_closed()


def test_a_waiting_fetch_does_not_keep_the_connection_of_a_deleted_user_open(
    broker: ServerThread,
) -> None:
    set_password(broker, "reader", "old")
    with SaslWire(broker.port) as wire:
        assert wire.log_in("reader", "old").error_code == 0
        topic_id = create_topic(wire, "awaited")
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        topics = [{"topic_id": topic_id, "partitions": [partition]}]
        request = frame(FETCH, 13, max_wait=600_000, min_bytes=1, max_bytes=1000, topics=topics)
        wire.socket.sendall(request)
        broker.wait_until(
            lambda server: server.metrics()["waiting_fetches"] == 1, "the fetch waits for records"
        )
        delete_user(broker, "reader")
        assert wire.is_closed()


@pytest.mark.slow
def test_a_change_of_a_user_during_its_delayed_re_authentication_closes_the_connection(
    tmp_path: Path,
) -> None:
    limits = {"connections.max.reauth.ms": "60000", "failed.logins.per.user.rate": "0.1"}
    with ServerThread(tmp_path / "data", {**LISTENER, **limits}) as running:
        set_password(running, USER, "old")
        set_password(running, "bob", "builder")
        with SaslWire(running.port) as wire:
            assert wire.log_in(USER, "old", PLAIN).error_code == 0
            for _ in range(2):
                with SaslWire(running.port) as guessing:
                    assert guessing.log_in(USER, "wrong", PLAIN).error_code == FAILED
            assert wire.handshake(PLAIN).error_code == 0
            wire.socket.sendall(frame(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0old"))
            set_password(running, USER, "new")
            assert wire.is_closed()
        with SaslWire(running.port) as wire:
            assert wire.log_in("bob", "builder", PLAIN).error_code == 0


@pytest.mark.slow
def test_connections_of_changed_users_stay_open_if_so_configured(tmp_path: Path) -> None:
    settings = {**LISTENER, "credential.change.closes.connections": "false"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, "old")
        with SaslWire(running.port) as wire:
            assert wire.log_in(USER, "old").error_code == 0
            set_password(running, USER, "new")
            let_pass(running, 2 * CHECK_MS)
            assert _works(wire)


# -- limits ----------------------------------------------------------------------------------------


def test_metrics_count_logins(broker: ServerThread) -> None:
    before = broker.call(broker.server.metrics)
    with SaslWire(broker.port) as good, SaslWire(broker.port) as bad, SaslWire(broker.port) as idle:
        good.log_in(USER, PASSWORD)
        bad.log_in(USER, "wrong")
        assert bad.is_closed()
        idle.ask(API_VERSIONS, 0)
        after = broker.call(broker.server.metrics)
    for name in ("logins_succeeded", "logins_failed", "connections_authenticating"):
        assert after[name] == before[name] + 1, name


def test_a_silent_client_is_disconnected_at_the_deadline(tmp_path: Path) -> None:
    settings = {**LISTENER, "connections.authentication.timeout.ms": "300"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        with SaslWire(running.port) as silent, SaslWire(running.port) as user:
            user.log_in(USER, PASSWORD)
            assert silent.is_closed()
            assert _works(user)
        with SaslWire(running.port) as slow:
            slow.handshake()
            assert slow.is_closed()
        assert running.call(running.server.metrics)["logins_timed_out"] == 2


def test_failures_are_reported_and_closed_after_a_delay(tmp_path: Path) -> None:
    settings = {**LISTENER, "connection.failed.authentication.delay.ms": "400"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        with SaslWire(running.port) as wire:
            began = time.monotonic()
            assert wire.log_in(USER, "wrong", PLAIN).error_code == FAILED
            assert time.monotonic() - began >= 0.4
            assert wire.is_closed()
        with SaslWire(running.port) as wire:
            began = time.monotonic()
            assert wire.handshake("GSSAPI").error_code == UNSUPPORTED_MECHANISM
            assert time.monotonic() - began >= 0.4
        with SaslWire(running.port) as wire:
            assert wire.log_in(USER, PASSWORD, PLAIN).error_code == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 1025, 65536])
def test_large_and_negative_frames_close_the_connection(tmp_path: Path, length: int) -> None:
    settings = {**LISTENER, "sasl.server.max.receive.size": "1024"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        for steps in ((), ("versions",), ("versions", "handshake")):
            with SaslWire(running.port) as wire:
                if "versions" in steps:
                    wire.ask(API_VERSIONS, 0)
                if "handshake" in steps:
                    wire.handshake()
                wire.socket.sendall(length.to_bytes(4, signed=True) + b"\0\0")
                assert wire.is_closed()
        with SaslWire(running.port) as wire:  # after the login, larger requests are possible
            wire.log_in(USER, PASSWORD)
            names = [{"topic_id": None, "name": "n" * 200} for _ in range(20)]
            wire.ask(METADATA, 12, topics=names, allow_auto_topic_creation=False)


# -- with TLS --------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def _over_tls(wire: SaslWire, authority: Authority, store: Path | None = None) -> None:
    context = ssl.create_default_context(cafile=str(authority.path))
    if store is not None:
        context.load_cert_chain(store)
    wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")


def test_the_certificate_is_checked_but_the_login_names_the_user(
    tmp_path: Path, authority: Authority
) -> None:
    settings = {
        **LISTENER,
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("server").store),
        "ssl.truststore.location": str(authority.path),
        "listener.name.sasl_ssl.ssl.client.auth": "required",
    }
    store = authority.issue("mallory", usage=CLIENT).store
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        with SaslWire(running.port) as wire:
            _over_tls(wire, authority, store)
            wire.ask(API_VERSIONS, 0)
            [connection] = running.call(running.server.kafka.connections)
            assert connection.context.principal_text == "User:ANONYMOUS"
            assert wire.log_in(USER, PASSWORD).error_code == 0
            assert connection.context.principal_text == f"User:{USER}"
        with SaslWire(running.port) as wire:
            _over_tls(wire, authority, store)
            wire.socket.sendall(frame(METADATA, 12, topics=[]))
            assert wire.is_closed()


def test_the_time_of_the_tls_handshake_counts(tmp_path: Path, authority: Authority) -> None:
    settings = {
        **LISTENER,
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("server").store),
        "connections.authentication.timeout.ms": "60000",
    }
    with ServerThread(tmp_path / "data", settings) as running, SaslWire(running.port) as wire:
        let_pass(running, 1000)
        _over_tls(wire, authority)
        wire.ask(API_VERSIONS, 0)
        [connection] = running.call(running.server.kafka.connections)
        assert running.call(connection.age_seconds) >= 1
