"""Takes the screenshots of the guide: overview, topic and records, light and dark.

They go to out/console, or to the folder in PICTURES. PICTURE_SECONDS is how long the traffic runs
first. `make screenshots` sets both: to the folder of the guide, and long enough for charts with a
curve.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from tests.browser.browsing import SHOTS, Tab, new_tab
from tests.browser.traffic import departures
from tests.support.http_client import http_address
from tests.support.server import RunningBroker

FOLDER = Path(os.environ.get("PICTURES", SHOTS))
SECONDS = int(os.environ.get("PICTURE_SECONDS", "0"))
MAX_BYTES = 200_000


@pytest.mark.timeout(300 + SECONDS)
@pytest.mark.long
def test_pictures_are_taken(browser: Browser, broker: RunningBroker, api: httpx.Client) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    address = http_address(broker)
    with (
        new_tab(browser, address) as overview,
        new_tab(browser, address) as topic,
        new_tab(browser, address) as records,
        departures(broker, api),
    ):
        overview.open()
        topic.open("#/topics/flights")
        expect(topic.row("Groups that read this topic", "archive")).to_contain_text("Stable")
        expect(overview.panel("Lag by group").locator(".scatterlayer .js-line")).to_have_count(3)
        expect(overview.figure("In")).to_contain_text("kB/s")
        overview.page.wait_for_timeout(SECONDS * 1000)
        records.open("#/topics/flights/records?where=path&search=dest&equals=%22SFO%22")
        records.table("Records").get_by_role("button").first.click()
        expect(records.page.locator("tr.detail")).to_contain_text('"dest": "SFO"')
        for name, tab in (("overview", overview), ("topic", topic), ("records", records)):
            for theme in ("light", "dark"):
                take(tab, name, theme)


def take(tab: Tab, name: str, theme: str) -> None:
    system = tab.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    if system != (theme == "dark"):
        tab.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    other = "light" if theme == "dark" else "dark"
    expect(tab.page.get_by_role("button", name=f"Switch to {other} colours")).to_be_visible()
    tab.page.wait_for_timeout(300)  # charts are drawn again
    path = FOLDER / f"console-{name}-{theme}.png"
    tab.page.screenshot(path=path)
    assert 10_000 < path.stat().st_size < MAX_BYTES
