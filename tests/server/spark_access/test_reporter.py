"""The reporter of a pipeline, also with a server that does not respond, rejects or restarts."""

from __future__ import annotations

import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.spark_access.report_server import disconnect, listening
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, http_address, http_broker, ok
from tests.support.waiting import eventually

pytest.importorskip("pyspark", reason="reports come out of Spark")

from strandlog.client.http.address import HttpAddress
from strandlog.config.limits.http import HTTP_PIPELINE_MAX_QUERIES
from strandlog.errors import UnreachableError
from strandlog.spark.monitoring import reporter as module
from strandlog.spark.monitoring.progress import QueryReport
from strandlog.spark.monitoring.report_address import address_finder, parse_report
from strandlog.spark.monitoring.reporter import Reporter

REPORT = QueryReport("orders", 3, 1200, 4000.4, 300, 17, 5, 2, "2013-01-01T00:00:00.000Z")


@pytest.fixture(autouse=True)
def _short_pauses_and_long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(module, "RESPONSE_SECONDS", 60)
    monkeypatch.setattr(module, "END_SECONDS", 60)


@pytest.fixture
def reporters() -> Iterator[Callable[..., Reporter]]:
    made: list[Reporter] = []

    def make(address: str | None, name: str = "flights", **more: Any) -> Reporter:
        given = None if address is None else parse_report(address)
        made.append(Reporter(name, lambda: given, **more))
        return made[-1]

    yield make
    for each in made:
        each.end("stopped")


# -- all is well ---------------------------------------------------------------------------------


def test_a_broker_accepts_and_shows_what_is_reported(
    tmp_path: Path, reporters: Callable[..., Reporter]
) -> None:
    with http_broker(tmp_path / "data") as broker, client_of(broker) as client:
        reporter = reporters(http_address(broker), "a/b é?")
        reporter.set_state("running", ui_url="http://127.0.0.1:4040")
        reporter.add(REPORT)
        for odd in (math.nan, math.inf):
            reporter.add(REPORT._replace(name=f"odd {odd}" + "x" * 300, rows_per_second=odd))
        reporter.add(REPORT._replace(name="long", watermark="x" * 300, lag=None))
        path = "/api/v1/pipelines/a%2Fb%20%C3%A9%3F"
        eventually(lambda: client.get(path).status_code == 200, "a report arrives")
        assert ok(client.get(path))["ui_url"] == "http://127.0.0.1:4040"
        reporter.end("failed", "why: " + "x" * 5000)
        shown = ok(client.get(path))
    assert (shown["name"], shown["state"]) == ("a/b é?", "failed")
    assert shown["error"].startswith("why: x")
    assert shown["ui_url"] is None, "Spark's pages end with it"
    queries = {query["last"]["name"]: query["last"] for query in shown["queries"]}
    assert len(queries) == 4
    assert queries["orders"] == REPORT._asdict()
    assert [query["rows_per_second"] for name, query in queries.items() if "odd" in name] == [0, 0]


def test_late_rows_of_earlier_batches_are_not_shown(
    tmp_path: Path, reporters: Callable[..., Reporter]
) -> None:
    """A report has only the newest batch of a query: `late` was nearly always 0 in the console."""
    with http_broker(tmp_path / "data") as broker, client_of(broker) as client:
        reporter = reporters(http_address(broker), "windows")
        for late_rows in (2, 0, 3):
            reporter.add(REPORT._replace(late_rows=late_rows))
        reporter.end("stopped")
        [query] = ok(client.get("/api/v1/pipelines/windows"))["queries"]
    assert query["last"]["late_rows"] == 5


def test_a_session_that_has_run_many_queries_still_reports_new_ones(
    tmp_path: Path, reporters: Callable[..., Reporter]
) -> None:
    """The 33rd query of a session was never shown."""
    count = HTTP_PIPELINE_MAX_QUERIES + 20
    with http_broker(tmp_path / "data") as broker, client_of(broker) as client:
        reporter = reporters(http_address(broker), "notebook")
        for number in range(count):
            reporter.add(REPORT._replace(name=f"query {number}"))
        reporter.end("stopped")
        shown = ok(client.get("/api/v1/pipelines/notebook"))
    names = {query["last"]["name"] for query in shown["queries"]}
    newest = range(count - HTTP_PIPELINE_MAX_QUERIES, count)
    assert names == {f"query {number}" for number in newest}


def test_reports_of_an_interval_are_sent_together(
    reporters: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 3600)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 3600)
    pauses: list[tuple[float, bool]] = []
    pause = Reporter._pause

    def recorded_pause(self: Reporter, seconds: float) -> None:
        pause(self, seconds)
        pauses.append((seconds, self._is_over))

    monkeypatch.setattr(Reporter, "_pause", recorded_pause)
    with listening() as server:
        reporter = reporters(server.address)
        reporter.set_state("running")
        eventually(lambda: server.reports, "the first report arrives")
        for number in range(200):
            reporter.add(REPORT._replace(batch_id=number))
            reporter.add(REPORT._replace(name="other", batch_id=number))
        reporter.end("stopped")
    assert pauses == [(3600, True)], "only the end cuts the pause after the first report short"
    assert [len(each["queries"]) for each in server.reports] == [0, 2]
    assert [each["state"] for each in server.reports] == ["running", "stopped"]
    assert [each["batch_id"] for each in server.reports[1]["queries"]] == [199, 199]


def test_a_report_is_sent_only_once(reporters: Callable[..., Reporter]) -> None:
    with listening() as server:
        reporter = reporters(server.address)
        reporter.add(REPORT)
        eventually(lambda: len(server.reports) == 1, "a report arrives")
        reporter.add(REPORT._replace(name="other"))
        eventually(lambda: len(server.reports) == 2, "a report arrives")
        reporter.end("stopped")
    names = [[query["name"] for query in each["queries"]] for each in server.reports]
    assert names == [["orders"], ["other"], []]
    assert set(server.paths) == {"/api/v1/pipelines/flights/progress"}


def test_an_idle_batch_does_not_hide_the_rate_of_the_one_before(
    reporters: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 3600)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 3600)
    with listening() as server:
        reporter = reporters(server.address)
        reporter.set_state("running")
        eventually(lambda: server.reports, "the first report arrives")
        reporter.add(REPORT)
        idle = REPORT._replace(batch_id=4, rows=0, rows_per_second=0.0, batch_ms=9, lag=0)
        reporter.add(idle._replace(late_rows=0))
        reporter.end("stopped")
        [query] = server.reports[1]["queries"]
        assert query == {**REPORT._asdict(), "batch_id": 4, "lag": 0}


def has_thread(name: str) -> bool:
    return any(each.name == f"strandlog-report-{name}" for each in threading.enumerate())


def test_an_idle_pipeline_sends_heartbeats(
    reporters: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.1)
    is_alive = True
    with listening() as server:
        reporter = reporters(server.address, "idle", is_alive=lambda: is_alive)
        reporter.set_state("running")
        reporter.add(REPORT)
        eventually(lambda: len(server.reports) >= 4, "a report arrives")
        assert sum(len(each["queries"]) for each in server.reports) == 1
        is_alive = False
        eventually(lambda: server.reports[-1]["state"] == "stopped", "a report arrives")
        eventually(lambda: not has_thread("idle"), "the thread ends")
        reporter.add(REPORT)
        reporter.set_state("running")
        assert not has_thread("idle")


# -- trouble -------------------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_unreachable_server_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    attempts = 0

    def find() -> HttpAddress:
        nonlocal attempts
        attempts += 1
        return HttpAddress(False, "127.0.0.1", port)

    reporter = Reporter("flights", find)
    reporter.add(REPORT)
    eventually(lambda: attempts >= 4, "the reporter tries again")
    reporter.end("stopped")
    [warning] = warnings(caplog)
    assert f"cannot report the progress of flights to http://127.0.0.1:{port}" in warning


def test_adding_reports_does_not_wait_for_the_network() -> None:
    is_looked_up, gate = threading.Event(), threading.Event()
    was_opened: list[bool] = []

    def find() -> None:
        is_looked_up.set()
        was_opened.append(gate.wait(60))

    reporter = Reporter("flights", find)
    reporter.set_state("running")
    assert is_looked_up.wait(60)
    for number in range(1000):
        reporter.add(REPORT._replace(batch_id=number))
    gate.set()
    reporter.end("stopped")
    assert was_opened == [True], "all reports were added while the look-up waited"


def test_a_server_that_does_not_respond_causes_a_warning(
    reporters: Callable[..., Reporter],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESPONSE_SECONDS", 0.1)
    with listening() as server:
        server.gate.clear()
        reporters(server.address).add(REPORT)
        eventually(lambda: warnings(caplog), "a time-out")
    assert "timed out" in warnings(caplog)[0]


def test_the_end_of_a_pipeline_does_not_wait_for_a_server_that_does_not_respond(
    reporters: Callable[..., Reporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    with listening() as server:
        server.gate.clear()
        reporter = reporters(server.address, "unanswered")
        reporter.add(REPORT)
        reporter.end("stopped")
        assert has_thread("unanswered"), "the thread still waits for the response"


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_server_that_rejects_reports_causes_one_warning(
    status: int, reporters: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as server:
        server.status = status
        reporter = reporters(server.address)
        reporter.add(REPORT)
        eventually(lambda: server.rejected >= 3, "a report arrives")
        server.status = 204
        eventually(lambda: server.reports, "a report arrives")
        reporter.end("stopped")
    [warning] = warnings(caplog)
    assert f"HTTP {status}" in warning
    assert [each["name"] for each in server.reports[0]["queries"]] == ["orders"]
    assert server.reports[-1]["state"] == "stopped"


def test_a_broker_that_restarts_on_another_port_receives_all_reports_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place: list[HttpAddress] = []

    def find() -> HttpAddress:
        if not place:
            raise UnreachableError("no connection to the broker")
        return place[0]

    reporter = Reporter("flights", find)
    try:
        with listening() as first:
            place[:] = [HttpAddress(False, "127.0.0.1", first.server_port)]
            reporter.add(REPORT)
            reporter.add(REPORT._replace(name="other"))
            eventually(lambda: first.reports, "a report arrives")
        place.clear()
        reporter.add(REPORT._replace(batch_id=4))
        eventually(lambda: warnings(caplog), "a report arrives")
        with listening() as second:
            place[:] = [HttpAddress(False, "127.0.0.1", second.server_port)]
            eventually(lambda: second.reports, "a report arrives")
            found = {each["name"]: each["batch_id"] for each in second.reports[0]["queries"]}
            assert found == {"orders": 4, "other": 3}
            reporter.end("stopped")
            assert second.reports[-1]["state"] == "stopped"
    finally:
        reporter.end("stopped")
    assert len(warnings(caplog)) == 1


@pytest.mark.slow
def test_a_killed_broker_shows_the_pipeline_again_after_its_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", listeners=("--no-grpc", "--http-port", "0"))
    broker.start()
    reporter = Reporter("flights", address_finder(None, broker.address, {}))

    def queries() -> list[str]:
        with client_of(broker) as client:
            found = client.get("/api/v1/pipelines/flights")
        shown = found.json()["queries"] if found.status_code == 200 else []
        return [query["last"]["name"] for query in shown]

    try:
        reporter.add(REPORT)
        reporter.add(REPORT._replace(name="other"))
        eventually(lambda: queries() == ["orders", "other"], "a report arrives")
        broker.stop(signal.SIGKILL)
        broker.start()  # on the same port for Kafka, and another one for HTTP
        reporter.add(REPORT)
        eventually(lambda: queries() == ["orders", "other"], "a report arrives")
    finally:
        reporter.end("stopped")
        assert broker.stop() == 0


def test_a_closed_connection_is_reopened_without_a_warning(
    reporters: Callable[..., Reporter],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = 0
    wait_for_news = Reporter._wait_for_news

    def counted(self: Reporter) -> bool:
        nonlocal waits
        waits += 1
        return wait_for_news(self)

    monkeypatch.setattr(Reporter, "_wait_for_news", counted)
    with listening() as server:
        reporter = reporters(server.address)
        reporter.add(REPORT)
        eventually(lambda: server.reports and waits == 2, "the reporter has the response")
        for connection in server.connections:
            disconnect(connection)
        reporter.add(REPORT._replace(batch_id=4))
        eventually(lambda: len(server.reports) == 2, "a report arrives")
    assert warnings(caplog) == []


def test_an_undelivered_last_report_is_no_error(
    reporters: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    with listening() as server:
        reporter = reporters(server.address)
        reporter.add(REPORT)
        eventually(lambda: server.reports, "a report arrives")
    reporter.end("stopped")
    assert warnings(caplog) == []


def test_without_an_http_listener_nothing_is_sent(
    reporters: Callable[..., Reporter], caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporters(None)  # a broker without an HTTP listener
    reporter.set_state("running")
    reporter.add(REPORT)
    reporter.end("stopped")
    off = Reporter("flights", None)
    before = threading.active_count()
    off.set_state("running")
    off.add(REPORT)
    assert threading.active_count() == before
    off.end("stopped")
    assert warnings(caplog) == []
