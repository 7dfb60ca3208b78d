"""/metrics in strict parsers, the metrics of dashboards and alerts, health, request checks."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_client import PATIENCE_S, client_of, http_address, http_broker, ok, problem
from tests.support.server import RunningBroker

from strandlog.broker.metrics import table
from strandlog.server.http.metrics.families import FAMILIES
from strandlog.server.http.security import is_known_host
from strandlog.testing.server import ServerThread

ROOT = Path(__file__).parents[3]
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A broker that has worked: records in and out, a group that is behind by 40, a table."""
    with http_broker(tmp_path_factory.mktemp("metrics") / "data") as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        worked = NewTopic("worked", 2, 1, config={"table.format": "parquet"})
        for future in admin.create_topics([worked]).values():
            future.result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": running.address, "acks": "all"})
        for number in range(100):
            producer.produce("worked", b"v%d" % number, partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": running.address,
                "group.id": 'behind "it" \\',
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["worked"])
        seen = 0
        while seen < 60:
            message = consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None
            seen += 1
            consumer.commit(message, asynchronous=False)
        consumer.close()
        with client_of(running) as client:
            ok(client.get("/api/v1/topics"))
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as opened:
        yield opened


def samples(client: httpx.Client) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_declared_metric_is_exported(client: httpx.Client) -> None:
    found = samples(client)
    for row in table():
        suffix = "_count" if row.kind == "histogram" else ""
        assert row.exported_name + suffix in found
    for family in FAMILIES:
        assert family.name in found, family.name
        for labels, _ in found[family.name]:
            assert tuple(sorted(labels)) == tuple(sorted(family.labels))


def test_figures_are_those_of_the_broker(client: httpx.Client) -> None:
    found = samples(client)
    offsets = found["kafka_topic_partition_current_offset"]
    assert sorted(v for labels, v in offsets if labels["topic"] == "worked") == [50, 50]
    assert found["strandlog_produced_records_total"] == [({}, 100)]
    group = {"consumergroup": 'behind "it" \\', "topic": "worked"}
    assert (group, 40) in found["kafka_consumergroup_lag_sum"]
    assert (group, 60) in found["kafka_consumergroup_current_offset_sum"]
    assert ({"group": 'behind "it" \\'}, 40) in found["strandlog_group_lag"]
    produced = [
        v for labels, v in found["strandlog_request_seconds_count"] if labels == {"api": "Produce"}
    ]
    assert produced[0] >= 1


def test_a_strict_openmetrics_parser_accepts_the_metrics(client: httpx.Client) -> None:
    answer = client.get("/metrics", headers={"accept": OPEN_METRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = list(openmetrics.text_string_to_metric_families(answer.text))  # type: ignore[no-untyped-call]
    histograms = [family for family in families if family.type == "histogram"]
    assert len(histograms) == len([row for row in table() if row.kind == "histogram"])


def _words_of(expressions: list[str]) -> set[str]:
    """The names of metrics in some expressions."""
    text = "\n".join(re.sub(r'"[^"]*"', "", each) for each in expressions)
    return set(re.findall(r"\b(?:strandlog|kafka|process)_[a-z_]+\b", text))


def _dashboard() -> list[str]:
    board: dict[str, Any] = json.loads((ROOT / "deploy/grafana/strandlog.json").read_text())
    variables = [str(each["query"]) for each in board["templating"]["list"]]
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]] + variables


def _alerts() -> list[str]:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("expressions", [_dashboard(), _alerts()], ids=["dashboard", "alerts"])
def test_dashboards_and_alerts_use_only_exported_metrics(
    client: httpx.Client, expressions: list[str]
) -> None:
    asked = _words_of(expressions)
    assert len(asked) > 8
    assert not asked - samples(client).keys()
    for each in expressions:
        for opening, closing in ("()", "{}", "[]"):
            assert each.count(opening) == each.count(closing), each


@pytest.mark.slow
def test_a_scrape_of_a_thousand_partitions_does_not_block_the_event_loop(tmp_path: Path) -> None:
    with http_broker(tmp_path / "data") as running, client_of(running) as client:
        admin = AdminClient({"bootstrap.servers": running.address})
        for future in admin.create_topics([NewTopic("wide", 1000, 1)]).values():
            future.result(120)
        long_before = _late(samples(client), 0.2)
        for _ in range(5):
            found = samples(client)
            assert len(found["kafka_topic_partition_current_offset"]) == 1000
        assert _late(samples(client), 0.2) - long_before <= 1, "other work may do it once"


def _late(found: dict[str, list[tuple[dict[str, str], float]]], seconds: float) -> float:
    """How often the event loop was later than that."""
    buckets = {
        labels["le"]: value for labels, value in found["strandlog_event_loop_delay_seconds_bucket"]
    }
    return buckets["+Inf"] - buckets[str(seconds)]


# -- health --------------------------------------------------------------------------------------


def test_a_healthy_broker_is_alive_and_ready(client: httpx.Client) -> None:
    assert ok(client.get("/healthz")) == {"status": "ok"}
    assert ok(client.get("/readyz")) == {"is_ready": True, "reasons": []}


def test_a_broker_with_a_full_disk_is_alive_and_not_ready(tmp_path: Path) -> None:
    with (
        http_broker(tmp_path / "data", {"log.min.free.bytes": str(2**60)}) as running,
        client_of(running) as client,
    ):
        ok(client.get("/healthz"))
        assert "appends are rejected" in ok(client.get("/readyz"), 503)["reasons"][0]


# -- the guards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "hosts", "is_known"),
    [
        ("localhost:9095", (), True),
        ("127.0.0.1", (), True),
        ("[::1]:9095", (), True),
        ("192.168.1.7:80", (), True),
        ("a.localhost", (), True),
        ("strandlog.lan:9095", ("strandlog.lan",), True),
        ("STRANDLOG.lan", ("strandlog.lan",), True),
        ("anything", ("*",), True),
        ("evil.example", (), False),
        ("evil.example", ("strandlog.lan",), False),
        ("127.0.0.1.evil.example", (), False),
        ("localhost.evil.example", (), False),
        ("[::1]evil.example", (), False),
        ("[::1].evil.example:9095", (), False),
        ("127.0.0.1:9095.evil.example", (), False),
        ("localhost:", (), True),
        ("", (), False),
    ],
)
def test_only_known_host_names_are_accepted(
    header: str, hosts: tuple[str, ...], is_known: bool
) -> None:
    assert is_known_host(header, hosts) is is_known


def test_a_request_by_dns_rebinding_is_rejected(client: httpx.Client) -> None:
    for path in ("/healthz", "/metrics", "/nothing"):
        told = problem(client.get(path, headers={"host": "evil.example"}), 421)
        assert "evil.example" in told and "http.hosts" in told


def test_unknown_paths_and_methods_are_errors(client: httpx.Client) -> None:
    assert "/nothing" in problem(client.get("/nothing"), 404)
    problem(client.get("/metrics/"), 404)
    answer = client.delete("/metrics")
    problem(answer, 405)
    assert "GET" in answer.headers["allow"]


def test_responses_are_not_cached_and_have_security_headers(client: httpx.Client) -> None:
    headers = client.get("/healthz").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


# -- starting and stopping -----------------------------------------------------------------------


def test_a_port_in_use_is_reported(broker: RunningBroker, tmp_path: Path) -> None:
    port = http_address(broker).rpartition(":")[2]
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "d"), "--port", "0"]
    ended = subprocess.run(
        [*command, "--no-grpc", "--http-port", port],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "--http-port" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_request_before_the_framework_is_loaded_gets_a_response(tmp_path: Path) -> None:
    with http_broker(tmp_path / "data") as running, client_of(running) as client:
        ok(client.get("/healthz"))


def test_a_half_sent_request_does_not_delay_shutdown(tmp_path: Path) -> None:
    with http_broker(tmp_path / "data") as running:
        with client_of(running) as asking:
            assert asking.get("/healthz").status_code == 200  # the web framework is loaded
        host, _, port = http_address(running).removeprefix("http://").rpartition(":")
        half = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        half.connect()
        half.sock.sendall(b"POST /api/v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        running.stop()  # it fails if this takes too long
    half.close()


def test_concurrent_scrapes_all_get_responses(client: httpx.Client) -> None:
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(client.get("/metrics").status_code))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert codes == [200] * 20
