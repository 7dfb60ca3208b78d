"""Keys and values that name a schema: decoded in the records view and in live streams, and
validated when they are produced."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.support.acls import allow, everything
from tests.support.http_client import http_address, ok, problem

from strandlog import StrandlogError, connect
from strandlog.broker.access.permission import READ, TOPIC
from strandlog.formats.registry.framing import VALUE_HEADER, prefixed
from strandlog.server import value_schemas
from strandlog.testing.server import ServerThread

pytest.importorskip("google.protobuf", reason="protobuf is in the extra schemas")

HOST, ADMIN_HOST = "127.0.0.2", "127.0.0.1"
USER = {"type": "record", "name": "User", "fields": [{"name": "n", "type": "long"}]}
PROTO = 'syntax = "proto3"; message A { string name = 1; }'
ADA = b"\x00\x0a\x03ada"
DECODED_KINDS = {"AVRO": json.dumps(USER), "JSON": '{"type": "object"}', "PROTOBUF": PROTO}


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
    with client_at(server, ADMIN_HOST) as found:
        yield found


def registered(client: httpx.Client, subject: str, kind: str = "AVRO") -> Any:
    body = {"schema": DECODED_KINDS[kind], "schemaType": kind}
    return ok(client.post(f"/subjects/{subject}/versions", json=body))


def produce(client: httpx.Client, topic: str, *values: bytes, **more: Any) -> httpx.Response:
    records = [{"value_base64": base64.b64encode(each).decode(), **more} for each in values]
    return client.post(f"/api/v1/topics/{topic}/records", json={"records": records})


def made(client: httpx.Client, topic: str, *values: bytes, **more: Any) -> None:
    if client.get(f"/api/v1/topics/{topic}").status_code == 404:
        ok(client.post("/api/v1/topics", json={"name": topic}), 201)
    ok(produce(client, topic, *values, **more))


def values(client: httpx.Client, topic: str, **query: Any) -> list[Any]:
    page = ok(client.get(f"/api/v1/topics/{topic}/records", params=query))
    return [each["value"] for each in page["records"]]


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("AVRO", b"\x0e", {"n": 7}),
        ("JSON", b'{"a": [1, null]}', {"a": [1, None]}),
        ("PROTOBUF", ADA, {"name": "ada"}),
    ],
)
def test_values_are_shown_as_json_with_their_schema(
    client: httpx.Client, kind: str, payload: bytes, expected: Any
) -> None:
    topic = f"shown-{kind.lower()}"
    schema_id = registered(client, f"{topic}-value", kind)["id"]
    value = prefixed(schema_id, payload)
    made(client, topic, value)
    [found] = values(client, topic)
    schema = {"id": schema_id, "subject": f"{topic}-value", "type": kind, "error": None}
    assert found == {
        "kind": "json",
        "data": expected,
        "size_bytes": len(value),
        "is_truncated": False,
        "schema": schema,
    }
    [plain] = values(client, topic, format="plain")
    assert (plain["kind"], json.loads(plain["data"]), plain["schema"]) == ("text", expected, schema)
    [raw] = values(client, topic, decode="false")
    assert "schema" not in raw
    [raw] = values(client, topic, format="base64")
    assert base64.b64decode(raw["data"]) == value
    assert "schema" not in raw


def test_a_header_may_name_the_schema(client: httpx.Client) -> None:
    guid = registered(client, "framed-value")["guid"]
    header = b"\1" + bytes.fromhex(guid.replace("-", ""))
    headers = [{"name": VALUE_HEADER, "value_base64": base64.b64encode(header).decode()}]
    made(client, "framed", b"\x0e", headers=headers)
    [found] = values(client, "framed")
    assert found["data"] == {"n": 7}


def test_damaged_and_unknown_values_are_shown_as_bytes(client: httpx.Client) -> None:
    schema_id = registered(client, "damaged-value")["id"]
    damaged, unknown = prefixed(schema_id, b""), prefixed(10**6, b"x")
    made(client, "damaged", damaged, unknown, b"plain")
    bad, strange, plain = values(client, "damaged", format="auto")
    assert (bad["kind"], base64.b64decode(bad["data"])) == ("base64", damaged)
    assert "ends too early" in bad["schema"]["error"]
    assert "schema" not in strange
    assert "schema" not in plain


def test_a_decoded_value_is_truncated_like_any_other(client: httpx.Client) -> None:
    schema_id = registered(client, "long-value", "JSON")["id"]
    made(client, "long", prefixed(schema_id, json.dumps({"a": "x" * 100}).encode()))
    [found] = values(client, "long", max_value_bytes=20)
    assert found["is_truncated"]
    assert found["data"] == '{"a": "xxxxxxxxxxxxx'


def test_decoding_is_bounded(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_id = registered(client, "bounded-value", "JSON")["id"]
    made(
        client,
        "bounded",
        prefixed(schema_id, b"{}"),
        prefixed(schema_id, b"[%s]" % (b"1," * 9 + b"1")),
    )
    monkeypatch.setattr(value_schemas, "HTTP_DECODED_VALUE_BYTES", 10)
    small, large = values(client, "bounded")
    assert (small["data"], large["schema"]["error"]) == (
        {},
        "values above 10 bytes are not decoded here",
    )
    monkeypatch.setattr(value_schemas, "HTTP_DECODE_PAGE_MS", -1)
    assert "took too long" in values(client, "bounded")[0]["schema"]["error"]
    monkeypatch.setattr(value_schemas, "HTTP_DECODE_MAX_SCHEMAS", 0)
    assert "schema" not in values(client, "bounded")[0]


def test_a_client_that_may_read_the_topic_sees_its_values(
    server: ServerThread, client: httpx.Client
) -> None:
    own = registered(client, "own-value")["id"]
    foreign = ok(client.post("/subjects/foreign-value/versions", json={"schema": '"long"'}))["id"]
    made(client, "own", prefixed(own, b"\x0e"), prefixed(foreign, b"\x0e"))
    allow(server, HOST, [(READ.on(TOPIC), "own")])
    with client_at(server, HOST) as reader:
        first, second = values(reader, "own")
        assert first["data"] == {"n": 7}
        assert "schema" not in second, "the schema of a topic that it may not see stays hidden"
    allow(server, HOST, [])


def test_live_records_are_decoded(client: httpx.Client) -> None:
    schema_id = registered(client, "live-value")["id"]
    made(client, "live", b"before")
    query: dict[str, str | int] = {"topic": "live", "interval_ms": 100}
    with client.stream("GET", "/api/v1/live", params=query) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("data: "))
        made(client, "live", prefixed(schema_id, b"\x0e"))
        for line in lines:
            if line.startswith("data: ") and '"records":[{' in line:
                break
    [record] = json.loads(line.removeprefix("data: "))["records"]
    assert record["value"]["data"] == {"n": 7}


# -- validation ------------------------------------------------------------------------------------


def test_every_listener_rejects_values_without_a_schema_of_their_topic(
    server: ServerThread, client: httpx.Client
) -> None:
    schema_id = registered(client, "checked-value")["id"]
    config = {"confluent.value.schema.validation": "true"}
    with connect(server.address) as log:
        log.create_topic("checked", config=config)
        assert log.topic_settings("checked")["value.schema.validation"] is True
        with log.producer() as producer:
            producer.send_batch("checked", [prefixed(schema_id, b"\x0e"), None])
            with pytest.raises(StrandlogError, match="rejected a record") as error:
                producer.send_batch("checked", [b"plain"])
            assert error.value.kafka_code == 87, "INVALID_RECORD"
    assert "'checked-value'" in problem(produce(client, "checked", b"plain"), 400)
    ok(produce(client, "checked", prefixed(schema_id, b"\x0e")))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"value.schema.validation": "true"}, {"value.schema.validation"}),
        ({"key.schema.validation": "true"}, {"key.schema.validation"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy"}),
        (
            {"cleanup.policy": "compact,delete", "value.schema.validation": "true"},
            {"cleanup.policy", "value.schema.validation"},
        ),
    ],
)
def test_the_error_for_a_rejected_record_lists_settings_that_the_topic_does_not_have(
    server: ServerThread, config: dict[str, str], named: set[str]
) -> None:
    """librdkafka drops the broker's reason, so the client listed every setting that can reject."""
    topic = f"rejects-{len(named)}-{min(named)}"
    with connect(server.address) as log, log.producer() as producer:
        log.create_topic(topic, config=config)
        with pytest.raises(StrandlogError, match="rejected a record") as error:
            is_keyed = "key.schema.validation" in config
            producer.send(topic, b"plain", key=b"plain" if is_keyed else None)
    every = {"cleanup.policy", "key.schema.validation", "value.schema.validation"}
    assert {name for name in every if name in str(error.value)} == named
    for part in ("key", "value"):
        is_named = f"{part}.schema.validation" in named
        assert (f"subject '{topic}-{part}'" in str(error.value)) is is_named
