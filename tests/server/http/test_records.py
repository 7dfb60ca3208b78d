"""Producing, reading, paging and filtering records through the JSON API, with its limits."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from tests.support.http_client import PATIENCE_S, client_of, http_broker, ok
from tests.support.kafka_transactions import KafkaTransactions
from tests.support.server import RunningBroker
from tests.support.trimmed_topics import trim_before_fetch

from strandlog.clock import stopwatch
from strandlog.model import Record
from strandlog.server.http.records import produce, read
from strandlog.server.http.records.filter import RecordFilter, at_path, parse_path
from strandlog.server.http.records.payload import PayloadFormat, payload
from strandlog.server.http.records.scan import ScanResult, scan_back
from strandlog.server.record_io import NewRecord
from strandlog.testing.server import ServerThread


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("records") / "data") as running:
        yield running


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as opened:
        opened.base_url = opened.base_url.join("/api/v1/")
        yield opened


def make(api: httpx.Client, name: str, partitions: int = 1) -> str:
    ok(api.post("topics", json={"name": name, "partitions": partitions}), 201)
    return name


def send(api: httpx.Client, topic: str, records: list[dict[str, Any]], **more: Any) -> Any:
    return ok(api.post(f"topics/{topic}/records", json={"records": records, **more}))["results"]


def page(api: httpx.Client, topic: str, **query: Any) -> Any:
    return ok(api.get(f"topics/{topic}/records", params=query))


def values(found: Any) -> list[Any]:
    return [each["value"] and each["value"]["data"] for each in found["records"]]


@pytest.mark.parametrize(
    ("record", "is_in_loop"),
    [
        ({"value": "small", "headers": [{"name": "h"}]}, True),
        ({"value": "x" * 20_000}, False),
        ({"value_json": ["x" * 20_000]}, False),
        ({"key_base64": b64encode(bytes(20_000)).decode()}, False),
        ({"headers": [{"name": "h", "value": "x" * 20_000}]}, False),
        ({"headers": [{"name": "h"}] * 200}, False),
    ],
)
def test_a_large_record_is_not_converted_in_the_event_loop(
    broker: ServerThread,
    api: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    record: dict[str, Any],
    is_in_loop: bool,
) -> None:
    threads: list[int] = []
    convert = produce._records

    def noted(sent: list[produce.ProduceRecord]) -> list[NewRecord]:
        threads.append(threading.get_ident())
        return convert(sent)

    if "conversions" not in {each["name"] for each in ok(api.get("topics"))["topics"]}:
        make(api, "conversions")
    monkeypatch.setattr(produce, "_records", noted)
    send(api, "conversions", [record])
    assert (threads == [broker.call(threading.get_ident)]) == is_in_loop


@pytest.mark.parametrize("acks", ["none", "leader", "all"])
def test_consumed_records_equal_produced_records(api: httpx.Client, acks: str) -> None:
    topic = make(api, f"forms-{acks}")
    raw = bytes(range(256))
    sent: list[dict[str, Any]] = [
        {"key": "k", "value": "text ✓", "headers": [{"name": "h", "value": "x"}, {"name": "null"}]},
        {"key_json": {"id": 7}, "value_json": {"n": 1.50, "big": 10**30, "list": [None, True]}},
        {"value_base64": b64encode(raw).decode(), "timestamp_ms": 1_700_000_000_000},
        {"key": "only a key"},
        {"value": ""},
    ]
    places = send(api, topic, sent, acks=acks)
    assert places == ([] if acks == "none" else [{"partition": 0, "offset": n} for n in range(5)])
    by_offset: dict[int, Any] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(by_offset) < 5 and time.monotonic() < deadline:  # readers see what is on disk
        by_offset = {each["offset"]: each for each in page(api, topic, offset=0)["records"]}
    first = by_offset[0]
    assert first["key"] == {"kind": "text", "data": "k", "size_bytes": 1, "is_truncated": False}
    assert first["value"]["data"] == "text ✓"
    assert [(h["name"], h["value"] and h["value"]["data"]) for h in first["headers"]] == [
        ("h", "x"),
        ("null", None),
    ]
    assert by_offset[1]["key"] == {
        "kind": "json",
        "data": {"id": 7},
        "size_bytes": 8,
        "is_truncated": False,
    }
    assert by_offset[1]["value"]["data"] == {"n": 1.5, "big": 10**30, "list": [None, True]}
    assert by_offset[2]["value"]["kind"] == "base64"
    assert by_offset[2]["value"]["data"] == b64encode(raw).decode()
    assert by_offset[2]["timestamp_ms"] == 1_700_000_000_000
    assert by_offset[3]["value"] is None
    assert by_offset[4]["value"]["data"] == ""


def test_a_key_maps_to_the_same_partition_as_in_kafka_clients(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "routed", 5)
    keys = [f"key-{number}" for number in range(30)]
    places = send(api, topic, [{"key": key, "value": key} for key in keys])
    chosen: dict[str, int] = {}
    producer = Producer({"bootstrap.servers": broker.address, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(
            topic,
            key,
            key,
            on_delivery=lambda _, m: chosen.__setitem__(m.key().decode(), m.partition()),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert {key: place["partition"] for key, place in zip(keys, places, strict=True)} == chosen


def test_a_cursor_continues_where_the_last_page_ended(api: httpx.Client) -> None:
    topic = make(api, "paged", 3)
    for partition in range(3):
        records = [{"value": f"{partition}-{n}"} for n in range(40)]
        send(api, topic, records, partition=partition)
    seen: list[Any] = []
    cursor: dict[str, Any] = {}
    pages = 0
    while True:
        found = page(api, topic, limit=25, **cursor)
        seen += values(found)
        pages += 1
        cursor = {"cursor": found["cursor"]}
        if found["is_at_end"]:
            break
        assert len(found["records"]) <= 25
    assert pages == 5
    assert sorted(seen) == sorted(f"{p}-{n}" for p in range(3) for n in range(40))
    assert len({value.partition("-")[0] for value in seen[:25]}) == 3, "all have a part of a page"
    assert values(page(api, topic, **cursor)) == []
    send(api, topic, [{"value": "new"}], partition=2)
    assert values(page(api, topic, **cursor)) == ["new"], "at the end a cursor serves to ask again"


def test_offset_time_and_last(api: httpx.Client) -> None:
    topic = make(api, "places", 2)
    for partition in range(2):
        records = [
            {"value": f"{partition}-{n}", "timestamp_ms": 1_000_000 + 10 * n + partition}
            for n in range(20)
        ]
        send(api, topic, records, partition=partition)
    assert values(page(api, topic, partition=1, offset=18)) == ["1-18", "1-19"]
    assert values(page(api, topic, partition=0, offset=20)) == []
    assert values(page(api, topic, offset=19)) == ["0-19", "1-19"]
    assert values(page(api, topic, offset=999)) == []
    assert values(page(api, topic, time_ms=1_000_180)) == ["0-18", "1-18", "0-19", "1-19"]
    assert values(page(api, topic, time_ms=1_000_181)) == ["1-18", "0-19", "1-19"]
    assert values(page(api, topic, time_ms=9_000_000)) == []
    assert values(page(api, topic, last=3)) == ["1-18", "0-19", "1-19"]
    assert values(page(api, topic, last=2, partition=0)) == ["0-18", "0-19"]


def test_the_newest_records_are_missing_if_last_reaches_a_limit(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "bulky", 2)
    for number in range(40):
        send(api, topic, [{"value": f"{number} " + "x" * 60_000}], partition=number % 2)
    found = page(api, topic, last=40, max_bytes=500_000, max_value_bytes=2)
    assert found["is_at_end"] and found["is_missing_older"]
    for partition in range(2):
        shown = [each["offset"] for each in found["records"] if each["partition"] == partition]
        assert shown == list(range(20 - len(shown), 20)) and 3 <= len(shown) < 20
    assert found["scanned_bytes"] < 1_000_000
    send(api, topic, [{"value": "new"}])
    assert values(page(api, topic, cursor=found["cursor"])) == ["new"]
    everything = page(api, topic, last=41, max_value_bytes=2)
    assert len(everything["records"]) == 41 and not everything["is_missing_older"]


def test_last_returns_too_few_records_of_a_sparse_log(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "sparse")
    transactions = KafkaTransactions(broker.address, "sparse")
    for number in range(30):
        transactions.begin(topic, str(number).encode())
        end = transactions.abort if number % 3 else transactions.commit
        end()
    for last in (1, 4, 10, 100):
        found = page(api, topic, last=last)
        assert [int(value) for value in values(found)] == list(range(0, 30, 3))[-last:]
        assert not found["is_missing_older"] and found["is_at_end"]
    assert len(page(api, topic, last=30, committed=False)["records"]) == 30


def test_last_with_a_filter_searches_beyond_the_last_offsets(api: httpx.Client) -> None:
    topic = make(api, "needles")
    for number in range(20):
        records = [{"value": f"hay {number} {n} " + "x" * 1000} for n in range(50)]
        send(api, topic, [{"value": f"needle {number}"}, *records])
    assert values(page(api, topic, last=3, value="needle")) == [
        "needle 17",
        "needle 18",
        "needle 19",
    ]
    cut = page(api, topic, last=20, value="needle", max_bytes=200_000)
    assert values(cut)[-1] == "needle 19" and len(cut["records"]) < 20
    assert cut["is_missing_older"]
    assert values(page(api, topic, last=1, value="needle 0")) == ["needle 0"]
    nothing = page(api, topic, last=1, value="nothing like it")
    assert nothing["records"] == [] and not nothing["is_missing_older"]
    assert nothing["scanned_records"] == 20 * 51


def test_filters(api: httpx.Client) -> None:
    topic = make(api, "filtered")
    send(
        api,
        topic,
        [
            {"key": "alice", "value_json": {"drink": "espresso", "price": 2.5, "tags": ["hot"]}},
            {"key": "bob", "value_json": {"drink": "tea", "price": 3, "paid": True}},
            {
                "key": "carol",
                "value": "plain espresso",
                "headers": [{"name": "trace", "value": "42"}],
            },
            {"value_base64": "/w=="},
        ],
    )

    def offsets(**query: Any) -> list[int]:
        return [each["offset"] for each in page(api, topic, **query)["records"]]

    assert offsets(key="ali") == [0]
    assert offsets(value="espresso") == [0, 2]
    assert offsets(key="carol", value="espresso") == [2]
    assert offsets(header="trace") == [2]
    assert offsets(header="trace=4") == [2]
    assert offsets(header="trace=7") == []
    assert offsets(path="$.drink", equals="tea") == [1]
    assert offsets(path="price", equals="3.0") == [1]
    assert offsets(path="$.price") == [0, 1]
    assert offsets(path="$.tags[0]", equals='"hot"') == [0]
    assert offsets(path="paid", equals="true") == [1]
    assert offsets(path="paid", equals="1") == []
    assert offsets(value="nothing like it") == []


def test_the_work_per_page_is_bounded_and_the_cursor_continues(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "large")
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": "zstd"})
    for number in range(20_000):
        producer.produce(topic, b'{"n": %d, "pad": "%s"}' % (number, b"x" * 200))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    found = page(api, topic, path="n", equals="19999", max_bytes=500_000)
    assert found["records"] == [] and not found["is_at_end"], "though it all fits a piece"
    assert 500_000 <= found["scanned_bytes"] < 2_000_000
    rounds = 0
    while not found["records"]:
        assert not found["is_at_end"]
        found = page(api, topic, path="n", equals="19999", cursor=found["cursor"])
        rounds += 1
    assert rounds >= 1
    assert found["records"][0]["offset"] == 19_999
    hurried = page(api, topic, value="nowhere", max_ms=1)
    assert hurried["scanned_records"] < 20_000 and not hurried["is_at_end"]


def test_a_page_omits_aborted_and_open_transactions_unless_they_are_requested(
    api: httpx.Client, broker: RunningBroker
) -> None:
    topic = make(api, "committed")
    transactions = KafkaTransactions(broker.address, "http-test")
    transactions.begin(topic, b"kept")
    transactions.commit()
    transactions.begin(topic, b"not")
    transactions.abort()
    transactions.begin(topic, b"open")
    everything = page(api, topic, committed=False)
    assert values(everything) == ["kept", "not", "open"]
    assert everything["uncommitted_offsets"] == 0
    committed = page(api, topic)
    assert values(committed) == ["kept"] and committed["is_at_end"]
    assert committed["uncommitted_offsets"] == 1
    transactions.commit()
    assert values(page(api, topic, cursor=committed["cursor"])) == ["open"]


def test_long_values_are_truncated_and_flagged(api: httpx.Client) -> None:
    topic = make(api, "long")
    send(api, topic, [{"value": "€" * 1000}, {"value_json": {"a": "x" * 500}}])
    found = page(api, topic, max_value_bytes=100)["records"]
    assert found[0]["value"] == {
        "kind": "text",
        "data": "€" * 33,
        "size_bytes": 3000,
        "is_truncated": True,
    }
    assert found[1]["value"]["kind"] == "text" and found[1]["value"]["is_truncated"]
    assert page(api, topic, max_value_bytes=3000)["records"][0]["value"]["is_truncated"] is False


@pytest.mark.parametrize("count", [1, 10])
def test_a_cursor_of_a_deleted_topic_silently_continues_in_a_new_one_of_the_same_name(
    api: httpx.Client, count: int
) -> None:
    topic = make(api, f"again-{count}")
    send(api, topic, [{"value": f"old {n}"} for n in range(5)])
    cursor = page(api, topic)["cursor"]
    ok(api.delete(f"topics/{topic}"), 204)
    make(api, topic)
    send(api, topic, [{"value": f"new {n}"} for n in range(count)])
    refused = api.get(f"topics/{topic}/records", params={"cursor": cursor})
    assert refused.status_code == 404
    assert "may have been deleted and recreated" in refused.json()["detail"]
    assert len(values(page(api, topic))) == count


@pytest.mark.parametrize(
    ("query", "trimmed", "expected"),
    [
        ("first", 3, [0, 3, 4, 5]),
        ("first", 6, [0]),
        ("cursor", 3, [1, 3, 4, 5]),
        ("cursor", 6, [1]),
        ("last", 3, [3, 4, 5]),
        ("last", 6, []),
    ],
)
def test_a_page_is_an_error_if_records_are_deleted_while_it_is_read(
    api: httpx.Client,
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    trimmed: int,
    expected: list[int],
) -> None:
    topic = make(api, f"trimmed-{query}-{trimmed}")
    for number in range(6):
        send(api, topic, [{"value": f"{number} " + "x" * 180_000}])
    cursor = page(api, topic, limit=1)["cursor"]
    start = {"first": {}, "cursor": {"cursor": cursor}, "last": {"last": 6}}[query]
    trim_before_fetch(monkeypatch, read, broker, topic, 1, trimmed)
    found = page(api, topic, max_value_bytes=1, **start)
    assert [each["offset"] for each in found["records"]] == expected
    assert found["is_at_end"] and not found["is_missing_older"] and not found["problems"]
    send(api, topic, [{"value": "new"}])
    assert values(page(api, topic, cursor=found["cursor"])) == ["new"]


# What damages the third of five batches with the offsets 0 to 4: the byte and the bits to change.
DAMAGE = {
    "value": (-5, 0xFF),
    "length": (9, 0xFF),
    "an offset far above": (3, 0xFF),
    "the next offset": (7, 1),
    "an earlier offset": (7, 2),
    "a copy of the batch before": None,
}


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
@pytest.mark.parametrize("what", list(DAMAGE))
def test_damage_is_reported_and_skipped(tmp_path: Path, what: str, is_running: bool) -> None:
    data = tmp_path / "data"
    with http_broker(data) as running:
        with client_of(running) as client:
            client.base_url = client.base_url.join("/api/v1/")
            make(client, "hurt")
            for number in range(5):
                send(client, "hurt", [{"value": f"batch {number}"}])
        if not is_running:
            running.stop()
        _damage(data / "hurt-0" / "00000000000000000000.log", DAMAGE[what])
        if not is_running:
            running.start()
        with client_of(running) as client:
            client.base_url = client.base_url.join("/api/v1/")
            found = page(client, "hurt")
            assert values(found) == ["batch 0", "batch 1", "batch 3", "batch 4"]
            assert found["is_at_end"]
            [told] = found["problems"]
            assert "hurt-0" in told
            newest = page(client, "hurt", last=4)
            assert (values(newest), newest["problems"]) == (values(found), [told])
            assert not newest["is_missing_older"]


def test_newest_records_are_missing_without_a_word_if_the_time_ends_at_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay_s = [0]

    def slowly(*given: Any) -> ScanResult:
        delay_s[0] += 3600
        return scan_back(*given)

    monkeypatch.setattr(read, "stopwatch", lambda: stopwatch() + delay_s[0])
    monkeypatch.setattr(read, "scan_back", slowly)
    data = tmp_path / "data"
    with http_broker(data) as running, client_of(running) as client:
        client.base_url = client.base_url.join("/api/v1/")
        make(client, "hurt")
        for number in range(5):
            send(client, "hurt", [{"value": f"batch {number}"}])
        _damage(data / "hurt-0" / "00000000000000000000.log", DAMAGE["value"])
        found = page(client, "hurt", last=5)
    assert (values(found), found["is_missing_older"]) == ([], True)


def _damage(file: Path, bits: tuple[int, int] | None) -> None:
    size = file.stat().st_size // 5
    with file.open("r+b") as log:
        log.seek(size)
        before, third = log.read(size), bytearray(log.read(size))
        if bits is None:
            third[:] = before
        else:
            third[bits[0]] ^= bits[1]
        log.seek(2 * size)
        log.write(third)


# -- bytes and JSON ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "form", "kind", "told"),
    [
        (b'{"a": [1, 2.50]}', "auto", "json", '{"a": [1, 2.50]}'),
        (b"[" * 5000, "auto", "text", '"' + "[" * 5000 + '"'),
        (b'{"a": 1', "auto", "text", '"{\\"a\\": 1"'),
        (b"17", "auto", "text", '"17"'),
        (b'{"a": 1}', "text", "text", '"{\\"a\\": 1}"'),
        (b'{"a": 1}', "base64", "base64", '"eyJhIjogMX0="'),
        (b"\xff\x00", "auto", "base64", '"/wA="'),
        (b"a\xff", "text", "text", '"a\ufffd"'),
        (b'{"a": "\xff"}', "auto", "base64", '"eyJhIjogIv8ifQ=="'),
        (b"", "auto", "text", '""'),
    ],
)
def test_how_bytes_are_shown(data: bytes, form: PayloadFormat, kind: str, told: str) -> None:
    found = payload(data, form, 100_000)
    assert found is not None
    assert (found.kind, bytes(found.data).decode()) == (kind, told)
    json.loads(bytes(found.data))


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$.a.b", ["a", "b"]),
        ("a", ["a"]),
        ("$", []),
        ("$.lines[0].price", ["lines", 0, "price"]),
        ("['a.b'][\"c d\"]", ["a.b", "c d"]),
    ],
)
def test_paths_are_parsed_into_steps(path: str, steps: list[str | int]) -> None:
    assert parse_path(path) == steps


def test_paths_select_values_in_documents() -> None:
    document = {"a": [{"b": None}], "0": "zero"}
    assert at_path(document, ["a", 0, "b"]) == (True, None)
    assert at_path(document, [0]) == (True, "zero")
    assert at_path(document, ["a", 1]) == (False, None)
    assert at_path(document, ["a", "b"]) == (False, None)


def test_a_record_without_key_and_value_matches_no_filter() -> None:
    empty = Record("t", 0, 0, 0, None, None)
    for wanted in (RecordFilter(value="x"), RecordFilter(key="x"), RecordFilter(path="$")):
        test = wanted.test()
        assert test is not None and not test(empty)
    assert RecordFilter().test() is None
