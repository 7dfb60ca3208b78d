"""Attacks on logins: replays, wrong order, odd lengths, slow bytes, floods, guessing, secrets."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sasl import (
    API_VERSIONS,
    PLAIN,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SCRAM_256,
    SaslWire,
    frame,
)
from tests.support.users import delete_user, set_password

from strandlog.client.wire.sasl import tokens
from strandlog.config.limits.kafka import MAX_REQUESTS_BEFORE_AUTHENTICATION
from strandlog.server.kafka.handlers import declared_apis
from strandlog.server.kafka.login_throttle import BURST_SECONDS
from strandlog.testing.server import ServerThread

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "connection.failed.authentication.delay.ms": "0",
    "failed.logins.per.user.rate": "0",
    "failed.logins.per.ip.rate": "0",
}
USER, PASSWORD = "alice", "correct horse battery"
METADATA = 3
ILLEGAL_STATE, FAILED = 34, 58


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("attacks") / "data", SETTINGS) as running:
        set_password(running, USER, PASSWORD)
        set_password(running, "mallory", "her own")
        yield running


@pytest.fixture
def wire(broker: ServerThread) -> Iterator[SaslWire]:
    with SaslWire(broker.port) as connection:
        yield connection


def _first(wire: SaslWire, user: str = USER, nonce: str = "fixed") -> bytes:
    """Send the handshake and the first message of SCRAM; gives the server's answer."""
    assert wire.handshake(SCRAM_256).error_code == 0
    answer = wire.token(f"n,,n={user},r={nonce}".encode())
    assert answer.error_code == 0
    found: bytes = answer.auth_bytes
    return found


def _final(server_first: bytes, user: str = USER, password: str = PASSWORD) -> bytes:
    """The client's final message for the first message of `_first`."""
    exchange = tokens(SCRAM_256, user, password, nonce="fixed")
    next(exchange)
    return exchange.send(server_first)


# -- messages of SCRAM -----------------------------------------------------------------------------


def test_a_recorded_proof_is_worth_nothing_on_another_connection(broker: ServerThread) -> None:
    with SaslWire(broker.port) as victim:
        recorded = _final(_first(victim))
        assert victim.token(recorded).error_code == 0
    with SaslWire(broker.port) as attacker:
        _first(attacker)
        assert attacker.token(recorded).error_code == FAILED
        assert attacker.is_closed()


def test_a_second_final_message_is_not_evaluated(wire: SaslWire) -> None:
    final = _final(_first(wire))
    assert wire.token(final).error_code == 0
    assert wire.token(final).error_code == ILLEGAL_STATE


def test_a_final_message_behind_a_wrong_one_is_not_evaluated(wire: SaslWire) -> None:
    server_first = _first(wire)
    wrong, right = _final(server_first, password="wrong"), _final(server_first)
    wire.socket.sendall(
        frame(SASL_AUTHENTICATE, 2, 3, auth_bytes=wrong)
        + frame(SASL_AUTHENTICATE, 2, 4, auth_bytes=right)
        + frame(METADATA, 12, 5, topics=[])
    )
    assert wire.receive()[5:7] == FAILED.to_bytes(2)
    assert wire.is_closed()


def test_the_proof_of_one_user_is_not_valid_for_another(wire: SaslWire) -> None:
    server_first = _first(wire, USER)
    assert wire.token(_final(server_first, "mallory", "her own")).error_code == FAILED


@pytest.mark.parametrize("change", ["prefix", "suffix", "shorter", "own"])
def test_a_changed_nonce_is_rejected(wire: SaslWire, change: str) -> None:
    server_first = _first(wire)
    nonce = server_first.split(b",")[0].removeprefix(b"r=")
    changed = {
        "prefix": b"x" + nonce[1:],
        "suffix": nonce[:-1] + (b"x" if nonce[-1:] != b"x" else b"y"),
        "shorter": nonce[:-1],
        "own": b"fixed",
    }[change]
    final = _final(server_first).replace(b"r=" + nonce, b"r=" + changed)
    assert wire.token(final).error_code == FAILED
    assert wire.is_closed()


def test_channel_binding_cannot_be_claimed(wire: SaslWire) -> None:
    """The flag y says that the client supports channel binding but believes that the broker does
    not, which only an attacker in between could have told it."""
    assert wire.handshake(SCRAM_256).error_code == 0
    assert wire.token(b"y,,n=alice,r=fixed").error_code == FAILED
    assert wire.is_closed()


def test_the_final_message_must_repeat_the_header_of_the_first(wire: SaslWire) -> None:
    server_first = _first(wire)
    other = base64.b64encode(b"y,,")
    final = _final(server_first).replace(b"c=biws", b"c=" + other)
    assert wire.token(final).error_code == FAILED


def test_a_token_of_another_mechanism_is_rejected(wire: SaslWire) -> None:
    assert wire.handshake(SCRAM_256).error_code == 0
    assert wire.token(f"\0{USER}\0{PASSWORD}".encode()).error_code == FAILED
    assert wire.is_closed()


@pytest.mark.parametrize("authorization_id", ["admin", "mallory", "alice\0"])
def test_a_user_cannot_act_as_another(wire: SaslWire, authorization_id: str) -> None:
    assert wire.handshake(PLAIN).error_code == 0
    answer = wire.token(f"{authorization_id}\0{USER}\0{PASSWORD}".encode())
    assert answer.error_code == FAILED
    assert wire.is_closed()


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\0",
        b"\0\0\0\1\0",
        b"\0\0\0\1\x12",
        b"\0\0\0\2\0\x11",
        b"\0\0\0\2\0\x12",
        b"\0\0\0\2\0\x24",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\0\xff",
        b"\xff\xff\xff\xff",
    ],
)
def test_frames_without_a_header_close_the_connection(
    wire: SaslWire, steps: int, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    if steps > 0:
        wire.ask(API_VERSIONS, 0)
    if steps > 1:
        wire.handshake()
    wire.socket.sendall(sent)
    assert wire.is_closed()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


REQUESTS = st.sampled_from(declared_apis()).flatmap(
    lambda api: st.builds(frame, st.just(api.key), st.sampled_from(api.versions))
)
LOGIN_REQUESTS = st.sampled_from(
    [
        frame(API_VERSIONS, 0),
        frame(SASL_HANDSHAKE, 0, mechanism=PLAIN),
        frame(SASL_HANDSHAKE, 1, mechanism=SCRAM_256),
        frame(SASL_AUTHENTICATE, 2, auth_bytes=b"n,,n=alice,r=x"),
        frame(SASL_AUTHENTICATE, 1, auth_bytes=b"\0alice\0wrong"),
    ]
)
RAW_FRAMES = st.binary(max_size=40).map(lambda data: len(data).to_bytes(4) + data)


@given(parts=st.lists(LOGIN_REQUESTS | REQUESTS | RAW_FRAMES | st.binary(max_size=8), max_size=8))
def test_no_sequence_of_frames_causes_an_error_or_logs_a_client_in(
    broker: ServerThread, parts: list[bytes]
) -> None:
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    succeeded = broker.server.broker.metrics.logins_succeeded
    logging.getLogger().addHandler(handler)
    try:
        with SaslWire(broker.port) as wire, contextlib.suppress(ConnectionError):
            wire.socket.sendall(b"".join(parts))
            wire.socket.shutdown(socket.SHUT_WR)
            while wire.socket.recv(10_000):
                pass
    finally:
        logging.getLogger().removeHandler(handler)
    assert errors == []
    assert broker.server.broker.metrics.logins_succeeded == succeeded


@pytest.mark.parametrize("sent", [b"\0\x12", b"\0\x12\0\3\0\0\0\1\x7f\xff", b"\0\x11\0\1\0"])
@pytest.mark.parametrize("is_behind_a_token", [False, True])
def test_half_a_header_during_a_login_does_not_stop_the_server(
    broker: ServerThread, wire: SaslWire, sent: bytes, *, is_behind_a_token: bool
) -> None:
    data = frame(SASL_HANDSHAKE, 1, mechanism=SCRAM_256)
    if is_behind_a_token:  # then the server handles it in a turn of the event loop
        data += frame(SASL_AUTHENTICATE, 2, auth_bytes=b"n,,n=alice,r=fixed")
    wire.socket.sendall(data + len(sent).to_bytes(4) + sent)
    with contextlib.suppress(ConnectionError):
        while wire.socket.recv(1000):
            pass
    with SaslWire(broker.port) as other:
        assert other.log_in(USER, PASSWORD).error_code == 0


@pytest.mark.parametrize("mechanism", [SCRAM_256, PLAIN])
def test_an_empty_token_without_header_closes_the_connection(
    wire: SaslWire, mechanism: str
) -> None:
    assert wire.handshake(mechanism, version=0).error_code == 0
    wire.socket.sendall(b"\0\0\0\0")
    assert wire.is_closed()


def test_requests_are_tokens_after_handshake_version_0(wire: SaslWire) -> None:
    assert wire.handshake(PLAIN, version=0).error_code == 0
    wire.socket.sendall(frame(METADATA, 12, topics=[]))
    assert wire.is_closed()


@pytest.mark.parametrize("version", [-1, 3, 99, 32767])
def test_unknown_versions_close_the_connection(wire: SaslWire, version: int) -> None:
    assert wire.handshake().error_code == 0
    wire.send(struct.pack(">hhih", SASL_AUTHENTICATE, version, 7, -1) + bytes(20))
    assert wire.is_closed()


def test_a_login_that_arrives_byte_by_byte_succeeds(wire: SaslWire) -> None:
    requests = frame(API_VERSIONS, 0, 1) + frame(SASL_HANDSHAKE, 1, 2, mechanism=PLAIN)
    token = f"\0{USER}\0{PASSWORD}".encode()
    requests += frame(SASL_AUTHENTICATE, 2, 3, auth_bytes=token)
    for position in range(len(requests)):
        wire.socket.sendall(requests[position : position + 1])
    for number in (1, 2, 3):
        assert wire.receive()[:4] == number.to_bytes(4)
    assert wire.ask(METADATA, 12, topics=[]).brokers


def test_slow_bytes_do_not_extend_the_deadline(tmp_path: Path) -> None:
    settings = {**SETTINGS, "connections.authentication.timeout.ms": "500"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        with SaslWire(running.port) as wire:
            request = frame(SASL_HANDSHAKE, 1, mechanism=SCRAM_256)
            wire.socket.settimeout(0.02)
            with pytest.raises(ConnectionError):
                _drip(wire, request + request)
        assert running.call(running.server.metrics)["logins_timed_out"] == 1


def _drip(wire: SaslWire, request: bytes) -> None:
    """Send a byte whenever nothing arrives for a moment; raises when the connection closes."""
    for position in range(len(request)):
        wire.socket.sendall(request[position : position + 1])
        try:
            if wire.socket.recv(1) == b"":
                raise ConnectionError
        except TimeoutError:
            continue


def test_what_a_client_sends_before_its_login_is_not_buffered_without_bound(
    tmp_path: Path,
) -> None:
    settings = {**SETTINGS, "sasl.server.max.receive.size": "20000"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        with SaslWire(running.port) as wire:
            assert wire.handshake(PLAIN).error_code == 0
            token = frame(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0wrong".encode())
            small = frame(METADATA, 12, topics=[])
            with pytest.raises((ConnectionError, TimeoutError)):
                wire.socket.settimeout(10)
                wire.socket.sendall(token + small * 400_000)  # 10 MB
                while wire.socket.recv(1000):
                    pass
                raise ConnectionError
        assert running.call(running.server.metrics)["queued_request_bytes"] == 0
        with SaslWire(running.port) as wire:
            assert wire.log_in(USER, PASSWORD).error_code == 0


# -- floods ----------------------------------------------------------------------------------------


def test_a_flood_of_unsupported_versions_ends(wire: SaslWire) -> None:
    request = struct.pack(">hhih", API_VERSIONS, 99, 7, -1)
    for _ in range(MAX_REQUESTS_BEFORE_AUTHENTICATION):
        wire.send(request)
        assert wire.receive()[:4] == (7).to_bytes(4)
    wire.send(request)
    assert wire.is_closed()


def test_a_flood_of_handshakes_in_one_packet_gets_one_answer_and_one_error(wire: SaslWire) -> None:
    wire.socket.sendall(frame(SASL_HANDSHAKE, 1, mechanism=SCRAM_256) * 1000)
    assert wire.receive()[4:6] == b"\0\0"
    assert wire.receive()[4:6] == ILLEGAL_STATE.to_bytes(2)
    assert wire.is_closed()


def test_a_flood_of_handshakes_after_the_login_is_answered_with_errors(wire: SaslWire) -> None:
    assert wire.log_in(USER, PASSWORD).error_code == 0
    wire.socket.sendall(frame(SASL_HANDSHAKE, 1, mechanism=SCRAM_256) * 1000)
    for _ in range(1000):
        assert wire.receive()[4:6] == ILLEGAL_STATE.to_bytes(2)
    assert wire.ask(METADATA, 12, topics=[]).brokers


def test_silent_connections_make_room_for_clients_that_log_in(tmp_path: Path) -> None:
    settings = {**SETTINGS, "max.connections": "20"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        users = [SaslWire(running.port) for _ in range(5)]
        silent: list[SaslWire] = []
        try:
            for user in users:
                assert user.log_in(USER, PASSWORD).error_code == 0
            for _ in range(100):
                silent.append(SaslWire(running.port))
                silent[-1].ask(API_VERSIONS, 0)
            with SaslWire(running.port) as late:
                assert late.log_in(USER, PASSWORD).error_code == 0
            for user in users:
                assert user.ask(METADATA, 12, topics=[]).brokers
            assert running.call(running.server.metrics)["logins_dropped"] >= 80
        finally:
            for each in [*users, *silent]:
                each.socket.close()


def test_a_client_that_disconnects_during_its_login_leaves_nothing_behind(
    broker: ServerThread,
) -> None:
    for _ in range(30):
        with SaslWire(broker.port) as wire:
            wire.handshake(PLAIN)
            token = frame(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
            wire.socket.sendall(token)
    broker.wait_until(
        lambda server: (
            not server.kafka.connections()
            and server.broker.metrics.connections_authenticating == 0
            and server.broker.metrics.requests_in_flight == 0
        ),
        "all connections are closed",
    )


def test_the_server_stops_while_clients_log_in(tmp_path: Path) -> None:
    settings = {**SETTINGS, "connection.failed.authentication.delay.ms": "60000"}
    running = ServerThread(tmp_path / "data", settings)
    running.start()
    set_password(running, USER, PASSWORD)
    with SaslWire(running.port) as silent, SaslWire(running.port) as failed:
        silent.ask(API_VERSIONS, 0)
        failed.handshake(PLAIN)
        token = frame(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0wrong".encode())
        failed.socket.sendall(token)
        running.wait_until(lambda each: each.broker.metrics.logins_failed == 1, "the login fails")
        running.stop()
        assert silent.is_closed()
        assert failed.is_closed()


# -- guessing --------------------------------------------------------------------------------------


@pytest.fixture
def throttled(tmp_path: Path) -> Iterator[ServerThread]:
    settings = {
        **SETTINGS,
        "failed.logins.per.user.rate": "0.1",
        "failed.logins.per.ip.rate": "1",
    }
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        set_password(running, "bob", "builder")
        yield running


def _guess(broker: ServerThread, user: str, number: int) -> None:
    with SaslWire(broker.port) as wire:
        wire.socket.settimeout(0.5)
        try:
            wire.log_in(user, f"guess {number}", PLAIN if number % 2 else SCRAM_256)
        except (TimeoutError, ConnectionError):
            return  # delayed; the attacker tries the next connection


@pytest.mark.slow
def test_guesses_from_one_address_are_delayed_but_known_users_are_not(
    throttled: ServerThread,
) -> None:
    with SaslWire(throttled.port) as wire:
        assert wire.log_in(USER, PASSWORD).error_code == 0
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _guess(throttled, f"user {number}", number), range(60)))
    metrics = throttled.call(throttled.server.metrics)
    assert metrics["logins_delayed"] > 0
    # The burst, what is allowed per second, and attempts that were being checked meanwhile.
    assert BURST_SECONDS <= metrics["logins_failed"] < 60
    with SaslWire(throttled.port) as wire:
        wire.socket.settimeout(20)
        assert wire.log_in(USER, PASSWORD).error_code == 0


@pytest.mark.slow
def test_guesses_for_one_user_do_not_delay_other_users_of_the_address(
    throttled: ServerThread,
) -> None:
    for number in range(8):
        _guess(throttled, USER, number)
    delayed = throttled.call(throttled.server.metrics)["logins_delayed"]
    assert delayed > 0
    with SaslWire(throttled.port) as wire:
        assert wire.log_in("bob", "builder").error_code == 0
    assert throttled.call(throttled.server.metrics)["logins_delayed"] == delayed


# -- secrets ---------------------------------------------------------------------------------------


def test_logs_contain_no_secrets_and_messages_not_even_names(
    broker: ServerThread, caplog: pytest.LogCaptureFixture
) -> None:
    set_password(broker, "nameduser", "passwordsecret")
    messages: list[str] = []
    with caplog.at_level(logging.DEBUG, logger="strandlog"):
        for mechanism in (SCRAM_256, PLAIN):
            with SaslWire(broker.port) as wire:
                assert wire.log_in("nameduser", "passwordsecret", mechanism).error_code == 0
                messages.append(wire.token(b"passwordsecret").error_message)
            for user in ("nameduser", "unknownuser"):
                with SaslWire(broker.port) as wire:
                    answer = wire.log_in(user, "wrongsecret", mechanism)
                    messages.append(answer.error_message)
                    assert wire.is_closed()
        for sent in (b"nameduser\0passwordsecret", b"\0\0passwordsecret", b"\0nameduser\0"):
            with SaslWire(broker.port) as wire:
                wire.handshake(PLAIN)
                messages.append(wire.token(sent).error_message)
        with SaslWire(broker.port) as wire:
            wire.handshake(PLAIN, version=0)
            wire.send(b"\0nameduser\0wrongsecret")
            assert wire.is_closed()
        with SaslWire(broker.port) as wire:
            messages.append(str(wire.handshake("mechanismsecret")))
        with SaslWire(broker.port) as wire:  # a token where a request is expected
            wire.send(b"\0nameduser\0passwordsecret")
            assert wire.is_closed()
    delete_user(broker, "nameduser")
    said = [*messages, *(record.getMessage() for record in caplog.records)]
    assert len(said) > 10
    assert [text for text in said if "secret" in text] == []
    assert [text for text in messages if "user" in text.lower().replace("username", "")] == []


def test_an_unknown_user_and_a_wrong_password_get_the_same_answers(broker: ServerThread) -> None:
    for mechanism in (SCRAM_256, PLAIN):
        answers = []
        for user in (USER, "nosuchuser"):
            with SaslWire(broker.port) as wire:
                answers.append(wire.log_in(user, "wrong", mechanism))
        assert answers[0] == answers[1]


def test_a_connection_without_login_has_no_rights(tmp_path: Path) -> None:
    """Even if a state were wrong: the principal of a new connection is User:ANONYMOUS."""
    with ServerThread(tmp_path / "data", SETTINGS) as running, SaslWire(running.port) as wire:
        wire.ask(API_VERSIONS, 0)
        [connection] = running.call(running.server.kafka.connections)
        assert connection.context.principal_text == "User:ANONYMOUS"
