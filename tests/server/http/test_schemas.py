"""The schema registry over HTTP: paths, JSON, media types and error codes of Confluent's API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.http_client import client_of, http_broker, ok

from strandlog.broker.topics.topic import SCHEMAS_TOPIC
from strandlog.server.http.schemas import routes
from strandlog.testing.disk.files import SimulatedFiles
from strandlog.testing.server import ServerThread

V1 = "application/vnd.schemaregistry.v1+json"


def record(*fields: str | tuple[str, object], name: str = "R") -> str:
    """An Avro record with int fields; (name, default) for one with a default."""
    made = [
        {"name": each, "type": "int"}
        if isinstance(each, str)
        else {"name": each[0], "type": "int", "default": each[1]}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": made})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with http_broker(tmp_path_factory.mktemp("data")) as server, client_of(server) as client:
        client.headers["content-type"] = V1
        yield client


def register(client: httpx.Client, subject: str, text: str, **more: Any) -> httpx.Response:
    content = json.dumps({"schema": text, **more})
    return client.post(f"/subjects/{subject}/versions", content=content)


def failed(answer: httpx.Response, code: int) -> str:
    """The message of an error with Confluent's code."""
    assert answer.status_code == int(str(code)[:3]), answer.text
    found = answer.json()
    assert found["error_code"] == code, found
    return str(found["message"])


def test_a_list_of_schemas_without_a_limit_has_no_end(
    shared: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SCHEMA_LIST_MAX_SCHEMAS", 3)
    for number in range(5):
        ok(register(shared, f"listed-{number}-value", record("listed")))

    def listed(**query: int) -> list[str]:
        params: dict[str, str | int] = {"subjectPrefix": "listed-", **query}
        found = ok(shared.get("/schemas", params=params))
        return [each["subject"][7] for each in found]

    assert listed() == listed(limit=4) == listed(limit=0) == ["0", "1", "2"]
    assert listed(offset=3) == ["3", "4"]
    assert listed(limit=2, offset=1) == ["1", "2"]


def test_a_schema_has_one_id_in_all_subjects(shared: httpx.Client) -> None:
    first = ok(register(shared, "one-value", record("a")))
    again = ok(register(shared, "one-value", record("a").replace(" ", "  ")))
    other = ok(register(shared, "two-value", record("a")))
    assert first["id"] == again["id"] == other["id"]
    assert (again["version"], other["version"]) == (1, 1)
    found = ok(shared.get(f"/schemas/ids/{first['id']}"))
    assert found["schema"] == record("a"), "the text as it was sent"
    assert found["guid"] == first["guid"]
    assert ok(shared.get(f"/schemas/guids/{first['guid']}"))["schema"] == record("a")
    assert shared.get(f"/schemas/ids/{first['id']}/schema").text == record("a")
    assert ok(shared.get(f"/schemas/ids/{first['id']}/subjects")) == ["one-value", "two-value"]
    assert ok(shared.get(f"/schemas/ids/{first['id']}/versions"))[0] == {
        "subject": "one-value",
        "version": 1,
    }
    found = ok(shared.get("/subjects/one-value/versions/latest"))
    assert (found["subject"], found["version"], found["id"]) == ("one-value", 1, first["id"])


def test_documentation_and_defaults_make_another_schema(shared: httpx.Client) -> None:
    documented = json.loads(record("a")) | {"doc": "x"}
    first = ok(register(shared, "doc-value", record("a")))
    second = ok(register(shared, "doc-value", json.dumps(documented)))
    assert first["id"] != second["id"]
    assert ok(shared.get("/subjects/doc-value/versions/")) == [1, 2]


def test_evolution_is_checked(shared: httpx.Client) -> None:
    ok(register(shared, "grow-value", record("a")))
    assert "grow-value" in failed(register(shared, "grow-value", record("a", "b")), 409)
    ok(register(shared, "grow-value", record("a", ("b", 0))))
    body = json.dumps({"schema": record("c")})
    check = "/compatibility/subjects/grow-value/versions"
    assert ok(shared.post(f"{check}/latest?verbose=true", content=body))["is_compatible"] is False
    assert ok(shared.post(f"{check}/latest?verbose=true", content=body))["messages"]
    assert ok(shared.post(f"{check}/", content=body)) == {"is_compatible": False}
    assert ok(shared.post("/compatibility/subjects/new/versions/latest", content=body)) == {
        "is_compatible": True
    }
    failed(shared.post("/compatibility/subjects/grow-value/versions/9", content=body), 40402)
    ok(shared.put("/config/grow-value", content='{"compatibility": "NONE"}'))
    assert ok(register(shared, "grow-value", record("c")))["version"] == 3


def test_configuration(shared: httpx.Client) -> None:
    assert ok(shared.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    failed(shared.get("/config/set-value"), 40408)
    full = ok(shared.get("/config/set-value?defaultToGlobal=True"))
    assert full == {"compatibilityLevel": "BACKWARD"}
    put = ok(shared.put("/config/set-value", content='{"compatibility": "full"}'))
    assert put == {"compatibility": "FULL"}
    assert ok(shared.get("/config/set-value")) == {"compatibilityLevel": "FULL"}
    failed(shared.put("/config/set-value", content='{"compatibility": "SOME"}'), 42203)
    failed(shared.put("/config/set-value", content='{"alias": "x"}'), 42203)
    assert ok(shared.delete("/config/set-value")) == {"compatibilityLevel": "FULL"}
    failed(shared.delete("/config/set-value"), 40401)


def test_soft_and_permanent_deletion(shared: httpx.Client) -> None:
    path = "/subjects/gone-value"
    first = ok(register(shared, "gone-value", record("gone")))["id"]
    failed(shared.delete(f"{path}?permanent=true"), 40405)
    assert ok(shared.delete(path)) == [1]
    failed(shared.delete(path), 40404)
    failed(shared.get(f"{path}/versions"), 40401)
    assert ok(shared.get(f"{path}/versions?deleted=true")) == [1]
    assert ok(shared.get(f"/schemas/ids/{first}"))["schema"] == record("gone")
    assert "gone-value" in ok(shared.get("/subjects?deletedOnly=true"))
    again = ok(register(shared, "gone-value", record("gone")))
    assert (again["id"], again["version"]) == (first, 2), "a new version with the old id"
    failed(shared.delete(f"{path}/versions/2?permanent=true"), 40407)
    assert ok(shared.delete(f"{path}/versions/latest")) == 2
    failed(shared.delete(f"{path}/versions/2"), 40406)
    assert ok(shared.delete(f"{path}?permanent=true")) == [2]
    failed(shared.get(f"/schemas/ids/{first}"), 40403)
    assert ok(register(shared, "gone-value", record("new")))["id"] > first, "no id is used twice"


def test_references(shared: httpx.Client) -> None:
    ok(register(shared, "base", record("x", name="Base")))
    text = '{"type": "record", "name": "User", "fields": [{"name": "b", "type": "Base"}]}'
    failed(register(shared, "user", text), 42201)
    reference = {"name": "Base", "subject": "base", "version": 1}
    made = ok(register(shared, "user", text, references=[reference]))
    assert ok(shared.get("/subjects/user/versions/1"))["references"] == [reference]
    assert ok(shared.get("/subjects/base/versions/1/referencedby")) == [made["id"]]
    failed(shared.delete("/subjects/base"), 42206)
    failed(shared.delete("/subjects/base/versions/1"), 42206)
    missing = {**reference, "version": 7}
    failed(register(shared, "user", text, references=[missing]), 42201)


def test_modes(shared: httpx.Client) -> None:
    assert ok(shared.get("/mode")) == {"mode": "READWRITE"}
    failed(shared.get("/mode/frozen"), 40409)
    assert ok(shared.put("/mode/frozen", content='{"mode": "READONLY"}')) == {"mode": "READONLY"}
    failed(register(shared, "frozen", record("a")), 42205)
    failed(register(shared, "thawed", record("a"), id=77), 42205)
    failed(shared.put("/mode/frozen", content='{"mode": "SOLID"}'), 42204)
    ok(shared.put("/mode/taken", content='{"mode": "IMPORT"}'))
    made = ok(register(shared, "taken", record("imported"), id=5000, version=3))
    assert (made["id"], made["version"]) == (5000, 3)
    failed(register(shared, "taken", record("imported", "too"), id=5000), 42207)
    assert ok(shared.delete("/mode/taken")) == {"mode": "IMPORT"}
    assert ok(register(shared, "after", record("later")))["id"] == 5001


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", ""),
        ("AVRO", "{"),
        ("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "nothing"}]}'),
        ("AVRO", "[" * 100_000),
        ("JSON", '{"type": "strange"}'),
        ("JSON", '{"$ref": "#/definitions/missing"}'),
        ("JSON", "7"),
        ("PROTOBUF", "message A { int32 a 1; }"),
        ("PROTOBUF", 'syntax = "proto3"; import "../../etc/passwd"; message A {}'),
        ("PROTOBUF", "AAAA"),
        ("THRIFT", "struct A {}"),
    ],
)
def test_an_invalid_schema_is_a_422(shared: httpx.Client, kind: str, text: str) -> None:
    failed(register(shared, "invalid", text, schemaType=kind), 42201)
    failed(shared.get("/subjects/invalid/versions"), 40401)


def test_invalid_requests(shared: httpx.Client) -> None:
    path = "/subjects/x/versions"
    assert shared.post(path, content="{").json()["error_code"] == 40001
    failed(shared.post(path, content='{"schema": 5}'), 42201)
    failed(shared.post(path, content=json.dumps({"schema": " " * 600_000 + "1"})), 42209)
    failed(register(shared, ":.ctx:x", record("a")), 42208)
    failed(shared.get("/subjects/none/versions/1"), 40401)
    failed(shared.get("/schemas/ids/999999"), 40403)
    ok(register(shared, "numbered", record("a")))
    for version in ("0", "-2", "x", "2147483648", "9" * 30):
        failed(shared.get(f"/subjects/numbered/versions/{version}"), 42202)
    assert shared.get("/associations/resources/-/orders").status_code == 404
    assert shared.delete("/subjects").status_code == 405


def test_media_types(shared: httpx.Client) -> None:
    assert shared.get("/subjects").headers["content-type"] == V1
    plain = shared.get("/subjects", headers={"accept": "application/json"})
    assert plain.headers["content-type"] == "application/json"
    wanted = "text/html, application/vnd.schemaregistry+json;q=0.9, application/json;q=0.5"
    chosen = shared.get("/subjects", headers={"accept": wanted})
    assert chosen.headers["content-type"] == "application/vnd.schemaregistry+json"
    assert shared.get("/subjects", headers={"accept": "text/html"}).status_code == 406
    body, wrong = json.dumps({"schema": '"int"'}), {"content-type": "text/plain"}
    assert shared.post("/subjects/m", content=body, headers=wrong).status_code == 415
    assert sorted(ok(shared.get("/schemas/types"))) == ["AVRO", "JSON", "PROTOBUF"]
    assert ok(shared.get("/contexts")) == ["."]
    assert ok(shared.get("/v1/metadata/id"))["scope"]["clusters"]["kafka-cluster"]


def test_names_are_percent_encoded(shared: httpx.Client) -> None:
    ok(register(shared, "s%2Fx%20y", record("a")))
    assert ok(shared.get("/subjects?subjectPrefix=s/x")) == ["s/x y"]
    assert ok(shared.get("/subjects/s%2Fx%20y/versions/1"))["subject"] == "s/x y"


def test_protobuf_as_text_and_as_descriptor(shared: httpx.Client) -> None:
    text = 'syntax = "proto3"; package p; message A { int32 a = 1; }'
    made = ok(register(shared, "proto", text, schemaType="PROTOBUF"))
    coded = ok(shared.get(f"/schemas/ids/{made['id']}?format=serialized"))["schema"]
    assert ok(register(shared, "proto2", coded, schemaType="PROTOBUF"))["id"] == made["id"]
    assert ok(shared.get("/subjects/proto/versions/1"))["schema"] == text


def test_registrations_at_the_same_time_get_different_ids(shared: httpx.Client) -> None:
    numbers = list(range(8)) * 3

    def made(number: int) -> tuple[int, int]:
        found = ok(register(shared, f"racing{number}", record(f"f{number}")))
        return number, found["id"]

    with ThreadPoolExecutor(8) as pool:
        pairs = set(pool.map(made, numbers))
    assert len(pairs) == len({schema_id for _, schema_id in pairs}) == 8


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    with http_broker(tmp_path) as server, client_of(server) as client:
        client.headers["content-type"] = V1
        assert ok(client.get("/subjects")) == []
        assert ok(client.get("/api/v1/topics"))["topics"] == [], "no topic before the first schema"
        first = ok(register(client, "a-value", record("a")))
        ok(register(client, "a-value", record("a", ("b", 0))))
        ok(register(client, "b-value", record("b")))
        ok(client.delete("/subjects/b-value"))
        ok(client.delete("/subjects/b-value?permanent=true"))
        ok(client.put("/config/a-value", content='{"compatibility": "FULL"}'))
        before = ok(client.get("/schemas?deleted=true"))
    with http_broker(tmp_path) as server, client_of(server) as client:
        client.headers["content-type"] = V1
        assert ok(client.get("/schemas?deleted=true")) == before
        assert ok(client.get("/config/a-value")) == {"compatibilityLevel": "FULL"}
        assert ok(register(client, "c-value", record("a")))["id"] == first["id"]
        assert ok(register(client, "c-value", record("a", ("z", 1))))["id"] == 4
        produced = client.post(
            "/api/v1/topics/_schemas/records",
            json={"records": [{"value": "x"}]},
            headers={"content-type": "application/json"},
        )
        assert produced.status_code == 400, "only the registry writes its topic"
        deleted = client.delete("/api/v1/topics/_schemas")
        assert deleted.status_code == 400


def test_without_the_registry_its_topic_is_for_clients(tmp_path: Path) -> None:
    settings = {"schema.registry.enable": "false"}
    with http_broker(tmp_path, settings) as server, client_of(server) as client:
        assert client.get("/subjects").status_code == 404
        ok(client.post("/api/v1/topics", json={"name": "_schemas"}), 201)
        ok(client.post("/api/v1/topics/_schemas/records", json={"records": [{"value": "x"}]}))


def test_the_size_of_a_schema_is_limited_by_a_setting(tmp_path: Path) -> None:
    settings = {"schema.registry.max.schema.bytes": "1024"}
    with http_broker(tmp_path, settings) as server, client_of(server) as client:
        client.headers["content-type"] = V1
        answer = register(client, "large-value", record("x" * 1024))
        assert "schema.registry.max.schema.bytes" in failed(answer, 42209)
        ok(register(client, "large-value", record("x" * 800)))


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/subjects/a/b/c/d", 404),
        ("GET", "/schemas/other", 404),
        ("GET", "/associations/resources/-/orders?resourceType=topic", 404),
        ("GET", "/schemas/ids/x", 404),
        ("PATCH", "/config", 405),
    ],
)
def test_an_unknown_path_is_an_error_in_the_form_of_the_registry(
    shared: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = shared.request(method, path)
    assert answer.headers["content-type"] == V1
    assert answer.status_code == status
    assert answer.json()["error_code"] == status, "40401 would be a missing subject"


def test_a_missing_login_is_an_error_in_the_form_of_the_registry(tmp_path: Path) -> None:
    settings = {"http.authentication": "required"}
    with http_broker(tmp_path, settings) as server, client_of(server) as client:
        answer = client.get("/subjects")
        assert answer.status_code == 401
        assert answer.json()["error_code"] == 401
        assert "www-authenticate" in answer.headers
        api = client.get("/api/v1/topics")
        assert api.headers["content-type"] == "application/problem+json"


def test_without_a_registry_its_paths_are_unknown_paths(tmp_path: Path) -> None:
    settings = {"schema.registry.enable": "false"}
    with http_broker(tmp_path, settings) as server, client_of(server) as client:
        answer = client.get("/subjects")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("kind", "module", "text"),
    [
        ("AVRO", "avro.schema", '"int"'),
        ("AVRO", "fastavro.schema", '"int"'),
        ("JSON", "jsonschema_rs", "{}"),
        ("PROTOBUF", "grpc_tools", 'syntax = "proto3"; message M {}'),
    ],
)
def test_a_missing_extra_is_a_501_that_names_it(
    shared: httpx.Client, monkeypatch: pytest.MonkeyPatch, kind: str, module: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    answer = register(shared, f"extra-{kind.lower()}-value", text, schemaType=kind)
    assert "pip install 'strandlog[schemas]'" in failed(answer, 50101)


def test_a_change_that_may_not_be_on_disk_is_not_shown() -> None:
    disk = SimulatedFiles()
    with ServerThread("data", files=disk, http=True) as server, client_of(server) as client:
        client.headers["content-type"] = V1
        ok(register(client, "good-value", '"int"'))
        disk.fail_on("sync", SCHEMAS_TOPIC)
        failed(register(client, "lost-value", '"long"'), 50301)
        answer = client.get("/subjects")
        failed(answer, 50301)
        assert answer.headers["retry-after"] == "1"
