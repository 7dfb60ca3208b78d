"""The HTML report of `strandlog bench` in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.browser.browsing import PHONE
from tests.support.command_line import CommandLine


def test_the_report_shows_its_plot_and_requests_nothing(browser: Browser, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    CommandLine(tmp_path / "data").inside(
        "bench", "produce", "--records", "2000", "--html", str(report)
    )
    page = browser.new_page(viewport={"width": PHONE[0], "height": PHONE[1]})
    requests: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda line: problems.append(line.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(report.as_uri())
    expect(page.locator("#plot .legendtext").filter(has_text="p99")).to_be_visible()
    expect(page.get_by_text("2,000", exact=True)).to_be_visible()
    assert requests == [report.as_uri()]
    assert problems == []
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    page.close()
