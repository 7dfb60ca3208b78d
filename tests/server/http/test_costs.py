"""Limits on the work and memory that a small HTTP request can cause."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.support.http_client import (
    client_of,
    http_broker,
    ok,
    problem,
)
from tests.support.server import RunningBroker

from strandlog.broker.reads.fetch import FetchPartitionData
from strandlog.clock import stopwatch
from strandlog.config.limits.http import (
    HTTP_JSON_VALUE_BYTES,
    HTTP_PARSED_VALUE_ITEMS,
    HTTP_SMALL_BODY_BYTES,
)
from strandlog.config.tables.broker import broker_settings
from strandlog.model import Record
from strandlog.record.builder import build_batch
from strandlog.server.http.body_limit import (
    LARGE_ANSWER_BYTES,
    BodyLimit,
)
from strandlog.server.http.records.filter import RecordFilter
from strandlog.server.http.records.payload import (
    TooLargeToParseError,
    is_json,
    json_records,
    parsed,
)
from strandlog.server.http.records.scan import ScanLimits, scan
from strandlog.testing.server import ServerThread

MANY_ITEMS = b'{"a":[' + b"[]," * HTTP_PARSED_VALUE_ITEMS + b"0]}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("costs") / "data") as running:
        yield running


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as opened:
        opened.base_url = opened.base_url.join("/api/v1/")
        yield opened


def record(offset: int, value: bytes) -> Record:
    return Record("t", 0, offset, 0, None, value, ())


# -- values in JSON --------------------------------------------------------------------------------


def test_a_search_by_path_reports_values_that_it_did_not_search(api: httpx.Client) -> None:
    ok(api.post("topics", json={"name": "wide"}), 201)
    records = [{"value": MANY_ITEMS.decode()}, {"value": '{"a": 1}'}]
    ok(api.post("topics/wide/records", json={"records": records}))
    found = ok(api.get("topics/wide/records", params={"path": "$.a"}))
    assert [each["offset"] for each in found["records"]] == [1]
    [words] = found["problems"]
    assert "`path` did not search 1 value from offset 0 on" in words


def test_values_of_very_many_items_are_not_parsed() -> None:
    with pytest.raises(TooLargeToParseError):
        parsed(MANY_ITEMS)
    assert parsed(b'{"a": [1, 2]}') == {"a": [1, 2]}
    text = b"," * HTTP_PARSED_VALUE_ITEMS * 2
    assert parsed(text) != text  # what is no JSON is not counted


def test_json_is_shown_as_json_up_to_a_size_and_then_as_text() -> None:
    assert is_json(b"[" + b" " * (HTTP_JSON_VALUE_BYTES - 2) + b"]")
    assert not is_json(b"[" + b" " * HTTP_JSON_VALUE_BYTES + b"]")


@pytest.mark.parametrize("data", [b'["\xff"]', b"[1,]", b"[" * 100_000, b"[1] 2", b""])
def test_a_value_that_is_not_json_is_not_shown_as_json(data: bytes) -> None:
    assert not is_json(data)


def test_a_full_page_truncates_later_values() -> None:
    records = [record(offset, b"\0" * 1000) for offset in range(5)]
    found = json_records(records, "text", 1000, total_bytes=10_000)
    sizes = [len(bytes(each.value.data)) for each in found if each.value is not None]
    assert sizes[0] > 5000  # a NUL takes six characters
    assert sum(sizes) < 20_000
    assert [each.value.is_truncated for each in found if each.value is not None][-1]


def test_a_scan_stops_at_the_record_that_exceeds_its_byte_limit() -> None:
    data = build_batch(0, [b"v" * 1000] * 100)
    answer = FetchPartitionData("t", 0, None, 100, 0, memoryview(data))
    bounds = ScanLimits(100, 1000, 2500, stopwatch() + 60, 1 << 20)
    piece = scan(answer, 0, RecordFilter(value="x").test(), bounds)
    assert (piece.scanned_records, piece.next_offset) == (3, 3)


# -- bodies and answers ----------------------------------------------------------------------------


def test_a_large_body_without_records_is_rejected(api: httpx.Client) -> None:
    config = {str(number): 1 for number in range(HTTP_SMALL_BODY_BYTES // 5)}
    body = json.dumps({"name": "x", "config": config}).encode()
    json_type = {"content-type": "application/json"}
    with contextlib.suppress(httpx.WriteError):  # the server closes without having read all of it
        words = problem(api.post("topics", content=body, headers=json_type), 413)
        assert str(HTTP_SMALL_BODY_BYTES) in words
    ok(api.get("topics"))


def test_a_response_waits_until_there_is_memory_for_it() -> None:
    async def run() -> None:
        bodies = BodyLimit(
            broker_settings({"http.queued.max.response.bytes": 4 * LARGE_ANSWER_BYTES})
        )
        rooms = [await bodies.room() for _ in range(4)]
        one_more = asyncio.ensure_future(bodies.room())
        for _ in range(10):  # passes of the event loop
            await asyncio.sleep(0)
        assert not one_more.done()
        for room in rooms[:2]:
            bodies.answer(room, b"small", 200, "text/plain")
        (await one_more).release()

    asyncio.run(run())


def test_a_sent_response_releases_its_memory() -> None:
    async def run() -> None:
        bodies = BodyLimit(broker_settings({}))
        answer = bodies.answer(await bodies.room(), b"x" * 200_000, 200, "text/plain")
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("nothing is received")

        await answer({"type": "http", "method": "GET"}, receive, send)
        assert b"".join(each.get("body", b"") for each in sent) == b"x" * 200_000
        assert bodies.held_answer_bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_plotly_file_arrives_complete_with_and_without_gzip(
    broker: RunningBroker, encoding: str
) -> None:
    with client_of(broker) as client:
        answer = client.get("/console/plotly.min.js", headers={"accept-encoding": encoding})
    assert answer.status_code == 200
    assert answer.text.rstrip().endswith(";")
    assert len(answer.text) > 1_000_000
