"""The overview and the broker page, also with a broker that has problems."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect
from tests.browser.browsing import PHONE, Tab, new_tab
from tests.browser.feeding import commit, make, send, steady
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import http_address, http_broker, ok
from tests.support.server import RunningBroker
from tests.support.waiting import eventually

from strandlog.testing.server import ServerThread


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[ServerThread]:
    """A new broker that says that its disk is full."""
    with http_broker(tmp_path / "data", {"log.min.free.bytes": str(2**60)}) as running:
        yield running


def test_an_empty_broker_shows_first_steps_and_its_problems(
    browser: Browser, full_disk: BrokerProcess
) -> None:
    with new_tab(browser, http_address(full_disk)) as tab:
        tab.open()
        expect(tab.page.get_by_text("No topics yet")).to_be_visible()
        expect(tab.page.get_by_text(f"-b {full_disk.address}")).to_be_visible()
        expect(tab.page.get_by_role("alert").first).to_contain_text("Not ready:")
        expect(tab.page.get_by_role("alert").first).to_contain_text("bytes free")
        expect(tab.panel("Busiest topics")).to_be_hidden()
        tab.keep_picture("empty")
        tab.page.get_by_role("link", name="Create topic").click()
        expect(tab.dialog("Create topic")).to_be_visible()
        tab.page.keyboard.press("Escape")
        expect(tab.panel("Topics")).to_contain_text("No topics yet")
        tab.page.get_by_role("link", name="Groups").click()
        expect(tab.panel("Groups")).to_contain_text("No groups yet")
        tab.page.get_by_role("link", name="Pipelines").click()
        expect(tab.panel("Pipelines")).to_contain_text("strandlog pipeline run")


def test_the_empty_pages_scroll_sideways_on_a_phone(
    browser: Browser, full_disk: BrokerProcess
) -> None:
    with new_tab(browser, http_address(full_disk), PHONE) as phone:
        for route in ("#/", "#/topics", "#/groups", "#/pipelines"):
            phone.open(route)
            wide = phone.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, route


def test_the_first_command_that_the_console_suggests_fails(
    browser: Browser, tmp_path: Path
) -> None:
    """It produced to a topic that did not exist."""
    with (
        http_broker(tmp_path / "data") as running,
        new_tab(browser, http_address(running)) as tab,
    ):
        tab.open()
        suggested = tab.page.locator(".command code").inner_text()
        assert suggested.startswith("echo hello | strandlog produce greetings ")
        command = suggested.replace("strandlog", f"{sys.executable} -m strandlog", 1)
        subprocess.run(command, shell=True, check=True)
        expect(tab.row("Busiest topics", "greetings")).to_be_visible()


def test_the_overview_shows_the_problems_of_the_broker(tab: Tab, api: httpx.Client) -> None:
    """Its page showed why a broker was not ready, but not damage that maintenance had found."""
    problems = [f"segment {number} is damaged" for number in range(5)]
    # The page polls: a handler that asked the broker could still run while the page closes.
    cluster = api.get("/api/v1/cluster").json() | {"problems": problems}

    def with_problems(route: Route) -> None:
        route.fulfill(json=cluster)

    tab.page.route("**/api/v1/cluster", with_problems)
    tab.open()
    banner = tab.page.get_by_role("status").filter(has_text="segment 0 is damaged")
    expect(banner).to_contain_text("5 problems")
    expect(banner).to_contain_text("and 2 more")
    banner.get_by_role("link", name="5 problems").click()
    expect(tab.heading()).to_have_text("Broker")
    tab.page.unroute_all(behavior="wait")


def test_figures_and_charts_follow_the_traffic(
    tab: Tab, api: httpx.Client, broker: RunningBroker
) -> None:
    make(api, "busy")
    send(api, "busy", {"value": "first"})
    commit(api, "watcher", "busy", 0)
    tab.open()
    expect(tab.page.locator("#connection")).to_have_text("Live")
    expect(tab.figure("Consumer lag")).to_contain_text("1 group")
    for title in ("Throughput", "Records and requests per second", "Lag by group"):
        chart = tab.panel(title).locator(".chart")
        expect(chart.locator("path.js-line").first).to_be_attached()
        expect(chart).to_have_attribute("role", "img")
    with steady(broker, "busy", b"x" * 1000):
        expect(tab.figure("In")).to_contain_text("kB/s")
        expect(tab.row("Busiest topics", "busy")).to_contain_text("kB/s")
        # The unit of an axis is that of the figures.
        largest = tab.panel("Throughput").locator(".ytick text").last
        expect(largest).to_have_text(re.compile(r"^\d+ [kM]B/s$"))
    end = ok(api.get("/api/v1/topics/busy"))["summary"]["offsets"]
    expect(tab.row("Busiest topics", "busy")).to_contain_text(f"{end:,}")
    expect(tab.row("Groups with the highest lag", "watcher")).to_contain_text(f"{end:,}")
    expect(tab.figure("Consumer lag")).to_contain_text(f"{end:,}")
    tab.row("Groups with the highest lag", "watcher").get_by_role("link").click()
    expect(tab.heading()).to_have_text("watcher")


def test_the_groups_of_spark_sinks_count_as_consumer_lag(tab: Tab, api: httpx.Client) -> None:
    """Their lag is meaningless: they were the highest lag of the overview."""
    make(api, "sunk")
    send(api, "sunk", {"value": "first"})
    commit(api, "reader", "sunk", 0)
    commit(api, "strandlog-spark-query", "sunk", 0)
    tab.open()
    expect(tab.row("Groups with the highest lag", "reader")).to_be_visible()
    expect(tab.row("Groups with the highest lag", "strandlog-spark-query")).to_have_count(0)
    others = len(ok(api.get("/api/v1/groups"))["groups"])
    expect(tab.figure("Consumer lag")).to_contain_text(re.compile(rf"records, {others} groups?\b"))
    tab.open("#/groups")
    expect(tab.row("Groups", "reader")).to_be_visible()
    expect(tab.row("Groups", "strandlog-spark-query")).to_have_count(0)
    tab.page.get_by_label("Show groups of Spark sinks").check()
    expect(tab.row("Groups", "strandlog-spark-query")).to_be_visible()


def test_charts_are_blank_in_the_first_minute(tab: Tab, api: httpx.Client) -> None:
    """A page knew only what it had seen. The broker keeps a history."""
    make(api, "charted")
    commit(api, "charter", "charted", 0)

    def is_kept() -> bool:
        found = ok(api.get("/api/v1/history"))
        groups = {each["group"] for each in found["lag"] if len(each["points"]) > 1}
        return len(found["rates"]) > 1 and "charter" in groups

    eventually(is_kept, "the broker has a history")
    tab.expect_trouble("ERR_FAILED")
    tab.page.route("**/api/v1/live?*", lambda route: route.abort())  # nothing new arrives
    tab.open()
    for title in ("Throughput", "Records and requests per second", "Lag by group"):
        expect(tab.panel(title).locator("path.js-line").first).to_be_attached()
    tab.open("#/topics/charted")
    expect(tab.panel("Records in per second").locator("path.js-line")).to_be_attached()


def test_an_error_in_drawing_is_shown_as_a_missing_package(tab: Tab) -> None:
    broken = "globalThis.Plotly = { react() { throw new Error('no such axis'); }, purge() {} };"
    tab.page.route(
        "**/console/plotly.min.js",
        lambda route: route.fulfill(content_type="text/javascript", body=broken),
    )
    tab.open()
    chart = tab.panel("Throughput").locator(".chart")
    expect(chart).to_contain_text("no such axis")
    expect(chart).not_to_contain_text("pip install")


def test_charts_without_the_plotly_package_say_what_to_install(tab: Tab) -> None:
    tab.expect_trouble("status of 404")
    tab.page.route("**/console/plotly.min.js", lambda route: route.fulfill(status=404))
    tab.open()
    chart = tab.panel("Throughput").locator(".chart")
    expect(chart).to_contain_text("pip install 'strandlog[console]'")


def test_the_broker_page_shows_listeners_requests_and_settings(
    tab: Tab, broker: RunningBroker
) -> None:
    tab.open("#/broker")
    expect(tab.figure("Kafka")).to_contain_text(broker.address)
    expect(tab.figure("Kafka")).to_contain_text("Ready")
    expect(tab.row("HTTP requests", "cluster").first).to_be_visible()
    tab.page.get_by_label("Filter").fill("message.max")
    expect(tab.table("Settings").locator("tbody tr")).to_have_count(1)
    expect(tab.row("Settings", "message.max.bytes")).to_contain_text("200000")
    tab.page.get_by_label("Filter").fill("")
    tab.page.get_by_label("Only changed from the default").check()
    expect(tab.row("Settings", "message.max.bytes")).to_be_visible()
    expect(tab.row("Settings", "log.retention.ms")).to_have_count(0)
    tab.keep_picture("broker", is_whole=True)


def test_the_console_reports_a_lost_broker_and_reconnects(browser: Browser, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listeners = ("--no-grpc", "--http-port", str(port))
    running = BrokerProcess(tmp_path / "data", listeners=listeners)
    running.start()
    try:
        with new_tab(browser, f"http://127.0.0.1:{port}") as tab:
            tab.expect_trouble("ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|status of 503")
            tab.open("#/topics")
            expect(tab.page.locator("#connection")).to_have_text("Live")
            running.stop()
            expect(tab.page.locator("#connection")).to_have_text("No connection")
            stale = tab.page.get_by_role("status").filter(has_text="Not up to date")
            expect(stale).to_contain_text("The broker does not respond. Is it running?")
            expect(tab.panel("Topics")).to_be_visible()
            tab.page.get_by_role("link", name="Groups").click()
            expect(tab.page.get_by_role("alert")).to_contain_text("Is it running?")
            tab.keep_picture("no-connection")
            running.start()
            expect(tab.page.locator("#connection")).to_have_text("Live")
            expect(tab.panel("Groups")).to_contain_text("No groups yet")
            tab.page.get_by_role("link", name="Topics").click()
            expect(tab.panel("Topics")).to_be_visible()
            expect(stale).to_have_count(0)
    finally:
        if running.process is not None:
            running.stop()


def test_settings_are_never_shown_when_the_first_try_failed(tab: Tab) -> None:
    tab.expect_trouble("ERR_FAILED")
    tab.page.route("**/api/v1/broker/settings", lambda route: route.abort(), times=1)
    tab.page.goto(f"{tab.address}/#/broker")
    expect(tab.page.get_by_role("alert")).to_contain_text("Is it running?")
    tab.click("Try again")
    expect(tab.row("Settings", "message.max.bytes").first).to_be_visible()
