"""What each route of the schema registry requires: permissions on the topic of the subject."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from tests.support.acls import allow, everything
from tests.support.http_client import http_address, ok

from strandlog.broker.access.permission import (
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_NAME,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    TOPIC,
    WRITE,
    Permission,
)
from strandlog.server.http.schemas.routes import CHECK, ID, SCHEMA_ROUTES, SUBJECT, VERSION
from strandlog.testing.server import ServerThread

HOST, ADMIN_HOST = "127.0.0.2", "127.0.0.1"
INT = {"schema": '"int"'}
FULL, MODE = {"compatibility": "BACKWARD"}, {"mode": "READWRITE"}


class Row(NamedTuple):
    """A route, the permission that it requires, and its body."""

    method: str
    path: str
    needs: Permission
    json: Any = None


ROWS = [
    Row("POST", SUBJECT + "/versions", WRITE.on(TOPIC), INT),
    Row("POST", SUBJECT, DESCRIBE.on(TOPIC), INT),
    Row("GET", SUBJECT + "/versions", DESCRIBE.on(TOPIC)),
    Row("GET", VERSION, DESCRIBE.on(TOPIC)),
    Row("GET", VERSION + "/schema", DESCRIBE.on(TOPIC)),
    Row("GET", VERSION + "/referencedby", DESCRIBE.on(TOPIC)),
    Row("POST", CHECK, DESCRIBE.on(TOPIC), INT),
    Row("POST", CHECK + "/{version}", DESCRIBE.on(TOPIC), INT),
    Row("GET", "/config", DESCRIBE_CONFIGS.on(CLUSTER)),
    Row("PUT", "/config", ALTER_CONFIGS.on(CLUSTER), FULL),
    Row("DELETE", "/config", ALTER_CONFIGS.on(CLUSTER)),
    Row("PUT", "/config/{subject}", ALTER_CONFIGS.on(TOPIC), FULL),
    Row("GET", "/config/{subject}", DESCRIBE_CONFIGS.on(TOPIC)),
    Row("DELETE", "/config/{subject}", ALTER_CONFIGS.on(TOPIC)),
    Row("GET", "/mode", DESCRIBE_CONFIGS.on(CLUSTER)),
    Row("PUT", "/mode", ALTER_CONFIGS.on(CLUSTER), MODE),
    Row("DELETE", "/mode", ALTER_CONFIGS.on(CLUSTER)),
    Row("PUT", "/mode/{subject}", ALTER_CONFIGS.on(TOPIC), MODE),
    Row("GET", "/mode/{subject}", DESCRIBE_CONFIGS.on(TOPIC)),
    Row("DELETE", "/mode/{subject}", ALTER_CONFIGS.on(TOPIC)),
    Row("DELETE", VERSION, DELETE.on(TOPIC)),
    Row("DELETE", SUBJECT, DELETE.on(TOPIC)),
]
GUID = "/schemas/guids/{guid}"
FILTERED = {"/subjects", "/schemas", ID, ID + "/schema", ID + "/subjects", ID + "/versions"}
FILTERED |= {GUID, GUID + "/ids"}  # they return what the client may see
OPEN = {"/schemas/types", "/contexts", "/v1/metadata/id", "/v1/metadata/version"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"authorizer.class.name": "strandlog"}
    with ServerThread(tmp_path_factory.mktemp("data"), settings, http=True) as running:
        allow(running, ADMIN_HOST, everything())
        yield running


def client_at(server: ServerThread, host: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=host)
    return httpx.Client(base_url=http_address(server), timeout=30, transport=transport)


@pytest.fixture
def client(server: ServerThread) -> Iterator[httpx.Client]:
    allow(server, HOST, [])
    with client_at(server, HOST) as client:
        yield client


@pytest.fixture
def admin(server: ServerThread) -> Iterator[httpx.Client]:
    with client_at(server, ADMIN_HOST) as admin:
        yield admin


def ask(client: httpx.Client, row: Row, subject: str = "orders-value") -> httpx.Response:
    path = row.path.format(subject=subject, version="1")
    return client.request(row.method, path, json=row.json)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_a_client_needs_the_permission_of_the_route(
    server: ServerThread, client: httpx.Client, admin: httpx.Client, row: Row
) -> None:
    ok(admin.post("/subjects/orders-value/versions", json=INT))
    denied = ask(client, row)
    assert denied.status_code == 403, denied.text
    assert denied.json()["error_code"] == 40301
    assert "lacks the permission" in denied.json()["message"]
    missing = ask(client, row, "absent-value")
    assert missing.text.replace("absent", "orders") == denied.text, "no name is revealed"
    name = CLUSTER_NAME if row.needs.resource is CLUSTER else "orders"
    allow(server, HOST, [(row.needs, name)])
    assert ask(client, row).status_code != 403


def test_every_route_has_a_row() -> None:
    tested = {(row.method, row.path) for row in ROWS}
    others = {("GET", path) for path in FILTERED | OPEN}
    assert tested | others == {(route.method, route.path) for route in SCHEMA_ROUTES}


def test_a_client_sees_the_schemas_of_its_topics(
    server: ServerThread, client: httpx.Client, admin: httpx.Client
) -> None:
    made = {}
    for name in ("seen", "unseen"):
        fields = [{"name": name, "type": "int"}]
        text = json.dumps({"type": "record", "name": "R", "fields": fields})
        made[name] = ok(admin.post(f"/subjects/{name}-value/versions", json={"schema": text}))
        ok(admin.post(f"/subjects/{name}-key/versions", json=INT))
    assert ok(client.get("/subjects")) == ok(client.get("/schemas")) == []
    allow(server, HOST, [(READ.on(TOPIC), "seen")])
    assert ok(client.get("/subjects")) == ["seen-key", "seen-value"]
    assert {each["subject"] for each in ok(client.get("/schemas"))} == {"seen-key", "seen-value"}
    assert ok(client.get(f"/schemas/ids/{made['seen']['id']}"))
    assert ok(client.get(f"/schemas/guids/{made['seen']['guid']}"))
    for path in ("", "/schema", "/subjects", "/versions"):
        hidden = client.get(f"/schemas/ids/{made['unseen']['id']}{path}")
        assert (hidden.status_code, hidden.json()["error_code"]) == (404, 40403)
    assert client.get(f"/schemas/guids/{made['unseen']['guid']}").status_code == 404
    shared = ok(admin.get("/subjects/seen-key/versions/1"))["id"]
    assert ok(client.get(f"/schemas/ids/{shared}/subjects")) == ["seen-key"]


def test_a_reference_requires_permission_to_describe_its_topic(
    server: ServerThread, client: httpx.Client, admin: httpx.Client
) -> None:
    base = {"type": "record", "name": "Base", "fields": []}
    ok(admin.post("/subjects/hidden-value/versions", json={"schema": json.dumps(base)}))
    user = {"type": "record", "name": "U", "fields": [{"name": "b", "type": "Base"}]}
    reference = {"name": "Base", "subject": "hidden-value", "version": 1}
    body = {"schema": json.dumps(user), "references": [reference]}
    allow(server, HOST, [(WRITE.on(TOPIC), "mine")])
    assert client.post("/subjects/mine-value/versions", json=body).status_code == 403
    allow(server, HOST, [(WRITE.on(TOPIC), "mine"), (DESCRIBE.on(TOPIC), "hidden")])
    assert client.post("/subjects/mine-value/versions", json=body).status_code == 200
