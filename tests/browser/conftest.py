"""A broker and a browser for the tests of one module, and a tab for each test.

Not for the whole session: the driver of the browser keeps an event loop running in the thread of
the tests, which tests elsewhere could not stand.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.http_client import client_of, http_address, http_broker
from tests.support.server import RunningBroker

from strandlog.testing.server import ServerThread

playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")

from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from tests.browser.browsing import ARGUMENTS, PHONE, Tab, chromium, new_tab  # noqa: E402


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("browser tests need Chromium (Debian's package chromium)")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("console") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    with client_of(broker) as client:
        yield client


@pytest.fixture
def tab(browser: Browser, broker: RunningBroker) -> Iterator[Tab]:
    with new_tab(browser, http_address(broker)) as opened:
        yield opened


@pytest.fixture
def phone(browser: Browser, broker: RunningBroker) -> Iterator[Tab]:
    with new_tab(browser, http_address(broker), PHONE) as opened:
        yield opened
