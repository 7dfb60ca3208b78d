"""The states of SASL on a connection, as a table of cases."""

from __future__ import annotations

import pytest

from strandlog.broker.access.sasl import Identity, SaslStep
from strandlog.broker.context import Principal
from strandlog.config.limits.kafka import MAX_REQUESTS_BEFORE_AUTHENTICATION
from strandlog.errors import AuthenticationError
from strandlog.server.kafka.authentication import Authentication, State, Verdict
from strandlog.server.kafka.handlers import declared_apis
from strandlog.storage.work import Work

HANDSHAKE, VERSIONS, AUTHENTICATE = 17, 18, 36
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
WALL_MS = 1_700_000_000_000
EVERY_KEY = [api.key for api in declared_apis()]


class Exchange:
    """An exchange that the tests never ask."""

    def __init__(self, mechanism: str = "SCRAM-SHA-256") -> None:
        self.mechanism = mechanism
        self.user = "alice"

    def respond(self, token: bytes) -> Work[SaslStep]:
        raise AssertionError(token)


def _login(max_reauth_ms: int = 0, expires_ms: int | None = None) -> Authentication:
    """An authentication of alice at time 0."""
    login = Authentication(max_reauth_ms)
    assert login.may_begin(0)
    assert login.begin(Exchange(), 1, 0)
    login.complete(Identity(ALICE, expires_ms), 0, WALL_MS)
    return login


def _in_state(state: State) -> Authentication:
    login = Authentication(60_000)
    if state is State.VERSIONS_SENT:
        login.versions_sent()
    elif state in (State.TOKENS, State.RAW_TOKENS):
        login.begin(Exchange(), 1 if state is State.TOKENS else 0, 0)
    elif state is State.DONE:
        login = _login(60_000)
    elif state is State.FAILED:
        login.fail()
    assert login.state is state
    return login


@pytest.mark.parametrize(
    ("state", "handled", "rejected"),
    [
        (State.START, {HANDSHAKE, VERSIONS}, set()),
        (State.VERSIONS_SENT, {HANDSHAKE}, set()),
        (State.TOKENS, {AUTHENTICATE}, {HANDSHAKE, VERSIONS}),
        (State.DONE, {HANDSHAKE}, set()),
        (State.FAILED, set(), set()),
    ],
)
def test_only_the_apis_on_the_list_pass_in_each_state(
    state: State, handled: set[int], rejected: set[int]
) -> None:
    verdicts = {key: _in_state(state).judge(key) for key in [*EVERY_KEY, -1, 9999]}
    assert {key for key, verdict in verdicts.items() if verdict is Verdict.HANDLE} == handled
    assert {key for key, verdict in verdicts.items() if verdict is Verdict.REJECT} == rejected
    rest = verdicts.keys() - handled - rejected
    assert {verdicts[key] for key in rest} == {Verdict.CLOSE}


def test_after_handshake_version_0_every_frame_is_a_token() -> None:
    for key in [*EVERY_KEY, -1]:
        assert _in_state(State.RAW_TOKENS).judge(key) is Verdict.TOKEN


def test_versions_are_sent_once() -> None:
    login = Authentication(0)
    assert login.judge(VERSIONS) is Verdict.HANDLE  # an unsupported version: it may ask again
    assert login.judge(VERSIONS) is Verdict.HANDLE
    login.versions_sent()
    assert login.judge(VERSIONS) is Verdict.CLOSE


def test_the_number_of_requests_before_authentication_is_limited() -> None:
    login = Authentication(0)
    for _ in range(MAX_REQUESTS_BEFORE_AUTHENTICATION):
        assert login.judge(VERSIONS) is Verdict.HANDLE
    assert login.judge(VERSIONS) is Verdict.CLOSE
    assert login.judge(HANDSHAKE) is Verdict.CLOSE


@pytest.mark.parametrize(
    ("max_reauth_ms", "life_ms", "lifetime_ms"),
    [
        (0, None, 0),
        (5000, None, 5000),
        (0, 7000, 7000),
        (5000, 7000, 5000),
        (7000, 5000, 5000),
        (5000, 0, 1),  # expired, but within the clock skew that the token's check allows
        (0, -30_000, 1),
    ],
)
def test_a_session_lasts_as_long_as_the_setting_and_the_token_allow(
    max_reauth_ms: int, life_ms: int | None, lifetime_ms: int
) -> None:
    login = Authentication(max_reauth_ms)
    login.begin(Exchange(), 1, 100)
    expires_ms = None if life_ms is None else WALL_MS + life_ms
    assert login.complete(Identity(ALICE, expires_ms), 100, WALL_MS) == lifetime_ms
    assert login.expires_ms == (100 + lifetime_ms if lifetime_ms else None)
    assert login.state is State.DONE


def test_a_session_that_does_not_expire_cannot_be_renewed() -> None:
    assert not _login().may_begin(60_000)


def test_the_same_principal_may_authenticate_again_once_per_second() -> None:
    login = _login(max_reauth_ms=10_000)
    assert login.may_begin(1)
    assert login.begin(Exchange(), 1, 1)
    assert not login.may_begin(1)  # it has begun
    assert login.complete(Identity(ALICE), 500, WALL_MS) == 10_000
    assert login.expires_ms == 10_500
    assert not login.may_begin(1000)
    assert login.may_begin(1001)


def test_no_other_principal_can_take_over_a_connection() -> None:
    login = _login(max_reauth_ms=10_000)
    login.begin(Exchange(), 1, 1)
    with pytest.raises(AuthenticationError, match="principal cannot change") as raised:
        login.complete(Identity(BOB), 2, WALL_MS)
    assert "bob" not in str(raised.value)
    assert login.principal == ALICE
    assert login.state is State.FAILED
    assert login.judge(HANDSHAKE) is Verdict.CLOSE


def test_no_other_mechanism_can_renew_a_session() -> None:
    login = _login(max_reauth_ms=10_000)
    assert not login.begin(Exchange("PLAIN"), 1, 1)
    assert login.state is State.FAILED


def test_a_handshake_cannot_restart_an_exchange() -> None:
    login = _in_state(State.TOKENS)
    assert not login.may_begin(60_000)
