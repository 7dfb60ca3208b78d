"""Server-sent events from a real broker: rates, lag, tails, limits, shutdown."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.support.http_client import (
    PATIENCE_S,
    client_of,
    http_address,
    http_broker,
    ok,
    problem,
)
from tests.support.kafka_transactions import KafkaTransactions
from tests.support.server import RunningBroker
from tests.support.trimmed_topics import trim_before_fetch
from tests.support.waiting import eventually

from strandlog.server.http.records import tail
from strandlog.testing.server import ServerThread

LIVE = "/api/v1/live"
LIVE_STREAMS = 20


class Event(NamedTuple):
    name: str
    data: Any


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"http.max.live.streams": str(LIVE_STREAMS)}
    with http_broker(tmp_path_factory.mktemp("live") / "data", settings) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as opened:
        yield opened


@contextmanager
def events(client: httpx.Client, **query: Any) -> Iterator[Iterator[Event]]:
    with client.stream("GET", LIVE, params=query) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store"
        yield parsed(answer.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    name, data = "", []
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not line and name:
            yield Event(name, json.loads("\n".join(data)))
            name, data = "", []


def first(found: Iterator[Event], name: str) -> Any:
    return next(event.data for event in found if event.name == name)


def make(client: httpx.Client, name: str, partitions: int = 1) -> str:
    ok(client.post("/api/v1/topics", json={"name": name, "partitions": partitions}), 201)
    return name


def send(client: httpx.Client, topic: str, *values: str, **more: Any) -> None:
    body = {"records": [{"value": value} for value in values], **more}
    ok(client.post(f"/api/v1/topics/{topic}/records", json=body))


def test_rates_show_the_throughput(client: httpx.Client, broker: RunningBroker) -> None:
    topic = make(client, "rated")
    with client_of(broker) as other, events(client, interval_ms=200, lag=False) as found:

        def positive_rates() -> Any:
            send(other, topic, *["x" * 50] * 20)
            told = first(found, "rates")
            return told if told["rates"] and told["rates"]["produced_records_per_second"] else None

        told = eventually(positive_rates, "the rate of produced records")
        rates = told["rates"]
        assert rates["produced_bytes_per_second"] > rates["produced_records_per_second"] * 50
        assert told["produced_records"] >= 20


def test_lag_events_have_the_lag_of_each_group(client: httpx.Client, broker: RunningBroker) -> None:
    topic = make(client, "lagging")
    reset = {"to": "latest", "topic": topic, "is_dry_run": False}
    ok(client.post("/api/v1/groups/behind/reset", json=reset))
    with client_of(broker) as other, events(client, interval_ms=100, rates=False) as found:
        assert {"group": "behind", "state": "Empty", "members": 0, "lag": 0} in first(found, "lag")[
            "groups"
        ]
        send(other, topic, "a", "b", "c")
        for event in found:
            assert event.name == "lag"
            if event.data["groups"][0] == {
                "group": "behind",
                "state": "Empty",
                "members": 0,
                "lag": 3,
            }:
                break


def test_a_tail_returns_records_as_they_arrive(client: httpx.Client, broker: RunningBroker) -> None:
    topic = make(client, "tailed", 2)
    send(client, topic, "before")
    query = {"topic": topic, "interval_ms": 100, "rates": False, "lag": False}
    with client_of(broker) as other, events(client, **query) as found:
        for number in range(3):
            body = {"records": [{"key": f"k{number}", "value_json": {"n": number}}]}
            ok(other.post(f"/api/v1/topics/{topic}/records", json=body))
            told = first(found, "records")
            assert told["topic"] == topic and told["skipped"] == 0
            [record] = told["records"]
            assert record["key"]["data"] == f"k{number}"
            assert record["value"]["data"] == {"n": number}
        pretty = '{\n  "a":\r\n 1}'
        send(other, topic, pretty)
        assert first(found, "records")["records"][0]["value"]["data"] == {"a": 1}
        ok(other.post(f"/api/v1/topics/{topic}/partitions", json={"partitions": 3}))
        send(other, topic, "in the new one", partition=2)
        assert first(found, "records")["records"][0]["partition"] == 2
        ok(other.delete(f"/api/v1/topics/{topic}"), 204)
        assert first(found, "problem")["status"] == 404
        assert next(found, None) is None, "the stream ends with it"


def test_a_tail_skips_the_first_records_of_a_recreated_topic(
    client: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(client, "tailed-again")
    query = {"topic": topic, "interval_ms": 2000, "rates": False, "lag": False}
    with client_of(broker) as other, events(client, **query) as found:
        send(other, topic, "old")
        assert shown_next(found) == ["old"]
        ok(other.delete(f"/api/v1/topics/{topic}"), 204)  # both before the next interval
        make(other, topic)
        send(other, topic, "new 1", "new 2")
        assert shown_next(found) == ["new 1", "new 2"]


def test_a_tail_ends_if_records_are_deleted_before_it_reads_them(
    client: httpx.Client, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(client, "trimmed")
    trim_before_fetch(monkeypatch, tail, broker, topic, 0, 2)
    query = {"topic": topic, "interval_ms": 100, "rates": False, "lag": False}
    with client_of(broker) as other, events(client, **query) as found:
        send(other, topic, "a", "b", "c")
        event = first(found, "records")
        assert [each["value"]["data"] for each in event["records"]] == ["c"]
        assert event["skipped"] == 2


def test_a_tail_omits_uncommitted_records_unless_they_are_requested(
    client: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(client, "tailed-transactions")
    transactions = KafkaTransactions(broker.address, "tail-test")
    query = {"topic": topic, "interval_ms": 100, "rates": False, "lag": False}
    with (
        client_of(broker) as other,
        events(client, **query) as committed,
        events(other, **query, committed=False) as everything,
    ):
        for value, end in ((b"aborted", transactions.abort), (b"kept", transactions.commit)):
            transactions.begin(topic, value)
            assert shown_next(everything) == [value.decode()], "before the transaction ends"
            end()
        assert shown_next(committed) == ["kept"]


def shown_next(found: Iterator[Event]) -> list[str]:
    while not (records := first(found, "records")["records"]):
        pass
    return [record["value"]["data"] for record in records]


@pytest.mark.slow
def test_a_tail_of_a_busy_topic_skips_records_and_counts_them(
    client: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(client, "fast")
    query = {"topic": topic, "interval_ms": 1000, "rates": False, "lag": False, "limit": 10}
    with client_of(broker) as other, events(client, **query) as found:
        send(other, topic, "first")
        seen = len(first(found, "records")["records"])
        send(other, topic, *(str(n) for n in range(500)))
        skipped = 0
        while seen + skipped < 501:
            told = first(found, "records")
            assert len(told["records"]) <= 10
            seen += len(told["records"])
            skipped += told["skipped"]
        assert told["records"][-1]["value"]["data"] == "499", "the newest are shown"
        assert skipped >= 400


def test_a_filtered_tail_finds_rare_records(client: httpx.Client, broker: RunningBroker) -> None:
    topic = make(client, "sifted")
    query = {"topic": topic, "interval_ms": 100, "rates": False, "lag": False, "limit": 5}
    with (
        client_of(broker) as other,
        events(client, **query, path="n", equals="7", format="plain") as found,
    ):
        send(other, topic, *(f'{{"n": {n}}}' for n in range(1000)))
        told = first(found, "records")
        [record] = told["records"]
        assert record["offset"] == 7 and told["skipped"] == 0
        assert record["value"]["kind"] == "text" and record["value"]["data"] == '{"n": 7}'


@pytest.mark.slow
def test_a_filtered_tail_keeps_up_with_the_end(client: httpx.Client, broker: RunningBroker) -> None:
    topic = make(client, "sifted-much")
    query = {"topic": topic, "interval_ms": 1000, "rates": False, "lag": False, "value": "needle"}
    with client_of(broker) as other, events(client, **query) as found:
        send(other, topic, "needle 1")
        assert first(found, "records")["records"][0]["offset"] == 0
        for _ in range(20):  # more than one look goes over
            send(other, topic, *("x" * 9000 for _ in range(20)))
        told = first(found, "records")
        assert not told["records"] and told["skipped"] > 0
        while not told["records"]:  # what was sent while the tail was behind may be skipped, too
            send(other, topic, "needle 2")
            told = first(found, "records")
        assert told["records"][0]["offset"] >= 401


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"equals": "1"}, 400, "path"),
        ({"topic": "nowhere"}, 404, "nowhere"),
        ({"partition": 0}, 400, "topic"),
        ({"interval_ms": 1}, 400, "interval_ms"),
        ({"limit": 10_000}, 400, "limit"),
        ({"unknown": 1}, 400, "unknown"),
    ],
)
def test_invalid_parameters_are_rejected_before_the_stream_starts(
    client: httpx.Client, query: dict[str, Any], status: int, words: str
) -> None:
    assert words in problem(client.get(LIVE, params=query), status)


def test_live_streams_over_the_limit_get_a_503(broker: RunningBroker) -> None:
    host, _, port = http_address(broker).removeprefix("http://").rpartition(":")
    open_ones = [socket.create_connection((host, int(port))) for _ in range(LIVE_STREAMS)]
    for each in open_ones:
        each.sendall(f"GET {LIVE}?interval_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    for each in open_ones:
        assert each.recv(12) == b"HTTP/1.1 200"
    with client_of(broker) as client:
        problem(client.get(LIVE), 503)
        for each in open_ones:
            each.close()
        eventually(lambda: live_clients(client) == 0, "the live clients are gone")


def live_clients(client: httpx.Client) -> int:
    text = client.get("/metrics").text
    [line] = [line for line in text.splitlines() if line.startswith("strandlog_live_clients ")]
    return int(float(line.split()[1]))


def test_streams_end_when_the_broker_stops(tmp_path: Path) -> None:
    ended = threading.Event()
    with http_broker(tmp_path / "data") as running, client_of(running) as client:

        def follow() -> None:
            with events(client, interval_ms=60_000) as found:
                for _ in found:
                    started.set()
            ended.set()

        started = threading.Event()
        thread = threading.Thread(target=follow)
        thread.start()
        assert started.wait(PATIENCE_S)
        running.stop()
        assert ended.wait(PATIENCE_S), "as a stream that is whole"
        thread.join(PATIENCE_S)
        running.start()
