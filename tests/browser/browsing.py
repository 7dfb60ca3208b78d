"""A tab of a real browser on the console, for tests.

Whatever a page complains of (errors on its console, uncaught exceptions, things its policy
forbids, requests that fail) is a failure of the test, unless the test said that it expects it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, Request, expect

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Headless Chromium has no sandbox as root, and little shared memory in a container.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage"]
PATIENCE_MS = 60_000
DESK = (1280, 800)
PHONE = (390, 844)
SHOTS = Path(__file__).parent.parent.parent / "out" / "console"

expect.set_options(timeout=PATIENCE_MS)


def chromium() -> str | None:
    """Where a Chromium is installed, if one is."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@dataclass
class Tab:
    """One page of the browser, and what it complained of."""

    page: Page
    address: str
    troubles: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("pageerror", lambda error: self.troubles.append(f"uncaught: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on(
            "console",
            lambda said: (
                self.troubles.append(f"{said.type}: {said.text} {said.location.get('url', '')}")
                if said.type in ("error", "warning")
                else None
            ),
        )
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', (event) =>"
            " console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"
        )

    def _failed(self, request: Request) -> None:
        # What a page gives up when it is left is no failure.
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"failed: {request.method} {request.url} {request.failure}")

    def expect_trouble(self, pattern: str) -> None:
        """From now on, and for what was said before."""
        self.expected.append(pattern)

    def unexpected(self) -> list[str]:
        return [
            each for each in self.troubles if not any(re.search(p, each) for p in self.expected)
        ]

    def open(self, route: str = "#/") -> None:
        """Open a page by its address and wait until it shows something."""
        self.page.goto(f"{self.address}/{route}")
        self.settled()

    def settled(self) -> None:
        expect(self.page.get_by_role("heading", level=1)).not_to_be_empty()
        expect(self.page.get_by_role("status", name="Loading")).to_have_count(0)

    def heading(self) -> Locator:
        return self.page.get_by_role("heading", level=1)

    def panel(self, name: str) -> Locator:
        return self.page.locator("section").and_(
            self.page.get_by_role("region", name=name, exact=True)
        )

    def table(self, name: str) -> Locator:
        return self.page.get_by_role("table", name=name, exact=True)

    def row(self, table: str, text: str) -> Locator:
        return self.table(table).get_by_role("row").filter(has_text=text)

    def figure(self, name: str) -> Locator:
        """What a figure at the top of a page says."""
        title = self.page.get_by_role("term").and_(self.page.get_by_text(name, exact=True))
        return self.page.locator(".figure").filter(has=title).get_by_role("definition")

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def fill(self, label: str, text: str) -> None:
        self.page.get_by_label(label, exact=True).fill(text)

    def choose(self, label: str, option: str) -> None:
        self.page.get_by_role("combobox", name=label, exact=True).select_option(label=option)

    def dialog(self, name: str) -> Locator:
        return self.page.get_by_role("dialog", name=name, exact=True)

    def toast(self, text: str) -> Locator:
        return self.page.locator("#toasts").get_by_text(text, exact=True)

    def keep_picture(self, name: str, *, is_whole: bool = False) -> Path:
        """A screenshot, for looking at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=is_whole)
        return path


@contextmanager
def new_tab(
    browser: Browser,
    address: str,
    size: tuple[int, int] = DESK,
    *,
    is_dark: bool = False,
) -> Iterator[Tab]:
    """A tab that shares nothing with others; it may complain of nothing unexpected."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if is_dark else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    try:
        tab = Tab(context.new_page(), address)
        yield tab
        assert not tab.unexpected()
    finally:
        context.close()
