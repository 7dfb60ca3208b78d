"""The JSON API over HTTP to a real broker: topics, groups, the broker, pipelines, errors."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from tests.support.http_client import (
    PATIENCE_S,
    client_of,
    http_address,
    http_broker,
    http_process,
    ok,
    problem,
)
from tests.support.server import RunningBroker
from tests.support.waiting import eventually

from strandlog import RemoteLog, connect
from strandlog.broker.context import RequestContext
from strandlog.config.limits.http import (
    HTTP_MAX_PIPELINES,
    HTTP_PIPELINE_MAX_POINTS,
    HTTP_PIPELINE_MAX_QUERIES,
)
from strandlog.config.tables.broker import broker_settings
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.server.http.api.routes import PREFIX, ROUTES
from strandlog.server.http.pipeline_reports import (
    FORGOTTEN_AFTER_MS,
    SILENT_AFTER_MS,
    PipelineProgress,
    PipelineReports,
    QueryProgress,
)
from strandlog.testing import FakeClock
from strandlog.testing.server import ServerThread

LIMITS = broker_settings()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"max.partitions.per.topic": "50", "log.segment.bytes": "1MiB"}
    with http_broker(tmp_path_factory.mktemp("api") / "data", settings) as running:
        yield running


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as opened:
        opened.base_url = opened.base_url.join(PREFIX + "/")
        yield opened


@pytest.fixture
def log(broker: RunningBroker) -> Iterator[RemoteLog]:
    with connect(broker.address) as opened:
        yield opened


def make(api: httpx.Client, name: str, **more: Any) -> str:
    ok(api.post("topics", json={"name": name, **more}), 201)
    return name


def send(api: httpx.Client, topic: str, *values: str, **more: Any) -> Any:
    body = {"records": [{"value": value} for value in values], **more}
    return ok(api.post(f"topics/{topic}/records", json=body))["results"]


# -- topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_described_altered_and_deleted(api: httpx.Client) -> None:
    made = ok(
        api.post("topics", json={"name": "t", "partitions": 2, "config": {"retention.ms": 60000}}),
        201,
    )
    assert made == ok(api.get("topics/t"))
    assert [each["partition"] for each in made["partitions"]] == [0, 1]
    config = {row["name"]: row for row in made["config"]}
    assert config.keys() == {row.name for row in TOPIC_SETTINGS}
    assert (config["retention.ms"]["value"], config["retention.ms"]["origin"]) == ("60000", "topic")
    assert config["segment.bytes"]["origin"] == "broker"
    assert config["segment.bytes"]["value"] == config["segment.bytes"]["default"] == "1048576"
    assert config["cleanup.policy"]["origin"] == "default"

    changes = {"config": {"retention.ms": None, "cleanup.policy": "compact,delete"}}
    changed = ok(api.patch("topics/t", json=changes))
    config = {row["name"]: row for row in changed["config"]}
    assert config["retention.ms"]["origin"] == "default"
    assert config["cleanup.policy"]["value"] == "compact,delete"
    assert changed["summary"]["cleanup_policy"] == "compact,delete"

    grown = ok(api.post("topics/t/partitions", json={"partitions": 5}))
    assert len(grown["partitions"]) == grown["summary"]["partitions"] == 5
    ok(api.delete("topics/t"), 204)
    problem(api.get("topics/t"), 404)


def test_the_topic_list_has_sizes_and_omits_internal_topics(api: httpx.Client) -> None:
    make(api, "listed", partitions=2)
    send(api, "listed", "a", "b", "c", partition=1)
    ok(
        api.post(
            "groups/for-the-list/reset",
            json={"to": "latest", "topic": "listed", "is_dry_run": False},
        )
    )
    by_name = {each["name"]: each for each in ok(api.get("topics"))["topics"]}
    assert "__consumer_offsets" not in by_name
    assert by_name["listed"]["offsets"] == 3
    assert by_name["listed"]["size_bytes"] > 60
    everything = ok(api.get("topics", params={"internal": "true"}))["topics"]
    assert "__consumer_offsets" in {each["name"] for each in everything}
    assert [each["name"] for each in everything] == sorted(each["name"] for each in everything)
    found = ok(api.get("topics/listed"))
    assert found["groups"] == ["for-the-list"]
    [reader] = found["readers"]
    assert (reader["group"], reader["state"], reader["members"]) == ("for-the-list", "Empty", 0)


def test_describing_a_topic_reads_the_offsets_of_all_groups(
    api: httpx.Client, broker: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic, group in (("mine", "my-group"), ("other", "other-group")):
        make(api, topic, partitions=2)
        send(api, topic, "a", "b", "c", partition=1)
        reset = {"to": "earliest", "topic": topic, "is_dry_run": False}
        ok(api.post(f"groups/{group}/reset", json=reset))
    read: list[str] = []
    fetch_offsets = broker.server.broker.fetch_offsets

    def counted(context: RequestContext, group: str, *arguments: Any) -> Any:
        if not context.is_owner:  # the history reads all groups too
            read.append(group)
        return fetch_offsets(context, group, *arguments)

    monkeypatch.setattr(broker.server.broker, "fetch_offsets", counted)
    found = ok(api.get("topics/mine"))
    assert [(each["group"], each["lag"]) for each in found["readers"]] == [("my-group", 3)]
    assert set(read) == {"my-group"}


def test_rates_are_available_from_the_second_snapshot(api: httpx.Client) -> None:
    make(api, "rated")
    row: dict[str, Any] = {}

    def rate_of_topic() -> float:
        send(api, "rated", *["x" * 100] * 50)
        [found] = [each for each in ok(api.get("topics"))["topics"] if each["name"] == "rated"]
        row.update(found)
        return found["produced_records_per_second"] or 0.0

    rate = eventually(rate_of_topic, "a rate from two snapshots")
    assert row["produced_bytes_per_second"] > 100 * rate * 0.9
    rates = ok(api.get("cluster"))["rates"]
    assert rates["produced_records_per_second"] > 0
    assert rates["produced_bytes_per_second"] > 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "topics/nowhere", None, 404, "nowhere"),
        ("DELETE", "topics/nowhere", None, 404, "nowhere"),
        ("PATCH", "topics/nowhere", {"config": {}}, 404, "nowhere"),
        ("PATCH", "topics/there", {"config": {"retention.m": 1}}, 400, "retention.ms"),
        ("PATCH", "topics/there", {"config": {"retention.ms": "soon"}}, 400, "retention.ms"),
        ("PATCH", "topics/there", {"config": {"retention.ms": [1]}}, 422, "config"),
        ("PATCH", "topics/there", {}, 422, "config"),
        ("POST", "topics", {"name": "there"}, 409, "exists"),
        ("POST", "topics", {"name": "a/b"}, 400, "a/b"),
        ("POST", "topics", {"name": ""}, 400, "name"),
        ("POST", "topics", {"name": "x", "partitions": 51}, 400, "50"),
        ("POST", "topics", {"name": "x", "partitions": 0}, 422, "partitions"),
        ("POST", "topics", {"name": "x", "partitons": 1}, 422, "partitons"),
        ("POST", "topics", {"name": "__consumer_offsets"}, 400, "internal topic"),
        ("DELETE", "topics/__consumer_offsets", None, 400, "internal topic"),
        ("POST", "topics/there/partitions", {"partitions": 1}, 400, "grow"),
        ("POST", "topics/there/partitions", {"partitions": 99}, 400, "50"),
        ("POST", "topics/nowhere/partitions", {"partitions": 9}, 404, "nowhere"),
        ("GET", "topics?internal=maybe", None, 400, "internal"),
        ("GET", "topics?hidden=1", None, 400, "hidden"),
        ("GET", "topics?internal=1&internal=0", None, 400, "more than once"),
        ("GET", "topics/%FF", None, 400, "UTF-8"),
        ("GET", "groups/unknown", None, 404, "unknown"),
        ("DELETE", "groups/unknown", None, 404, "unknown"),
        ("GET", "groups/%07", None, 400, "control"),
        ("POST", "groups/g/reset", {"to": "latest"}, 404, "g"),
        ("POST", "groups/g/reset", {"to": "latest", "topic": "nowhere"}, 404, "nowhere"),
        ("POST", "groups/g/reset", {"to": "yesterday"}, 422, "to"),
        ("POST", "groups/g/reset", {"to": "x"}, 422, "allowed: earliest, latest, offset, time"),
        ("GET", "topics/there/records?format=x", None, 400, "allowed: auto, base64, plain, text"),
        ("POST", "groups/g/reset", {"to": "offset", "topic": "there"}, 400, "offset"),
        ("POST", "groups/g/reset", {"to": "time", "topic": "there"}, 400, "time_ms"),
        ("POST", "groups/g/reset", {"to": "latest", "topic": "there", "partitions": [7]}, 404, "7"),
        ("GET", "pipelines/none", None, 404, "none"),
        ("POST", "pipelines/p/progress", {"state": "asleep"}, 422, "state"),
        ("POST", "pipelines/p/progress", {"ui_url": "javascript:alert(1)"}, 422, "ui_url"),
        ("POST", "pipelines/" + "p" * 201 + "/progress", {}, 400, "200"),
        ("POST", "topics/there/records", {"records": []}, 422, "records"),
        ("POST", "topics/nowhere/records", {"records": [{}]}, 404, "nowhere"),
        ("POST", "topics/there/records", {"records": [{}], "partition": 9}, 404, "9"),
        ("POST", "topics/there/records", {"records": [{}], "acks": "some"}, 422, "acks"),
        ("POST", "topics/there/records", {"records": [{"value_base64": "?"}]}, 400, "base64"),
        ("POST", "topics/there/records", {"records": [{"key": "a", "key_json": 1}]}, 400, "one"),
        ("POST", "topics/there/records", {"records": [{"value": "x" * 300_000}]}, 413, "300"),
        ("POST", "topics/there/records", {"records": [{"timestamp_ms": -1}]}, 422, "timestamp"),
        ("GET", "topics/nowhere/records", None, 404, "nowhere"),
        ("GET", "topics/there/records?partition=5", None, 404, "5"),
        ("GET", "topics/there/records?partition=0&offset=5", None, 416, "[0, 0)"),
        ("GET", "topics/there/records?offset=1&last=1", None, 400, "one of"),
        ("GET", "topics/there/records?limit=0", None, 400, "limit"),
        ("GET", "topics/there/records?time_ms=null", None, 400, "time_ms"),
        ("GET", "topics/there/records?cursor=x", None, 400, "cursor"),
        ("GET", "topics/there/records?cursor=9:0", None, 400, "cursor"),
        ("GET", "topics/there/records?cursor=0:-1", None, 400, "cursor"),
        ("GET", "topics/there/records?path=a..b", None, 400, "path"),
        ("GET", "topics/there/records?equals=1", None, 400, "path"),
        ("GET", "nothing", None, 404, "nothing"),
        ("PUT", "topics", {}, 405, "PUT"),
    ],
)  # fmt: skip
def test_errors_have_a_status_and_name_the_cause(
    api: httpx.Client, method: str, path: str, body: Any, status: int, words: str
) -> None:
    there = api.post("topics", json={"name": "there"})
    assert there.status_code in (201, 409)
    assert words in problem(api.request(method, path, json=body), status)


def test_deleting_topics_can_be_disabled(tmp_path: Path) -> None:
    settings = {"delete.topic.enable": "false"}
    with http_broker(tmp_path / "d", settings) as running, client_of(running) as client:
        ok(client.post("/api/v1/topics", json={"name": "kept"}), 201)
        assert "delete.topic.enable" in problem(client.delete("/api/v1/topics/kept"), 403)


# -- what the guards do with bodies --------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_form_on_another_site_cannot_change_anything(api: httpx.Client, kind: str) -> None:
    body = b'{"name": "forged"}'
    answer = api.post("topics", content=body, headers={"content-type": kind} if kind else {})
    assert "application/json" in problem(answer, 415)
    problem(api.get("topics/forged"), 404)


def test_bodies_that_are_not_json_are_rejected(api: httpx.Client) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    for body in (b"", b"{", b'{"name": "\xff"}', b'{"name": "\\ud800"}'):
        assert "invalid body" in problem(api.post("topics", content=body, headers=headers), 400)
    deep = b'{"records": [{"value_json": ' + b"[" * 100_000
    problem(api.post("topics/any/records", content=deep, headers=headers), 400)
    problem(api.post("topics", content=b"[" * 100_000, headers=headers), 422)


def test_a_body_over_the_limit_is_rejected_with_and_without_a_length(api: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    large = b" " * (LIMITS.http_request_max_bytes + 1)
    problem(api.post("topics", content=large, headers=headers), 413)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(large), 1 << 20):
            yield large[start : start + (1 << 20)]

    problem(api.post("topics", content=pieces(), headers=headers), 413)
    ok(api.get("cluster"))


@pytest.mark.slow
def test_stalled_uploads_over_the_memory_limit_make_room_for_other_requests(
    api: httpx.Client, broker: RunningBroker
) -> None:
    size = LIMITS.http_request_max_bytes
    half = b" " * (size - 1)
    head = (
        f"POST /api/v1/topics/x/records HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    ).encode()
    host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
    large = {"name": "x" * 200_000}
    with contextlib.ExitStack() as slow:
        for _ in range(3 * LIMITS.http_queued_max_request_bytes // size):
            connection = slow.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(head + half)
        found = api.post("topics", json=large)
        assert "characters" in problem(found, 400), "stalled uploads make room for others"


# -- groups --------------------------------------------------------------------------------------


def test_a_group_with_a_member_shows_its_lag_and_cannot_be_reset_or_deleted(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "read", partitions=2)
    send(api, topic, "a", "b", "c", partition=0)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "readers/of it",
            "client.id": "me",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    assert message is not None and message.error() is None
    consumer.commit(message, asynchronous=False)
    shown = ok(api.get("groups/readers%2Fof%20it"))
    [member] = shown["members"]
    assert member["client_id"] == "me"
    assert [each["partition"] for each in member["partitions"]] == [0, 1]
    [position] = [each for each in shown["positions"] if each["partition"] == 0]
    assert (position["offset"], position["end_offset"], position["lag"]) == (1, 3, 2)
    assert position["member_id"] == member["member_id"]
    assert (shown["state"], shown["lag"]) == ("Stable", 2)
    [listed] = [
        each for each in ok(api.get("groups"))["groups"] if each["group"] == "readers/of it"
    ]
    assert (listed["members"], listed["lag"], listed["topics"]) == (1, 2, [topic])

    reset = {"to": "earliest", "topic": topic}
    assert ok(api.post("groups/readers%2Fof%20it/reset", json=reset))["members"] == 1
    moved = api.post("groups/readers%2Fof%20it/reset", json={**reset, "is_dry_run": False})
    assert "stop them first" in problem(moved, 409)
    problem(api.delete("groups/readers%2Fof%20it"), 409)
    consumer.close()
    ok(api.delete("groups/readers%2Fof%20it"), 204)
    problem(api.get("groups/readers%2Fof%20it"), 404)


def test_a_reset_makes_the_changes_that_its_dry_run_shows(api: httpx.Client) -> None:
    topic = make(api, "moved", partitions=2)
    records = [{"value": str(n), "timestamp_ms": 1_000_000 + n} for n in range(10)]
    ok(api.post(f"topics/{topic}/records", json={"records": records, "partition": 0}))
    cases: list[tuple[dict[str, Any], dict[int, int]]] = [
        ({"to": "latest"}, {0: 10, 1: 0}),
        ({"to": "earliest"}, {0: 0, 1: 0}),
        ({"to": "offset", "offset": 4}, {0: 4, 1: 0}),
        ({"to": "offset", "offset": 99, "partitions": [0]}, {0: 10}),
        ({"to": "time", "time_ms": 1_000_007}, {0: 7, 1: 0}),
        ({"to": "time", "time_ms": 2_000_000}, {0: 10, 1: 0}),
    ]
    before: dict[int, int] = {}
    for asked, wanted in cases:
        body = {"topic": topic, **asked}
        preview = ok(api.post("groups/mover/reset", json=body))
        assert preview["is_dry_run"]
        assert {each["partition"]: each["after"] for each in preview["changes"]} == wanted
        assert {each["partition"]: each["before"] for each in preview["changes"]} == {
            number: before.get(number) for number in wanted
        }
        done = ok(api.post("groups/mover/reset", json={**body, "is_dry_run": False}))
        assert done["changes"] == preview["changes"]
        before |= wanted
        positions = ok(api.get("groups/mover"))["positions"]
        assert {each["partition"]: each["offset"] for each in positions} == before
    everywhere = ok(api.post("groups/mover/reset", json={"to": "earliest"}))
    assert [each["after"] for each in everywhere["changes"]] == [0, 0]
    assert [each["lag_after"] for each in everywhere["changes"]] == [10, 0]


# -- the broker ----------------------------------------------------------------------------------


def test_the_cluster_summary_has_address_folder_readiness_and_disk_space(
    api: httpx.Client, broker: RunningBroker
) -> None:
    shown = ok(api.get("cluster"))
    assert shown["kafka_address"] == broker.address
    assert shown["data"] == str(broker.data)
    assert shown["is_ready"] and not shown["reasons"]
    assert 0 < shown["disk_free_bytes"] < shown["disk_total_bytes"]
    assert abs(shown["now_ms"] - time.time() * 1000) < 60_000


def test_the_broker_status_has_counters_and_latencies_by_api(
    api: httpx.Client, log: RemoteLog
) -> None:
    assert log.topics() is not None
    shown = ok(api.get("broker"))
    assert shown["counters"]["connections_accepted"] >= 1
    assert shown["latencies"]["event_loop_delay_seconds"]["count"] > 0
    by_api = {each["api"]: each["latency"] for each in shown["requests"]}
    assert by_api["Metadata"]["count"] >= 1
    assert by_api["Metadata"]["p50_seconds"] <= by_api["Metadata"]["p99_seconds"]
    assert shown["problems"] == []
    ok(api.get("broker"))
    calls = {each["api"]: each["latency"] for each in ok(api.get("broker"))["http_requests"]}
    assert calls["describe_broker"]["count"] >= 2


def test_settings_name_the_option_that_set_them(tmp_path: Path) -> None:
    settings = {"max.partitions.per.topic": "50"}
    with http_process(tmp_path / "data", settings) as broker, client_of(broker) as opened:
        found = ok(opened.get(f"{PREFIX}/broker/settings"))["settings"]
    rows = {row["name"]: row for row in found}
    given = rows["max.partitions.per.topic"]
    assert (given["value"], given["origin"]) == ("50", "option")
    assert "--set" in given["where"]
    assert rows["group.max.size"]["origin"] == "default"
    assert rows["log.dirs"]["value"] == str(broker.data)
    assert (rows["log.dirs"]["origin"], rows["log.dirs"]["where"]) == ("option", "DATA")
    assert rows["http.port"]["value"] == "0"
    assert rows["http.port"]["where"] == "--http-port"


# -- pipelines -----------------------------------------------------------------------------------


def test_pipeline_reports_appear_in_the_list_and_the_details(api: httpx.Client) -> None:
    for batch in range(3):
        query = {"name": "delays", "batch_id": batch, "rows_per_second": 10.5 * batch, "lag": 7}
        body = {"queries": [query], "ui_url": "http://127.0.0.1:4040"}
        ok(api.post("pipelines/flights/progress", json=body), 204)
    [listed] = [p for p in ok(api.get("pipelines"))["pipelines"] if p["name"] == "flights"]
    assert listed["queries"][0]["last"]["batch_id"] == 2
    assert listed["queries"][0]["points"] == []
    shown = ok(api.get("pipelines/flights"))
    assert [each["rows_per_second"] for each in shown["queries"][0]["points"]] == [0.0, 10.5, 21.0]
    assert (shown["state"], shown["ui_url"]) == ("running", "http://127.0.0.1:4040")
    ok(api.post("pipelines/flights/progress", json={"state": "failed", "error": "no disk"}), 204)
    shown = ok(api.get("pipelines/flights"))
    assert (shown["state"], shown["error"]) == ("failed", "no disk")
    assert len(shown["queries"]) == 1, "what was known of its queries stays"


def test_reports_are_bounded_and_forgotten() -> None:
    clock = FakeClock()
    pipelines = PipelineReports(clock)
    for number in range(HTTP_MAX_PIPELINES + 5):
        pipelines.report(f"p{number:03}", PipelineProgress())
    names = [each.name for each in pipelines.all()]
    assert len(names) == HTTP_MAX_PIPELINES
    assert names[0] == "p005", "those that were silent for longest made room"
    for number in range(HTTP_PIPELINE_MAX_POINTS + 10):
        query = QueryProgress(f"q{number % (HTTP_PIPELINE_MAX_QUERIES + 3)}", batch_id=number)
        pipelines.report("p010", PipelineProgress([query]))
    shown = pipelines.one("p010")
    assert shown is not None and len(shown.queries) == HTTP_PIPELINE_MAX_QUERIES
    for number in range(HTTP_PIPELINE_MAX_POINTS + 10):
        pipelines.report("p010", PipelineProgress([QueryProgress("q0", batch_id=number)]))
    shown = pipelines.one("p010")
    assert shown is not None
    assert max(len(each.points) for each in shown.queries) == HTTP_PIPELINE_MAX_POINTS
    clock.advance(FORGOTTEN_AFTER_MS + 1)
    pipelines.report("new", PipelineProgress())
    assert [each.name for each in pipelines.all()] == ["new"]


def test_a_pipeline_that_stops_reporting_is_shown_as_silent() -> None:
    clock = FakeClock()
    pipelines = PipelineReports(clock)
    pipelines.report("killed", PipelineProgress())
    pipelines.report("done", PipelineProgress(state="stopped"))
    clock.advance(SILENT_AFTER_MS)
    assert [each.state for each in pipelines.all()] == ["stopped", "running"]
    clock.advance(1)
    assert [each.state for each in pipelines.all()] == ["stopped", "silent"]
    pipelines.report("killed", PipelineProgress())
    assert [each.state for each in pipelines.all()] == ["stopped", "running"], "it is back"


# -- the document --------------------------------------------------------------------------------


def test_the_document_has_every_route_and_resolves(api: httpx.Client) -> None:
    document = ok(api.get("openapi.json"))
    assert document["openapi"].startswith("3.1")
    for route in ROUTES:
        operation = document["paths"][PREFIX + route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        assert ("requestBody" in operation) == (route.body is not None)
    names = [route.name for route in ROUTES]
    assert len(names) == len(set(names))
    for reference in _references(document):
        part: Any = document
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, each in part.items():
            if name == "$ref":
                yield each
            else:
                yield from _references(each)
    elif isinstance(part, list):
        for each in part:
            yield from _references(each)


def test_responses_have_the_content_type_json(api: httpx.Client) -> None:
    answer = api.get("topics")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content) == answer.json()
    assert api.head("topics").status_code == 200
