"""Progress reports to a secured HTTP listener, which the reporter finds over the Kafka protocol."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.secured_broker import READ, SecuredBroker
from tests.support.waiting import eventually

from strandlog.broker.access.permission import CLUSTER, CLUSTER_NAME, GROUP, Operation

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.client.http.login import HttpLogin
from strandlog.spark.monitoring.progress import QueryReport
from strandlog.spark.monitoring.report_address import address_finder
from strandlog.spark.monitoring.reporter import Reporter

REPORT = QueryReport("query", 1, 10, 5.0, 200, 0, 0, 0, None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"http.listener": "https://127.0.0.1:0", "http.authentication": "required"}
    folder: Path = tmp_path_factory.mktemp("secured")
    with SecuredBroker(folder, settings, http=True) as running:
        for user in ("pipeline", "stranger"):
            running.add_user(user, f"{user}'s password")
            find = (Operation.DESCRIBE_CONFIGS.on(CLUSTER), CLUSTER_NAME)
            running.allow(user, find)
        running.allow("pipeline", (READ.on(GROUP), "flights"))
        yield running


def reporter(broker: SecuredBroker, user: str) -> Reporter:
    client = broker.client(user)
    return Reporter(
        "flights", address_finder(None, broker.address, client), login=HttpLogin(client)
    )


def test_a_pipeline_reports_over_tls_as_its_user(broker: SecuredBroker) -> None:
    running = reporter(broker, "pipeline")
    running.add(REPORT)
    running.set_state("running")
    url = f"https://localhost:{broker.server.listener('http').rpartition(':')[2]}"
    broker.add_user("admin", "admin's password")
    trust = ssl.create_default_context(cafile=str(broker.authority.path))
    with httpx.Client(base_url=url, verify=trust, auth=("admin", "admin's password")) as http:

        def shown() -> object:
            found = http.get("/api/v1/pipelines/flights")
            return found.json() if found.status_code == 200 else None

        status = eventually(shown, "a report arrives")
    running.end("stopped")
    assert isinstance(status, dict)
    assert [query["last"]["name"] for query in status["queries"]] == ["query"]


def test_a_report_without_permission_is_one_warning(
    broker: SecuredBroker, caplog: pytest.LogCaptureFixture
) -> None:
    running = reporter(broker, "stranger")
    with caplog.at_level(logging.WARNING, "strandlog.spark"):
        running.add(REPORT)
        eventually(lambda: "cannot report the progress" in caplog.text, "a warning")
        running.end("stopped")
    assert "HTTP 403" in caplog.text
    assert caplog.text.count("cannot report the progress") == 1
    assert "stranger's password" not in caplog.text
