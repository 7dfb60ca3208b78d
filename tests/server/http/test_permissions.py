"""What each HTTP route requires: the same permissions as the Kafka APIs with the same effect.

Each test runs for a client without credentials, which is identified by its address, for a user who
sends a password with every request, and for a user with a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from tests.support.acls import allow, allow_user, everything
from tests.support.http_client import http_address, ok
from tests.support.samples import one_in
from tests.support.users import set_password

from strandlog.broker.access.permission import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    WRITE,
    Permission,
)
from strandlog.server.http.api.routes import ROUTES
from strandlog.testing.server import ServerThread

HOST, ADMIN_HOST = "127.0.0.2", "127.0.0.1"
NAMES = {TOPIC: "orders", GROUP: "billing", CLUSTER: CLUSTER_NAME}
REPORT = {
    "run_id": "r",
    "query_id": "q",
    "batch_id": 0,
    "timestamp_ms": 0,
    "input_rows": 0,
    "input_rows_per_second": 0,
    "processed_rows_per_second": 0,
    "duration_ms": 0,
    "state": "running",
}


class Row(NamedTuple):
    """A request, and the permissions that it requires."""

    method: str
    path: str
    needs: list[Permission]
    json: Any = None
    route: str = ""  # the path in the route table, if it differs


ROWS = [
    Row("POST", "/topics", [CREATE.on(TOPIC), DESCRIBE.on(TOPIC)], {"name": "orders"}),
    Row("GET", "/topics/orders", [DESCRIBE.on(TOPIC)], route="/topics/{topic}"),
    Row("GET", "/topics/orders/history", [DESCRIBE.on(TOPIC)], route="/topics/{topic}/history"),
    Row(
        "PATCH",
        "/topics/orders",
        [ALTER_CONFIGS.on(TOPIC), DESCRIBE.on(TOPIC)],
        {"config": {"retention.ms": "1000000"}},
        "/topics/{topic}",
    ),
    Row(
        "POST",
        "/topics/orders/partitions",
        [ALTER.on(TOPIC)],
        {"partitions": 2},
        "/topics/{topic}/partitions",
    ),
    Row("GET", "/topics/orders/records", [READ.on(TOPIC)], route="/topics/{topic}/records"),
    Row(
        "POST",
        "/topics/orders/records",
        [WRITE.on(TOPIC)],
        {"records": [{"value": "v"}]},
        "/topics/{topic}/records",
    ),
    Row("GET", "/groups/billing", [DESCRIBE.on(GROUP)], route="/groups/{group}"),
    Row(
        "POST",
        "/groups/billing/reset",
        [READ.on(GROUP), READ.on(TOPIC)],
        {"to": "earliest", "topic": "orders", "is_dry_run": False},
        "/groups/{group}/reset",
    ),
    Row("GET", "/cluster", [DESCRIBE.on(CLUSTER)]),
    Row("GET", "/broker", [DESCRIBE.on(CLUSTER)]),
    Row("GET", "/history", [DESCRIBE.on(CLUSTER)]),
    Row("GET", "/broker/settings", [DESCRIBE_CONFIGS.on(CLUSTER)]),
    Row("GET", "/pipelines", [DESCRIBE.on(CLUSTER)]),
    Row("GET", "/pipelines/billing", [DESCRIBE.on(GROUP)], route="/pipelines/{name}"),
    Row(
        "POST",
        "/pipelines/billing/progress",
        [READ.on(GROUP)],
        REPORT,
        "/pipelines/{name}/progress",
    ),
    Row("DELETE", "/groups/billing", [DELETE.on(GROUP)], route="/groups/{group}"),
    Row("DELETE", "/topics/orders", [DELETE.on(TOPIC)], route="/topics/{topic}"),
]
FILTERED = {("GET", "/topics"), ("GET", "/groups")}  # they return what the client may see
# About the client itself; test_authentication.py tests them.
OWN = {("GET", "/session"), ("POST", "/session"), ("DELETE", "/session")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"authorizer.class.name": "strandlog"}
    with ServerThread(tmp_path_factory.mktemp("data"), settings, http=True) as running:
        allow(running, ADMIN_HOST, everything())
        yield running


def client_at(server: ServerThread, host: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=host)
    address = http_address(server)
    headers = {"origin": address}
    return httpx.Client(base_url=address, timeout=30, transport=transport, headers=headers)


class Caller:
    """A client, and how to change its permissions."""

    def __init__(self, server: ServerThread, http: httpx.Client, user: str | None) -> None:
        self._server = server
        self._user = user
        self.http = http
        self.allow([])

    def allow(self, permissions: list[tuple[Permission, str]]) -> None:
        if self._user is None:
            allow(self._server, HOST, permissions)
        else:
            allow_user(self._server, self._user, permissions)


@pytest.fixture(params=["anonymous", "password", "session"])
def caller(server: ServerThread, request: pytest.FixtureRequest) -> Iterator[Caller]:
    with client_at(server, HOST) as http:
        if request.param == "anonymous":
            yield Caller(server, http, None)
            return
        set_password(server, "alice", "wonder")
        if request.param == "password":
            http.auth = ("alice", "wonder")
        else:
            ok(http.post("/api/v1/session", json={"user": "alice", "password": "wonder"}))
        yield Caller(server, http, "alice")


@pytest.fixture
def admin(server: ServerThread) -> Iterator[httpx.Client]:
    with client_at(server, ADMIN_HOST) as admin:
        yield admin


def ask(client: httpx.Client, row: Row) -> httpx.Response:
    return client.request(row.method, "/api/v1" + row.path, json=row.json)


@pytest.mark.parametrize("row", one_in(3, ROWS), ids=lambda row: f"{row.method} {row.path}")
def test_a_client_needs_the_permission_of_the_route(
    caller: Caller, admin: httpx.Client, row: Row
) -> None:
    if row != ROWS[0] and admin.get("/api/v1/topics/orders").status_code == 404:
        ok(admin.post("/api/v1/topics", json={"name": "orders"}), 201)
    denied = ask(caller.http, row)
    assert denied.status_code == 403, denied.text
    assert "lacks the permission" in denied.json()["detail"]
    for missing in row.needs:
        rest = [(each, NAMES[each.resource]) for each in row.needs if each is not missing]
        if missing.operation is DESCRIBE and WRITE.on(TOPIC) in row.needs:
            continue  # implied
        caller.allow(rest)
        assert ask(caller.http, row).status_code == 403
    caller.allow([(each, NAMES[each.resource]) for each in row.needs])
    assert ask(caller.http, row).status_code != 403


def test_every_route_has_a_row() -> None:
    tested = {(row.method, row.route or row.path) for row in ROWS}
    assert tested | FILTERED | OWN == {(route.method, route.path) for route in ROUTES}


def test_lists_contain_only_what_the_client_may_see(caller: Caller, admin: httpx.Client) -> None:
    for name in ("seen", "unseen"):
        admin.post("/api/v1/topics", json={"name": name})
        reset = {"to": "earliest", "topic": name, "is_dry_run": False}
        ok(admin.post(f"/api/v1/groups/{name}/reset", json=reset))
    assert ok(caller.http.get("/api/v1/topics"))["topics"] == []
    caller.allow([(READ.on(TOPIC), "seen"), (READ.on(GROUP), "seen")])
    assert [each["name"] for each in ok(caller.http.get("/api/v1/topics"))["topics"]] == ["seen"]
    assert [each["group"] for each in ok(caller.http.get("/api/v1/groups"))["groups"]] == ["seen"]


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/live?rates=true", "/api/v1/live?lag=true"])
def test_figures_of_all_topics_require_a_permission_on_the_cluster(
    caller: Caller, path: str
) -> None:
    for permissions, status in (([], 403), ([(DESCRIBE.on(CLUSTER), CLUSTER_NAME)], 200)):
        caller.allow(permissions)
        with caller.http.stream("GET", path) as answer:
            assert answer.status_code == status


def test_a_tail_requires_permission_to_read_the_topic(caller: Caller, admin: httpx.Client) -> None:
    admin.post("/api/v1/topics", json={"name": "followed"})
    path = "/api/v1/live?rates=false&lag=false&topic=followed"
    for needs, status in ((DESCRIBE, 403), (READ, 200)):
        caller.allow([(needs.on(TOPIC), "followed")])
        with caller.http.stream("GET", path) as answer:
            assert answer.status_code == status


def test_the_settings_of_a_topic_require_permission_to_describe_them(
    caller: Caller, admin: httpx.Client
) -> None:
    admin.post("/api/v1/topics", json={"name": "set"})
    caller.allow([(READ.on(TOPIC), "set")])
    assert ok(caller.http.get("/api/v1/topics/set"))["config"] == []
    caller.allow([(READ.on(TOPIC), "set"), (DESCRIBE_CONFIGS.on(TOPIC), "set")])
    assert ok(caller.http.get("/api/v1/topics/set"))["config"]


def test_groups_are_listed_for_a_client_that_may_describe_the_cluster(
    caller: Caller, admin: httpx.Client
) -> None:
    admin.post("/api/v1/topics", json={"name": "grouped"})
    reset = {"to": "earliest", "topic": "grouped", "is_dry_run": False}
    ok(admin.post("/api/v1/groups/any/reset", json=reset))
    caller.allow([(DESCRIBE.on(CLUSTER), CLUSTER_NAME)])
    assert ok(caller.http.get("/api/v1/groups"))["groups"] == []  # it may not see their offsets


def test_a_hidden_topic_and_a_missing_topic_get_the_same_response(
    caller: Caller, admin: httpx.Client
) -> None:
    admin.post("/api/v1/topics", json={"name": "hidden"})
    paths = ["/api/v1/topics/NAME", "/api/v1/topics/NAME/records"]

    def texts(name: str) -> list[str]:
        found = [caller.http.get(path.replace("NAME", name)) for path in paths]
        return [each.text.replace(name, "NAME") for each in found]

    assert texts("hidden") == texts("absent")
