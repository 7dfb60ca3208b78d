"""Who a request is from, by a real broker with a clock that the test advances."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from uuid import UUID

import pytest

from strandlog.broker.access.sasl import Identity
from strandlog.broker.broker import Broker
from strandlog.broker.context import ANONYMOUS, OWNER, Principal, RequestContext
from strandlog.broker.runtime import Work
from strandlog.config.limits.access import LOGINS_MAX_REMEMBERED, LOGINS_MAX_WAITING
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import AuthenticationError
from strandlog.server.access.logins import REMEMBERED_SECONDS, Logins
from strandlog.server.http.access.authentication import (
    CERTIFICATE,
    Authentication,
    Client,
    cookie_name_of,
)
from strandlog.server.http.problems import HttpError
from strandlog.storage.work import run_inline
from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.files import SimulatedFiles

OWNED = RequestContext(OWNER)
ALICE = Principal("User", "alice")
SETTINGS = {
    "http.authentication": "required",
    "http.max.failed.logins": "5",
    "connection.failed.authentication.delay.ms": "0",
}
MINUTE_MS = 60_000


def basic(user: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {text}"}


def scope(
    path: str = "/api/v1/topics",
    method: str = "GET",
    address: str = "10.0.0.1",
    **more: Any,
) -> Callable[..., dict[str, Any]]:
    def build(headers: dict[str, str] | None = None) -> dict[str, Any]:
        given = {"host": "127.0.0.1:9095", **(headers or {})}
        return {
            "type": "http",
            "method": method,
            "path": path,
            "scheme": "http",
            "server": ("127.0.0.1", 9095),
            "client": (address, 50000),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            **more,
        }

    return build


class World:
    """A broker with the user alice, and the authentication of an HTTP listener."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        ids = itertools.count(1)
        self.clock = FakeClock()
        self.broker = Broker(
            "data",
            SimulatedFiles(),
            self.clock,
            lambda: UUID(int=next(ids)),
            broker_settings(BROKER_SETTINGS.parse({**SETTINGS, **(settings or {})})),
        )
        self.checks = 0
        self.release: asyncio.Event | None = None
        self.set_password("alice", "wonder")
        self.authentication = self.new()

    def new(self, principal_of: Any = None) -> Authentication:
        self.logins = Logins(self.broker, self.run)
        return Authentication(self.broker, "127.0.0.1", self.logins, principal_of)

    async def run(self, work: Work[Identity]) -> Identity:
        self.checks += 1
        if self.release is not None:
            await self.release.wait()
        await asyncio.sleep(0)
        return run_inline(work)

    def set_password(self, user: str, password: str) -> None:
        run_inline(self.broker.set_password(OWNED, user, password)).result()

    def asked(self, headers: dict[str, str] | None = None, **options: Any) -> Client:
        return asyncio.run(self.client(headers, **options))

    def client(
        self, headers: dict[str, str] | None = None, **options: Any
    ) -> Coroutine[Any, Any, Client]:
        return self.authentication.client_of(scope(**options)(headers))

    def status(self, headers: dict[str, str] | None = None, **options: Any) -> int:
        try:
            self.asked(headers, **options)
        except HttpError as error:
            return error.status
        return 200

    def log_in(self) -> dict[str, str]:
        given = scope(method="POST", path="/api/v1/session")()
        _, identifier = asyncio.run(self.authentication.log_in(given, "alice", "wonder"))
        return {"cookie": f"{cookie_name_of(given)}={identifier}"}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.broker.close()


# -- passwords ------------------------------------------------------------------------------------


def test_a_password_identifies_its_user(world: World) -> None:
    client = world.asked(basic("alice", "wonder"))
    assert (client.principal, client.method) == (ALICE, "password")


@pytest.mark.parametrize(
    "headers",
    [
        basic("alice", "Wonder"),
        basic("alice", ""),
        basic("bob", "wonder"),
        basic("", ""),
        basic("ANONYMOUS", "wonder"),
        basic("*", "wonder"),
        {"authorization": "Basic ???"},
        {"authorization": "Bearer x"},
        {"authorization": "Digest x"},
        {"authorization": ""},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["optional", "required"])
def test_wrong_credentials_are_rejected_in_every_mode(headers: dict[str, str], mode: str) -> None:
    world = World({"http.authentication": mode})
    assert world.status(headers) == 401


def test_a_right_password_is_checked_once_a_minute(world: World) -> None:
    headers = basic("alice", "wonder")
    for _ in range(10):
        world.asked(headers)
    assert world.checks == 1
    world.clock.advance(REMEMBERED_SECONDS * 1000 - 1)
    world.asked(headers)
    assert world.checks == 1
    world.clock.advance(1)
    world.asked(headers)
    assert world.checks == 2


def test_a_wrong_password_is_checked_every_time(world: World) -> None:
    for _ in range(3):
        assert world.status(basic("alice", "wrong")) == 401
    assert world.checks == 3


def test_a_remembered_password_is_forgotten_when_it_changes(world: World) -> None:
    old = basic("alice", "wonder")
    world.asked(old)
    world.set_password("alice", "other")
    assert world.status(old) == 401
    assert world.status(basic("alice", "other")) == 200


def test_a_remembered_password_is_forgotten_when_its_user_is_deleted(world: World) -> None:
    world.asked(basic("alice", "wonder"))
    world.broker.delete_user(OWNED, "alice").result()
    assert world.status(basic("alice", "wonder")) == 401


def test_a_password_that_changes_during_its_check_is_not_remembered(world: World) -> None:
    async def scenario() -> None:
        world.release = asyncio.Event()
        asking = asyncio.ensure_future(world.client(basic("alice", "wonder")))
        while not world.checks:
            await asyncio.sleep(0)
        world.set_password("alice", "other")
        world.release.set()
        with pytest.raises(HttpError):
            await asking
        world.release = None

    asyncio.run(scenario())
    assert world.status(basic("alice", "wonder")) == 401


def test_concurrent_requests_with_one_password_share_its_check(world: World) -> None:
    """More of them than logins may fail: without sharing, some would get a 429."""

    async def scenario() -> list[Client]:
        return await asyncio.gather(*(world.client(basic("alice", "wonder")) for _ in range(50)))

    assert {each.principal for each in asyncio.run(scenario())} == {ALICE}
    assert world.checks == 1


def test_the_number_of_remembered_passwords_is_limited(world: World) -> None:
    logins = world.logins
    world.asked(basic("alice", "wonder"))
    [[_, found]] = logins._remembered.items()
    for number in range(LOGINS_MAX_REMEMBERED):
        logins._remembered[b"%d" % number] = found
    world.set_password("bob", "b")  # empties the memory
    world.asked(basic("alice", "wonder"))
    assert len(logins._remembered) == 1
    for number in range(LOGINS_MAX_REMEMBERED - 1):
        logins._remembered[b"%d" % number] = found
    world.asked(basic("bob", "b"))
    assert len(logins._remembered) == LOGINS_MAX_REMEMBERED


def test_the_memory_of_passwords_does_not_contain_them(world: World) -> None:
    headers = basic("alice", "wonder")
    world.asked(headers)
    kept = repr(world.logins._remembered)
    assert "wonder" not in kept
    assert headers["authorization"].split()[1] not in kept


# -- failed logins ---------------------------------------------------------------------------------


def test_an_address_that_guesses_passwords_is_stopped_without_further_checks(world: World) -> None:
    found = [world.status(basic("alice", f"guess{number}")) for number in range(8)]
    assert found == [401] * 5 + [429] * 3
    assert world.checks == 5
    assert world.status(basic("alice", "wonder")) == 429, "also with the right password"
    assert world.status(basic("alice", "wonder"), address="10.0.0.2") == 200
    world.clock.advance(MINUTE_MS)
    assert world.status(basic("alice", "wonder")) == 200


def test_the_error_says_when_to_retry(world: World) -> None:
    for number in range(5):
        world.status(basic("alice", f"guess{number}"))
    with pytest.raises(HttpError) as caught:
        world.asked(basic("alice", "x"))
    assert dict(caught.value.headers)["retry-after"] == "12"


def test_sessions_and_remembered_passwords_work_while_others_guess(world: World) -> None:
    cookie = world.log_in()
    world.asked(basic("alice", "wonder"))
    for number in range(10):
        world.status(basic("alice", f"guess{number}"))
    assert world.status(cookie) == 200
    assert world.status(basic("alice", "wonder")) == 200


def test_the_number_of_waiting_logins_is_limited(world: World) -> None:
    async def scenario() -> list[Any]:
        world.release = asyncio.Event()
        asking = [
            asyncio.ensure_future(world.client(basic("alice", str(n)), address=f"10.0.1.{n}"))
            for n in range(LOGINS_MAX_WAITING + 5)
        ]
        while sum(each.done() for each in asking) < 5:
            await asyncio.sleep(0)
        assert world.checks == 1, "one at a time"
        world.release.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    found = [error.status for error in asyncio.run(scenario())]
    assert sorted(found) == [401] * LOGINS_MAX_WAITING + [429] * 5


def test_a_failed_login_is_answered_late_and_does_not_block_others() -> None:
    world = World({"connection.failed.authentication.delay.ms": "60000"})

    async def scenario() -> None:
        wrong = asyncio.ensure_future(world.client(basic("alice", "wrong")))
        while not world.checks:
            await asyncio.sleep(0)
        assert (await world.client(basic("alice", "wonder"))).principal == ALICE
        assert not wrong.done()
        wrong.cancel()

    asyncio.run(scenario())


# -- other ways to authenticate --------------------------------------------------------------------


def test_a_certificate_identifies_its_owner(world: World) -> None:
    def principal_of(certificate: bytes | None) -> Principal:
        assert certificate == b"DER"
        return Principal("User", "CN=carol")

    world.authentication = world.new(principal_of)
    certificate: dict[str, Any] = {CERTIFICATE: b"DER"}
    client = world.asked(**certificate)
    assert (str(client.principal), client.method) == ("User:CN=carol", "certificate")
    assert world.status(**{CERTIFICATE: None}) == 401


def test_a_certificate_that_no_rule_maps_is_rejected(world: World) -> None:
    def principal_of(certificate: bytes | None) -> Principal:
        raise AuthenticationError("no rule matches")

    world.authentication = world.new(principal_of)
    certificate: dict[str, Any] = {CERTIFICATE: b"DER"}
    assert world.status(**certificate) == 401


def test_session_then_header_then_certificate_decide(world: World) -> None:
    world.authentication = world.new(lambda _: Principal("User", "CN=carol"))
    world.set_password("bob", "b")
    cookie, header = world.log_in(), basic("bob", "b")
    certificate: dict[str, Any] = {CERTIFICATE: b"DER"}
    assert world.asked({**cookie, **header}, **certificate).principal == ALICE
    assert world.asked(header, **certificate).principal == Principal("User", "bob")
    assert world.asked(**certificate).principal == Principal("User", "CN=carol")
    world.set_password("alice", "changed")  # ends the session
    assert world.asked({**cookie, **header}, **certificate).principal == Principal("User", "bob")
    assert world.status(cookie, **certificate) == 401


def test_two_session_cookies_are_no_session(world: World) -> None:
    """A server on another port of the host can set one that shadows the right one."""
    cookie = world.log_in()["cookie"]
    name = cookie.partition("=")[0]
    assert world.status({"cookie": f"{cookie}; {name}=other"}) == 401
    assert world.status({"cookie": f"{name}=other; {cookie}"}) == 401


def test_a_session_of_another_port_is_not_used(world: World) -> None:
    cookie = world.log_in()
    assert world.status(cookie, server=("127.0.0.1", 9999)) == 401


def test_a_session_cookie_without_the_prefix_is_not_used_on_tls(world: World) -> None:
    cookie = world.log_in()
    assert world.status(cookie, scheme="https") == 401


def test_two_authorization_headers_are_rejected(world: World) -> None:
    given = scope()(basic("alice", "wonder"))
    given["headers"].append((b"authorization", b"Basic YTpi"))
    with pytest.raises(HttpError) as caught:
        asyncio.run(world.authentication.client_of(given))
    assert caught.value.status == 401


# -- modes -----------------------------------------------------------------------------------------

OPEN = [("GET", "/"), ("GET", "/console/app.js"), ("GET", "/healthz"), ("GET", "/readyz")]
CLOSED = [
    ("GET", "/api/v1/topics"),
    ("GET", "/api/v1/session"),
    ("DELETE", "/api/v1/session"),
    ("GET", "/api/v1/live"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/healthz/"),
    ("GET", "//"),
    ("GET", "/console"),
    ("GET", "/%2f"),
    ("GET", "/unknown"),
    ("POST", "/api/v1/session/"),
    ("POST", "/api/v1/topics"),
]


@pytest.mark.parametrize(("method", "path"), [*OPEN, ("POST", "/api/v1/session")])
def test_some_paths_need_no_credentials(world: World, method: str, path: str) -> None:
    assert world.status(method=method, path=path) == 200


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_all_other_paths_need_credentials(world: World, method: str, path: str) -> None:
    assert world.status(method=method, path=path) == 401


def test_without_authentication_credentials_are_ignored() -> None:
    world = World({"http.authentication": "none"})
    for headers in ({}, basic("alice", "wrong"), basic("alice", "wonder"), {"cookie": "x=y"}):
        assert world.asked(headers).principal == ANONYMOUS
    assert world.checks == 0


def test_optional_authentication_accepts_anonymous_clients() -> None:
    world = World({"http.authentication": "optional"})
    assert world.asked().principal == ANONYMOUS
    assert world.asked(basic("alice", "wonder")).principal == ALICE
    cookie = world.log_in()
    world.set_password("alice", "changed")
    with pytest.raises(HttpError) as caught:
        world.asked(cookie)
    assert "Max-Age=0" in dict(caught.value.headers)["set-cookie"]


@pytest.mark.parametrize(
    ("http", "metrics", "status"),
    [
        ("required", "", 401),
        ("optional", "", 200),
        ("none", "", 200),
        ("required", "none", 200),
        ("optional", "required", 401),
        ("none", "required", 401),
    ],
)
def test_metrics_have_a_setting_of_their_own(http: str, metrics: str, status: int) -> None:
    world = World({"http.authentication": http, "metrics.authentication": metrics})
    assert world.status(path="/metrics") == status
    assert world.status(basic("alice", "wonder"), path="/metrics") == 200


# -- streams ---------------------------------------------------------------------------------------


def test_a_client_is_valid_until_its_credentials_change(world: World) -> None:
    is_valid = world.authentication.is_valid
    by_password = world.asked(basic("alice", "wonder"))
    by_session = world.asked(world.log_in())
    token = Client(ALICE, "token", world.clock.now_ms() + 1000)
    assert is_valid(by_password) and is_valid(by_session) and is_valid(token)
    world.set_password("bob", "b")
    assert is_valid(by_password) and is_valid(by_session), "the credentials of another user"
    world.clock.advance(1000)
    assert not is_valid(token)
    world.set_password("alice", "changed")
    assert not is_valid(by_password)
    assert not is_valid(by_session)
    assert is_valid(Client())


def test_waiting_for_the_end_of_a_session_returns_when_it_ends(world: World) -> None:
    client = world.asked(world.log_in())

    async def scenario() -> None:
        ended = asyncio.ensure_future(world.authentication.ended(client))
        await asyncio.sleep(0)
        assert not ended.done()
        world.set_password("alice", "changed")
        await ended

    asyncio.run(scenario())
