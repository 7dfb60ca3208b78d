"""When sessions begin and end, and their cookies."""

from __future__ import annotations

import pytest

from strandlog.broker.context import Principal
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.server.http.access.sessions import (
    ID_BYTES,
    Sessions,
    clear_cookie,
    cookie_name,
    cookie_values,
    set_cookie,
)
from strandlog.server.http.problems import HttpError
from strandlog.testing.clock import FakeClock

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
SETTINGS = {
    "http.session.idle.timeout.ms": "10000",
    "http.session.max.lifetime.ms": "60000",
    "http.max.sessions": "5",
    "http.user.max.sessions": "3",
}


class Store:
    """Sessions with a clock, and the credentials of the users."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.stamps = {"alice": b"a1", "bob": b"b1"}
        self.sessions = Sessions(
            broker_settings(BROKER_SETTINGS.parse(SETTINGS)),
            self.clock,
            lambda user: self.stamps.get(user, b""),
        )

    def begin(self, principal: Principal = ALICE) -> str:
        return self.sessions.begin(principal, self.stamps[principal.name])

    def is_alive(self, identifier: str) -> bool:
        return self.sessions.find(identifier) is not None


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_session_belongs_to_the_user_of_its_login(store: Store) -> None:
    found = store.sessions.find(store.begin(BOB))
    assert found is not None and found.principal == BOB


def test_ids_are_random_and_have_256_bits(store: Store) -> None:
    ids = {store.begin() for _ in range(3)}
    assert len(ids) == 3
    assert all(len(each) == (ID_BYTES * 8 + 5) // 6 for each in ids)


@pytest.mark.parametrize("identifier", ["", "x", "a" * 43, "\udcff", "strandlog"])
def test_an_unknown_id_has_no_session(store: Store, identifier: str) -> None:
    store.begin()
    assert not store.is_alive(identifier)


def test_the_server_does_not_keep_the_id_itself(store: Store) -> None:
    identifier = store.begin()
    assert identifier.encode() not in store.sessions._by_hash
    assert identifier not in repr(vars(store.sessions))


def test_a_session_that_is_not_used_ends_at_the_idle_limit(store: Store) -> None:
    used, unused = store.begin(), store.begin()
    store.clock.advance(9_999)
    assert store.is_alive(used)
    store.clock.advance(1)
    assert store.is_alive(used)
    assert not store.is_alive(unused)


def test_a_session_in_use_ends_at_the_absolute_limit(store: Store) -> None:
    identifier = store.begin()
    for _ in range(59):
        store.clock.advance(1_000)
        assert store.is_alive(identifier)
    store.clock.advance(1_000)
    assert not store.is_alive(identifier)


def test_setting_the_wall_clock_does_not_extend_a_session(store: Store) -> None:
    identifier = store.begin()
    store.clock.advance(10_000)
    store.clock.set_wall(0)
    assert not store.is_alive(identifier)


def test_changed_credentials_end_the_sessions_of_their_user_only(store: Store) -> None:
    alices, bobs = store.begin(ALICE), store.begin(BOB)
    store.stamps["alice"] = b"a2"
    assert not store.is_alive(alices)
    assert store.is_alive(bobs)
    del store.stamps["bob"]
    assert not store.is_alive(bobs)


def test_a_logout_ends_one_session(store: Store) -> None:
    one, other = store.begin(), store.begin()
    store.sessions.end(one)
    store.sessions.end("unknown")
    assert not store.is_alive(one)
    assert store.is_alive(other)


def test_a_session_object_ends_with_its_session(store: Store) -> None:
    """A stream holds it while the session ends."""
    identifier = store.begin()
    session = store.sessions.find(identifier)
    assert session is not None and store.sessions.use(session)
    store.sessions.end(identifier)
    assert not store.sessions.use(session)


def test_a_further_login_ends_the_oldest_session_of_the_user(store: Store) -> None:
    mine = [store.begin() for _ in range(4)]
    bobs = store.begin(BOB)
    assert [store.is_alive(each) for each in mine] == [False, True, True, True]
    assert store.is_alive(bobs)


def test_a_login_fails_when_all_users_have_too_many_sessions(store: Store) -> None:
    for number in range(5):
        name = f"user{number}"
        store.stamps[name] = b""
        store.begin(Principal("User", name))
    with pytest.raises(HttpError, match=r"http\.max\.sessions") as caught:
        store.begin()
    assert caught.value.status == 503
    store.clock.advance(10_000)  # idle sessions make room
    assert store.is_alive(store.begin())
    assert len(store.sessions) == 1


def test_the_cookie_on_tls_is_bound_to_the_host() -> None:
    name = cookie_name(9095, uses_tls=True)
    assert name == "__Host-strandlog-session-9095"
    attributes = set_cookie(name, "x").split("; ")
    assert set(attributes[1:]) == {"Path=/", "HttpOnly", "SameSite=Strict", "Secure"}


def test_the_cookie_without_tls_has_no_prefix_because_browsers_would_ignore_it() -> None:
    name = cookie_name(9095, uses_tls=False)
    assert name == "strandlog-session-9095"
    attributes = set_cookie(name, "x").split("; ")
    assert set(attributes[1:]) == {"Path=/", "HttpOnly", "SameSite=Strict"}


def test_clearing_a_cookie_uses_the_same_attributes() -> None:
    for uses_tls in (False, True):
        name = cookie_name(1, uses_tls=uses_tls)
        assert clear_cookie(name) == set_cookie(name, "") + "; Max-Age=0"


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("", []),
        ("s=1", ["1"]),
        ("a=0; s=1; b=2", ["1"]),
        ("a=0;s=1;b=2", ["1"]),
        ("s=1; s=2", ["1", "2"]),
        ("S=1; xs=2; s", [""]),
        ("s==a=b", ["=a=b"]),
        (";;=; s=1", ["1"]),
    ],
)
def test_cookies_are_found_by_their_exact_name(header: str, values: list[str]) -> None:
    assert cookie_values(header, "s") == values
