"""Every page in light and dark through axe: labels, contrast, roles, order of headings."""

from __future__ import annotations

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from tests.browser.browsing import Tab, new_tab
from tests.browser.feeding import commit, make, report, send
from tests.support.http_client import http_address
from tests.support.server import RunningBroker

PAGES = {
    "overview": "#/",
    "topics": "#/topics",
    "topic": "#/topics/flights",
    "records": "#/topics/flights/records",
    "produce": "#/topics/flights/produce",
    "groups": "#/groups",
    "group": "#/groups/billing",
    "pipelines": "#/pipelines",
    "pipeline": "#/pipelines/delays",
    "broker": "#/broker",
    "nowhere": "#/nowhere",
}


@pytest.fixture(scope="module", autouse=True)
def filled(api: httpx.Client) -> None:
    make(api, "flights", 2, **{"retention.ms": "3600000"})
    headers = [{"name": "source", "value": "test"}]
    value = {"carrier": "AA", "delay": 4.5, "is_late": True, "gate": None}
    send(api, "flights", {"key": "AA", "value_json": value, "headers": headers}, {"key": "null"})
    commit(api, "billing", "flights", 1)
    report(api, "delays", {"name": "by_hour", "rows": 5, "batch_ms": 1200, "lag": 3})
    report(api, "failing", state="failed", error="no memory")


def findings(tab: Tab) -> list[str]:
    """What axe finds, with the elements."""
    found = Axe().run(tab.page).response["violations"]
    return [f"{each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in found]


def open_everything(tab: Tab, name: str) -> None:
    if name == "records":
        tab.page.get_by_role("button", name="Partition 0, offset 0").click()
    if name in ("overview", "groups", "group", "pipeline"):
        expect(tab.page.locator(".main-svg").first).to_be_visible()


THEMES = [pytest.param(False, id="light"), pytest.param(True, id="dark", marks=pytest.mark.long)]


@pytest.mark.parametrize("is_dark", THEMES)
def test_axe_finds_nothing(browser: Browser, broker: RunningBroker, is_dark: bool) -> None:
    wrong = {}
    with new_tab(browser, http_address(broker), is_dark=is_dark) as tab:
        for name, route in PAGES.items():
            tab.open(route)
            open_everything(tab, name)
            tab.keep_picture(f"{name}-{'dark' if is_dark else 'light'}", is_whole=True)
            if found := findings(tab):
                wrong[name] = found
    assert not wrong


@pytest.mark.parametrize("is_dark", THEMES)
def test_axe_finds_nothing_in_dialogs(
    browser: Browser, broker: RunningBroker, is_dark: bool
) -> None:
    wrong = {}
    with new_tab(browser, http_address(broker), is_dark=is_dark) as tab:
        for route, button in (
            ("#/topics", "Create topic"),
            ("#/topics/flights", "Change retention.ms"),
            ("#/topics/flights", "Add partitions"),
            ("#/topics/flights", "Delete"),
            ("#/groups/billing", "Reset offsets"),
            ("#/groups/billing", "Delete group"),
            ("#/broker", "Keyboard shortcuts"),
        ):
            tab.open(route)
            tab.click(button)
            expect(tab.page.get_by_role("dialog")).to_be_visible()
            if found := findings(tab):
                wrong[button] = found
            tab.page.keyboard.press("Escape")
    assert not wrong
