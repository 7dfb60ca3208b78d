"""Logins over HTTP: passwords, sessions and their cookies, streams, brute force, other sites."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.acls import allow_user
from tests.support.http_client import PATIENCE_S, http_address, http_broker, ok, problem
from tests.support.samples import one_in
from tests.support.tokens import Provider, unsigned
from tests.support.users import delete_user, set_password
from tests.support.waiting import eventually

from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DESCRIBE,
    READ,
    TOPIC,
)
from strandlog.testing.server import ServerThread

SESSION = "/api/v1/session"
TOPICS = "/api/v1/topics"
PASSWORD = "wonder land"
REQUIRED = {"http.authentication": "required", "connection.failed.authentication.delay.ms": "1"}
COOKIE = re.compile(r"strandlog-session-(\d+)=([\w-]{43}); Path=/; HttpOnly; SameSite=Strict")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {**REQUIRED, "http.max.failed.logins": "1000", "http.max.live.streams": "5"}
    with http_broker(tmp_path_factory.mktemp("data"), settings) as running:
        yield running


@pytest.fixture
def client(server: ServerThread) -> Iterator[httpx.Client]:
    """A client that keeps cookies, as a browser does, and says that it is the own page."""
    set_password(server, "alice", PASSWORD)
    with browser(server) as opened:
        yield opened


def browser(server: ServerThread) -> httpx.Client:
    address = http_address(server)
    return httpx.Client(base_url=address, timeout=PATIENCE_S, headers={"origin": address})


def sign_in(client: httpx.Client, user: str = "alice", password: str = PASSWORD) -> httpx.Response:
    answer = client.post(SESSION, json={"user": user, "password": password})
    ok(answer)
    return answer


# -- 401 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", TOPICS),
        ("POST", TOPICS),
        ("GET", f"{TOPICS}/x/records"),
        ("GET", "/api/v1/live"),
        ("GET", "/api/v1/openapi.json"),
        ("GET", SESSION),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
    ],
)
def test_a_request_without_credentials_is_asked_for_them(
    server: ServerThread, method: str, path: str
) -> None:
    with httpx.Client(base_url=http_address(server), timeout=PATIENCE_S) as client:
        answer = client.request(method, path)
    assert "sign in" in problem(answer, 401)
    assert answer.headers.get_list("www-authenticate") == [
        'Basic realm="strandlog", charset="UTF-8"',
        'Bearer realm="strandlog"',
    ]


@pytest.mark.parametrize("path", ["/", "/console/login.js", "/console/app.js", "/healthz"])
def test_the_login_page_and_health_need_no_credentials(server: ServerThread, path: str) -> None:
    assert httpx.get(http_address(server) + path).status_code == 200


def test_the_consoles_requests_never_open_the_browsers_password_dialog(
    client: httpx.Client,
) -> None:
    for headers in ({"x-requested-with": "strandlog"}, {"accept": "text/event-stream"}):
        answer = client.get("/api/v1/live", headers=headers)
        assert answer.headers["www-authenticate"] == 'Bearer realm="strandlog"'


def test_a_password_authenticates_each_request(client: httpx.Client, server: ServerThread) -> None:
    right, wrong = ("alice", PASSWORD), ("alice", "wrong")
    status = ok(client.get(SESSION, auth=right))
    assert (status["principal"], status["user"]) == ("User:alice", "alice")
    assert (status["method"], status["authentication"]) == ("password", "required")
    problem(client.get(SESSION, auth=wrong), 401)
    assert not client.cookies
    set_password(server, "alice", "changed")
    problem(client.get(SESSION, auth=right), 401)
    ok(client.get(SESSION, auth=("alice", "changed")))


# -- sessions --------------------------------------------------------------------------------------


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
    client: httpx.Client,
) -> None:
    answer = sign_in(client)
    [header] = answer.headers.get_list("set-cookie")
    found = COOKIE.fullmatch(header)
    assert found is not None, header
    assert int(found[1]) == client.base_url.port
    assert answer.json()["user"] == "alice"
    assert found[2] not in answer.text
    assert ok(client.get(SESSION))["method"] == "session"


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("bob", PASSWORD), ("", ""), ("ANONYMOUS", "x")]
)
def test_a_failed_login_sets_no_cookie(client: httpx.Client, user: str, password: str) -> None:
    answer = client.post(SESSION, json={"user": user, "password": password})
    told = problem(answer, 401)
    assert "set-cookie" not in answer.headers
    assert told == problem(client.post(SESSION, json={"user": "bob", "password": "x"}), 401)


def test_each_login_gets_a_new_session_and_ends_the_previous_one(
    client: httpx.Client, server: ServerThread
) -> None:
    sign_in(client)
    [first] = client.cookies.jar
    sign_in(client)
    [second] = client.cookies.jar
    assert first.value and second.value and first.value != second.value
    with browser(server) as other:
        other.cookies.set(first.name, first.value)
        problem(other.get(TOPICS), 401)


def test_a_session_id_that_the_client_chose_is_never_used(
    client: httpx.Client, server: ServerThread
) -> None:
    """Session fixation: an attacker plants a cookie before the victim signs in."""
    name, planted = f"strandlog-session-{client.base_url.port}", "A" * 43
    client.cookies.set(name, planted, domain="127.0.0.1", path="/")
    sign_in(client)
    assert planted not in {each.value for each in client.cookies.jar if each.name == name}
    ok(client.get(TOPICS))
    with browser(server) as attacker:
        attacker.cookies.set(name, planted)
        problem(attacker.get(TOPICS), 401)


def test_a_logout_ends_the_session_and_deletes_the_cookie(client: httpx.Client) -> None:
    sign_in(client)
    [kept] = client.cookies.jar
    answer = client.delete(SESSION)
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not client.cookies
    assert kept.value is not None
    client.cookies.set(kept.name, kept.value)
    problem(client.get(TOPICS), 401)


def test_an_ended_session_is_reported_once_and_its_cookie_deleted(
    client: httpx.Client, server: ServerThread
) -> None:
    sign_in(client)
    set_password(server, "alice", "changed")
    answer = client.get(TOPICS)
    assert "session has ended" in problem(answer, 401)
    assert not client.cookies


def test_deleting_a_user_ends_its_sessions_but_not_those_of_others(
    client: httpx.Client, server: ServerThread
) -> None:
    set_password(server, "carol", "c")
    sign_in(client)
    with browser(server) as other:
        sign_in(other, "carol", "c")
        delete_user(server, "carol")
        problem(other.get(TOPICS), 401)
    ok(client.get(TOPICS))


@pytest.mark.slow
def test_a_session_ends_after_its_lifetime(tmp_path: Path) -> None:
    settings = {**REQUIRED, "http.session.max.lifetime.ms": "1000"}
    with http_broker(tmp_path, settings) as server, browser(server) as client:
        set_password(server, "alice", PASSWORD)
        status = sign_in(client).json()
        assert status["expires_ms"] is not None
        eventually(lambda: client.get(TOPICS).status_code == 401, "the session ends")


def test_the_number_of_sessions_is_limited(tmp_path: Path) -> None:
    settings = {**REQUIRED, "http.max.sessions": "2", "http.user.max.sessions": "1"}
    with http_broker(tmp_path, settings) as server:
        clients = [browser(server) for _ in range(3)]
        for number in range(len(clients)):
            set_password(server, f"user{number}", "p")
        sign_in(clients[0], "user0", "p")
        sign_in(clients[1], "user1", "p")
        login = {"user": "user2", "password": "p"}
        assert "http.max.sessions" in problem(clients[2].post(SESSION, json=login), 503)
        sign_in(clients[2], "user1", "p")  # ends the other session of user1
        problem(clients[1].get(TOPICS), 401)
        ok(clients[0].get(TOPICS))
        for each in clients:
            each.close()


def test_sessions_end_with_the_server(tmp_path: Path) -> None:
    server = ServerThread(tmp_path, REQUIRED, http=True)
    with server:
        set_password(server, "alice", PASSWORD)
        with browser(server) as client:
            sign_in(client)
            cookies = {each.name: each.value or "" for each in client.cookies.jar}
    with server, browser(server) as client:
        port = client.base_url.port
        for value in cookies.values():
            client.cookies.set(f"strandlog-session-{port}", value)
        problem(client.get(TOPICS), 401)
        sign_in(client)


def test_a_login_needs_json(client: httpx.Client) -> None:
    data = {"user": "alice", "password": PASSWORD}
    problem(client.post(SESSION, data=data), 415)
    problem(client.post(SESSION, json={**data, "more": 1}), 422)
    problem(client.post(SESSION, json={"user": "alice"}), 422)
    problem(client.post(SESSION, json={**data, "password": "x" * 5000}), 422)
    assert not client.cookies


def test_without_authentication_there_is_no_login(tmp_path: Path) -> None:
    with http_broker(tmp_path, {"http.authentication": "none"}) as server:
        set_password(server, "alice", PASSWORD)
        with browser(server) as client:
            login = {"user": "alice", "password": PASSWORD}
            assert "none" in problem(client.post(SESSION, json=login), 409)
            status = ok(client.get(SESSION, auth=("alice", "wrong")))
    assert (status["user"], status["authentication"]) == (None, "none")


def test_on_loopback_authentication_is_optional_by_default(tmp_path: Path) -> None:
    settings = {"connection.failed.authentication.delay.ms": "1"}
    with http_broker(tmp_path, settings) as server, browser(server) as client:
        set_password(server, "alice", PASSWORD)
        status = ok(client.get(SESSION))
        assert (status["user"], status["authentication"]) == (None, "optional")
        ok(client.get(TOPICS))
        problem(client.get(TOPICS, auth=("alice", "wrong")), 401)
        sign_in(client)
        assert ok(client.get(SESSION))["user"] == "alice"
        ok(client.delete(SESSION), 204)
        assert ok(client.get(SESSION))["user"] is None


@pytest.mark.parametrize("mode", ["required", "none"])
def test_passwords_over_an_unencrypted_network_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    settings = {
        "http.listener": "http://0.0.0.0:0",
        "http.authentication": mode,
        "allow.insecure.listeners": "true",
    }
    with http_broker(tmp_path, settings):
        pass
    warned = [each for each in caplog.messages if "the network can read passwords" in each]
    assert len(warned) == (mode == "required")


# -- tokens ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def provider() -> Provider:
    made = Provider()
    made.add_key("k1")
    return made


@pytest.fixture(scope="module")
def token_server(
    tmp_path_factory: pytest.TempPathFactory, provider: Provider
) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "jwks.json").write_bytes(provider.jwks())
    settings = {
        **REQUIRED,
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks.json").as_uri(),
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    with http_broker(folder / "data", settings) as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_a_token_authenticates_its_subject(token_server: ServerThread, provider: Provider) -> None:
    now_s = time.time()
    with browser(token_server) as client:
        status = ok(client.get(SESSION, headers=bearer(provider.token(now_s=now_s))))
        assert (status["principal"], status["method"]) == ("User:alice", "token")
        assert status["expires_ms"] == (int(now_s) + 600) * 1000
        for wrong in (
            provider.token(now_s=now_s - 1000),  # expired
            provider.token(now_s=now_s, claims={"exp": None}),
            unsigned({"sub": "alice", "iat": int(now_s), "exp": int(now_s) + 600}),
            provider.token(now_s=now_s)[:-4] + "AAAA",
            "x",
        ):
            problem(client.get(SESSION, headers=bearer(wrong)), 401)


@pytest.mark.slow
def test_a_stream_ends_when_its_token_expires(
    token_server: ServerThread, provider: Provider
) -> None:
    now_s = time.time()
    token = provider.token(now_s=now_s, claims={"exp": int(now_s) + 3})
    with browser(token_server) as client:
        path = "/api/v1/live?interval_ms=60000"
        with client.stream("GET", path, headers=bearer(token)) as answer:
            assert answer.status_code == 200
            lines = list(answer.iter_lines())
        assert "event: problem" in lines
        problem(client.get(SESSION, headers=bearer(token)), 401)


# -- brute force -----------------------------------------------------------------------------------


def test_password_guessing_is_stopped_for_its_address_only(tmp_path: Path) -> None:
    settings = {**REQUIRED, "http.max.failed.logins": "3"}
    with http_broker(tmp_path, settings) as server:
        set_password(server, "alice", PASSWORD)
        with browser(server) as client:
            sign_in(client)
            wrong = {"user": "alice", "password": "x"}
            for _ in range(3):
                problem(client.post(SESSION, json=wrong), 401)
            answer = client.post(SESSION, json=wrong)
            assert "http.max.failed.logins" in problem(answer, 429)
            assert int(answer.headers["retry-after"]) >= 1
            assert httpx.get(http_address(server) + TOPICS, auth=("x", "y")).status_code == 429
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(base_url=http_address(server), transport=transport) as other:
            ok(other.get(TOPICS, auth=("alice", PASSWORD)))


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_ends_when_the_session_does(client: httpx.Client, server: ServerThread) -> None:
    sign_in(client)
    with client.stream("GET", "/api/v1/live?interval_ms=60000") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry")
        with browser(server) as other:
            other.cookies = client.cookies
            ok(other.delete(SESSION), 204)
        rest = list(lines)
    assert "event: problem" in rest
    assert any("no longer valid" in line for line in rest)


def test_a_stream_ends_when_the_password_changes(
    client: httpx.Client, server: ServerThread
) -> None:
    path = "/api/v1/live?interval_ms=60000"
    with client.stream("GET", path, auth=("alice", PASSWORD)) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry")
        set_password(server, "alice", "changed")
        assert "event: problem" in list(lines)


@pytest.mark.parametrize("query", ["rates=true", "topic=followed&rates=false"])
def test_a_stream_ends_when_the_permission_is_revoked(tmp_path: Path, query: str) -> None:
    settings = {**REQUIRED, "authorizer.class.name": "strandlog"}
    with http_broker(tmp_path, settings) as server, browser(server) as client:
        set_password(server, "alice", PASSWORD)
        needed = [(DESCRIBE.on(CLUSTER), CLUSTER_NAME), (READ.on(TOPIC), "followed")]
        allow_user(server, "alice", [*needed, (CREATE.on(TOPIC), "followed")])
        sign_in(client)
        ok(client.post(TOPICS, json={"name": "followed"}), 201)
        path = f"/api/v1/live?{query}&lag=false&interval_ms=100"
        with client.stream("GET", path) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry")
            allow_user(server, "alice", [])
            rest = list(lines)
        assert "event: problem" in rest
        assert any("lacks the permission" in line for line in rest)


@pytest.mark.slow
def test_an_open_stream_keeps_its_session_in_use(tmp_path: Path) -> None:
    settings = {**REQUIRED, "http.session.idle.timeout.ms": "2000"}
    with http_broker(tmp_path, settings) as server, browser(server) as client:
        set_password(server, "alice", PASSWORD)
        sign_in(client)
        with client.stream("GET", "/api/v1/live?interval_ms=500&lag=false") as answer:
            seen = 0
            for line in answer.iter_lines():
                assert line != "event: problem"
                seen += line.startswith("event: rates")
                if seen == 8:
                    break
        ok(client.get(TOPICS))


# -- requests of other sites -----------------------------------------------------------------------

CHANGES = [
    ("POST", TOPICS, {"name": "made-by-another-site"}),
    ("DELETE", f"{TOPICS}/kept", None),
    ("PATCH", f"{TOPICS}/kept", {"config": {"retention.ms": "1"}}),
    ("POST", f"{TOPICS}/kept/records", {"records": [{"value": "x"}]}),
    ("DELETE", SESSION, None),
]
FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},  # another port of this host
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {},
]


@pytest.mark.parametrize("headers", one_in(3, FOREIGN), ids=str)
@pytest.mark.parametrize(("method", "path", "body"), CHANGES, ids=str)
def test_another_site_cannot_use_the_session(
    client: httpx.Client, method: str, path: str, body: object, headers: dict[str, str]
) -> None:
    sign_in(client)
    if client.get(f"{TOPICS}/kept").status_code == 404:
        ok(client.post(TOPICS, json={"name": "kept"}), 201)
    before = ok(client.get(f"{TOPICS}/kept"))
    del client.headers["origin"]
    answer = client.request(method, path, json=body, headers=headers)
    problem(answer, 403)
    after = ok(client.get(f"{TOPICS}/kept"))
    assert after["partitions"] == before["partitions"]
    assert after["config"] == before["config"]
    assert [each["name"] for each in ok(client.get(TOPICS))["topics"]] == ["kept"]


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://x"}])
def test_another_site_can_neither_sign_the_user_in_nor_follow_a_stream(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    login = {"user": "alice", "password": PASSWORD}
    answer = client.post(SESSION, json=login, headers=headers)
    problem(answer, 403)
    assert "set-cookie" not in answer.headers
    sign_in(client)
    problem(client.get("/api/v1/live", headers=headers), 403)
    problem(client.get("/api/v1/live", headers=headers, auth=("alice", PASSWORD)), 403)


def test_a_remembered_password_of_the_browser_is_protected_like_a_cookie(
    client: httpx.Client,
) -> None:
    del client.headers["origin"]
    headers = {"sec-fetch-site": "cross-site"}
    problem(client.delete(f"{TOPICS}/x", headers=headers, auth=("alice", PASSWORD)), 403)
    problem(client.delete(f"{TOPICS}/x", auth=("alice", PASSWORD)), 404)  # a program


def test_get_changes_nothing(client: httpx.Client) -> None:
    """A link or an image of another site can only cause GET."""
    sign_in(client)
    for method, path, _ in CHANGES:
        if method != "GET":
            assert client.get(path).status_code in {200, 404}
    ok(client.get(TOPICS))


def test_a_name_that_resolves_to_this_server_gets_no_answer(client: httpx.Client) -> None:
    """DNS rebinding: a page of evil.example, whose name now resolves to 127.0.0.1."""
    sign_in(client)
    rebound = {"host": f"evil.example:{client.base_url.port}"}
    for path in (TOPICS, SESSION, "/", "/metrics", "/api/v1/live"):
        assert client.get(path, headers=rebound).status_code == 421
    login = {"user": "alice", "password": PASSWORD}
    assert client.post(SESSION, json=login, headers=rebound).status_code == 421


def test_no_response_allows_other_sites_to_read_it(client: httpx.Client) -> None:
    sign_in(client)
    for headers in ({}, {"access-control-request-method": "DELETE"}):
        for method in ("GET", "OPTIONS"):
            answer = client.request(method, TOPICS, headers=headers)
            assert not any(name.startswith("access-control") for name in answer.headers)


# -- permissions -----------------------------------------------------------------------------------


def test_the_session_tells_what_the_user_may_do(tmp_path: Path) -> None:
    settings = {**REQUIRED, "authorizer.class.name": "strandlog", "super.users": "User:root"}
    with http_broker(tmp_path, settings) as server, browser(server) as client:
        set_password(server, "root", "r")
        set_password(server, "alice", PASSWORD)
        status = ok(client.get(SESSION, auth=("alice", PASSWORD)))
        assert status["has_users"] is True
        assert status["cluster_operations"] == []
        assert status["can_create_topics"] is False
        status = ok(client.get(SESSION, auth=("root", "r")))
        assert {"DESCRIBE", "CREATE", "ALTER_CONFIGS"} <= set(status["cluster_operations"])
        assert status["can_create_topics"] is True
