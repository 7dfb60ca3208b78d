"""The rates and the lag that the broker keeps for charts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.http_client import client_of, http_broker, ok, problem
from tests.support.waiting import eventually

from strandlog.server.http.metrics import history


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of a broker that takes samples often."""
    monkeypatch.setattr(history, "INTERVAL_SECONDS", 0.02)
    with http_broker(tmp_path / "data") as broker, client_of(broker) as opened:
        yield opened


def make(client: httpx.Client, name: str) -> None:
    ok(client.post("/api/v1/topics", json={"name": name}), 201)


def send(client: httpx.Client, topic: str, number: int) -> None:
    body = {"records": [{"value": "x"}] * number}
    ok(client.post(f"/api/v1/topics/{topic}/records", json=body))


def points_of(client: httpx.Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(client.get(f"/api/v1/topics/{topic}/history"))["points"]
    return found


def rate_of(point: dict[str, Any]) -> float:
    return float(point["produced_records_per_second"])


def test_charts_are_empty_until_a_page_was_open_for_a_minute(client: httpx.Client) -> None:
    """The broker measured rates only while a client asked for them."""
    for name in ("busy", "quiet"):
        make(client, name)
    send(client, "quiet", 3)
    body = {"to": "earliest", "topic": "quiet", "is_dry_run": False}
    ok(client.post("/api/v1/groups/late/reset", json=body))
    eventually(lambda: any(map(rate_of, points_of(client, "quiet"))), "a sample has its records")
    before = len(points_of(client, "quiet"))
    send(client, "busy", 7)
    eventually(lambda: any(map(rate_of, points_of(client, "busy"))), "a sample has its records")
    assert not any(map(rate_of, points_of(client, "quiet")[before:])), "only the other one is busy"
    found = ok(client.get("/api/v1/history"))
    assert any(each["rates"]["produced_records_per_second"] for each in found["rates"])
    times = [each["timestamp_ms"] for each in found["rates"]]
    assert times == sorted(times)
    [group] = found["lag"]
    assert group["group"] == "late"
    assert group["points"][-1]["lag"] == 3


def test_the_lag_of_groups_that_record_commits_of_spark_sinks_is_counted(
    client: httpx.Client,
) -> None:
    """`strandlog group list` hid these groups, and every other place counted their lag."""
    make(client, "commits")
    send(client, "commits", 5)
    for group in ("reader", "strandlog-spark-query"):
        body = {"to": "earliest", "topic": "commits", "is_dry_run": False}
        ok(client.post(f"/api/v1/groups/{group}/reset", json=body))
    eventually(lambda: ok(client.get("/api/v1/history"))["lag"], "a sample has the groups")
    assert {each["group"] for each in ok(client.get("/api/v1/history"))["lag"]} == {"reader"}
    assert [row["group"] for row in live_lag(client)] == ["reader"]
    assert ok(client.get("/api/v1/topics/commits"))["groups"] == ["reader"]
    listed = [
        [each["group"] for each in ok(client.get("/api/v1/groups", params=query))["groups"]]
        for query in ({}, {"internal": "true"})
    ]
    assert listed == [["reader"], ["reader", "strandlog-spark-query"]]
    lines = client.get("/metrics").text.splitlines()
    found = [line.partition("{")[0] for line in lines if "strandlog-spark-query" in line]
    assert "kafka_consumergroup_current_offset" in found
    assert not [name for name in found if "lag" in name]


def live_lag(client: httpx.Client) -> list[dict[str, Any]]:
    """The groups in the first lag event of a live stream."""
    with client.stream("GET", "/api/v1/live", params={"rates": "false"}) as stream:
        lines = stream.iter_lines()
        while next(lines) != "event: lag":
            pass
        groups: list[dict[str, Any]] = json.loads(next(lines).removeprefix("data: "))["groups"]
        return groups


def test_the_history_of_an_unknown_topic_is_not_found(client: httpx.Client) -> None:
    assert "nowhere" in problem(client.get("/api/v1/topics/nowhere/history"), 404)


def test_the_history_forgets_what_is_older_than_its_window(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(client, "orders")
    monkeypatch.setattr(history, "WINDOW_MS", 0)
    send(client, "orders", 1)
    first = ok(client.get("/api/v1/history"))["rates"]
    eventually(
        lambda: ok(client.get("/api/v1/history"))["rates"] not in ([], first), "a new sample"
    )
    assert len(ok(client.get("/api/v1/history"))["rates"]) <= 1
    assert len(points_of(client, "orders")) <= 1
