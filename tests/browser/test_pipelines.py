"""The pipeline pages; one pipeline runs on a real Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect
from tests.browser.browsing import Tab
from tests.browser.feeding import make, report, send
from tests.support.server import RunningBroker

PIPELINE = """
[pipeline]
name = "delays"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE"

[[sink]]
from = "flights"
parquet = "{folder}/lake"
"""


def test_an_unknown_pipeline_is_reported(tab: Tab) -> None:
    tab.expect_trouble("status of 404")
    tab.open("#/pipelines/nowhere")
    expect(tab.page.get_by_role("alert")).to_contain_text("nowhere")


def test_reports_are_drawn_batch_by_batch(tab: Tab, api: httpx.Client) -> None:
    def tell(batch: int) -> None:
        by_hour = {"name": "by_hour", "batch_id": batch, "rows": 500, "rows_per_second": 250.5}
        by_hour |= {"batch_ms": 1234, "lag": 1500 - batch, "state_rows": 42, "late_rows": 1}
        enriched = {"name": "enriched", "batch_id": batch, "rows": 10, "batch_ms": 80}
        report(api, "flights", by_hour, enriched, ui_url="http://127.0.0.1:4040")

    for batch in range(3):
        tell(batch)
    tab.open("#/pipelines")
    row = tab.row("Pipelines", "flights")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("1.23 s")
    expect(row).to_contain_text("1,498")
    expect(row.get_by_role("link", name="Spark UI")).to_have_attribute(
        "href", "http://127.0.0.1:4040"
    )
    row.get_by_role("link", name="flights").click()
    expect(tab.heading()).to_have_text("flights")
    query = tab.row("Queries", "by_hour")
    expect(query).to_contain_text("251 rows/s")
    expect(query).to_contain_text("42 rows")
    expect(query.get_by_role("cell", name="1 row", exact=True)).to_be_visible()
    expect(tab.page.get_by_role("columnheader", name="Dropped as late")).to_be_visible()
    expect(tab.panel("Rows per second").locator(".scatterlayer .js-line")).to_have_count(2)
    tab.keep_picture("pipeline", is_whole=True)
    tell(3)
    expect(query).to_contain_text("1,497")


def test_a_failed_pipeline_shows_its_error(tab: Tab, api: httpx.Client) -> None:
    report(api, "broken", state="failed", error="Spark <i>does not</i> start: no memory")
    tab.open("#/pipelines/broken")
    banner = tab.page.get_by_role("alert").filter(has_text="Spark")
    expect(banner).to_have_text("Spark <i>does not</i> start: no memory")
    expect(tab.page.locator(".sub")).to_contain_text("failed")
    expect(tab.panel("Queries")).to_contain_text("No micro-batch yet")


@pytest.mark.long
def test_a_spark_pipeline_appears_without_a_reload(
    tab: Tab, api: httpx.Client, broker: RunningBroker, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="a pipeline needs the spark extra")
    make(api, "flights")
    send(api, "flights", *({"value": f'{{"carrier": "AA", "delay": {n}}}'} for n in range(20)))
    file = tmp_path / "delays.toml"
    file.write_text(PIPELINE.format(address=broker.address, folder=tmp_path))
    tab.open("#/pipelines")
    run = [sys.executable, "-m", "strandlog", "pipeline", "run", str(file), "--available-now"]
    with subprocess.Popen(
        [*run, "--master", "local[1]"], stderr=subprocess.PIPE, text=True
    ) as running:
        _, said = running.communicate(timeout=200)
    assert running.returncode == 0, said
    row = tab.row("Pipelines", "delays")
    expect(row).to_contain_text("stopped")
    row.get_by_role("link", name="delays").click()
    expect(tab.heading()).to_have_text("delays")
    expect(tab.table("Queries").locator("tbody tr")).to_have_count(1)
    expect(tab.table("Queries").locator("tbody tr")).to_contain_text("20")
    tab.keep_picture("pipeline-on-spark")
