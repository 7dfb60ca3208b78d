"""What all pages share: shortcut keys, theme, small screens, unknown addresses."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect
from tests.browser.browsing import Tab
from tests.browser.feeding import commit, make, report, send


@pytest.fixture(scope="module")
def routes(api: httpx.Client) -> dict[str, str]:
    """Every page, with something on it that is long."""
    topic = "long." + "name-" * 20 + "x" * 140
    make(api, topic, 3)
    value = '{"text": "' + "word " * 100 + '"}'
    headers = [{"name": "h" * 50, "value": "v" * 300}]
    send(api, topic, {"key": "k" * 200, "value": value, "headers": headers})
    commit(api, "group." + "x" * 150, topic, 0)
    report(api, "pipeline-" + "y" * 150, {"name": "query" * 20, "rows": 5, "batch_ms": 1200})
    return {
        "Overview": "#/",
        "Topics": "#/topics",
        "Topic": f"#/topics/{topic}",
        "Records": f"#/topics/{topic}/records",
        "Produce": f"#/topics/{topic}/produce",
        "Groups": "#/groups",
        "Group": f"#/groups/group.{'x' * 150}",
        "Pipelines": "#/pipelines",
        "Pipeline": f"#/pipelines/pipeline-{'y' * 150}",
        "Broker": "#/broker",
    }


def _pause(tab: Tab) -> None:
    """Stop the page's clock a minute ahead, because it refuses a time that has passed."""
    tab.page.clock.pause_at(tab.page.evaluate("Date.now()") / 1000 + 60)


def test_shortcut_keys_open_pages_and_focus_the_heading(tab: Tab) -> None:
    clock = tab.page.clock
    clock.install()
    tab.open()
    for key, title in (
        ("t", "Topics"),
        ("g", "Groups"),
        ("p", "Pipelines"),
        ("b", "Broker"),
        ("o", "Overview"),
    ):
        # A busy machine may take longer between the two keys than a shortcut may take.
        _pause(tab)
        tab.page.keyboard.press("g")
        tab.page.keyboard.press(key)
        clock.resume()
        expect(tab.heading()).to_have_text(title)
        expect(tab.heading()).to_be_focused()
        current = tab.page.get_by_role("navigation", name="Pages").locator("[aria-current=page]")
        expect(current).to_have_text(title)


@pytest.mark.parametrize(
    ("between_ms", "page"), [(400, "Overview"), (1400, "Overview"), (1600, "Broker")]
)
def test_the_time_out_of_a_shortcut_starts_at_its_own_first_key(
    tab: Tab, between_ms: int, page: str
) -> None:
    """The timeout of an earlier "g" cancelled a later one. The clock is the test's own: on a busy
    machine the real time between two keys says nothing."""
    clock = tab.page.clock
    clock.install()
    tab.open()
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("b")
    expect(tab.heading()).to_have_text("Broker")
    _pause(tab)
    tab.page.keyboard.press("g")
    clock.run_for(between_ms)
    tab.page.keyboard.press("o")
    assert tab.page.evaluate("location.hash") == {"Overview": "#/", "Broker": "#/broker"}[page]
    clock.resume()
    expect(tab.heading()).to_have_text(page)


def test_shortcut_keys_are_typed_as_text_inside_a_field(tab: Tab) -> None:
    tab.open("#/topics")
    search = tab.page.get_by_label("Filter")
    search.press_sequentially("gt?/")
    expect(search).to_have_value("gt?/")
    expect(tab.heading()).to_have_text("Topics")
    search.press("Escape")
    expect(search).not_to_be_focused()


def test_the_list_of_keys_holds_the_focus_until_it_is_closed(tab: Tab) -> None:
    tab.open()
    opener = tab.page.get_by_role("button", name="Keyboard shortcuts")
    opener.focus()
    tab.page.keyboard.press("?")
    dialog = tab.dialog("Keyboard shortcuts")
    expect(dialog).to_contain_text("Search or filter on this page")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    inside = "document.activeElement.matches('body, dialog *')"
    for _ in range(4):
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate(inside), "the page behind the dialog is out of reach"
    tab.page.keyboard.press("t")
    assert tab.page.evaluate("document.documentElement.dataset.theme") is None
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_the_link_past_the_navigation_keeps_the_address(tab: Tab) -> None:
    tab.open("#/groups")
    tab.page.keyboard.press("Tab")
    link = tab.page.get_by_role("link", name="Skip to content")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport()
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("main")).to_be_focused()
    tab.page.reload()
    expect(tab.heading()).to_have_text("Groups")


def test_the_chosen_theme_stays(tab: Tab) -> None:
    tab.open()
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(background)
    tab.click("Switch to dark colours")
    dark = tab.page.evaluate(background)
    assert dark != light
    tab.page.reload()
    tab.settled()
    assert tab.page.evaluate(background) == dark
    tab.page.keyboard.press("t")
    assert tab.page.evaluate(background) == light
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate(background) == light, "what was chosen overrules the system"


def test_the_theme_of_the_system_counts_until_one_is_chosen(tab: Tab) -> None:
    tab.open()
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(background)
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate(background) != light
    expect(tab.page.get_by_role("button", name="Switch to light colours")).to_be_visible()


def test_an_unknown_console_address_shows_an_error(tab: Tab) -> None:
    tab.open("#/moon")
    expect(tab.heading()).to_have_text("No such page")
    tab.page.get_by_role("link", name="Go to the overview").click()
    expect(tab.heading()).to_have_text("Overview")


def test_no_page_scrolls_sideways_on_a_phone(phone: Tab, routes: dict[str, str]) -> None:
    broad = {}
    for name, route in routes.items():
        phone.open(route)
        if name == "Records":
            phone.page.get_by_role("button", name="Partition 0, offset 0").click()
        wide = phone.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            broad[name] = wide
        phone.keep_picture(f"phone-{name.lower()}")
    assert not broad


def test_names_break_in_mid_word_on_a_phone(phone: Tab, routes: dict[str, str]) -> None:
    """A part between two dots is a text node of its own; it has one box unless it is broken."""
    broken = """() => {
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      const found = [];
      while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.parentElement.closest("tbody th") || node.data.length > 24) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        if (range.getClientRects().length > 1) found.push(node.data);
      }
      return found;
    }"""
    for name, table in (("Topic", "Settings"), ("Broker", "HTTP requests")):
        phone.open(routes[name])
        expect(phone.table(table).locator("tbody th").first).to_be_visible()
        assert phone.page.evaluate(broken) == []


def test_a_breadcrumb_ends_with_a_slash(tab: Tab, routes: dict[str, str]) -> None:
    crumbs = tab.page.get_by_role("navigation", name="Breadcrumb")
    tab.open(routes["Topic"])
    expect(crumbs).to_have_text("Topics")
    tab.open(routes["Records"])
    name = routes["Topic"].removeprefix("#/topics/")
    expect(crumbs).to_have_text(f"Topics / {name}")


def test_the_navigation_is_at_the_bottom_of_a_phone(phone: Tab) -> None:
    phone.open()
    links = phone.page.get_by_role("navigation", name="Pages")
    box = links.bounding_box()
    assert box is not None and box["y"] > 700
    links.get_by_role("link", name="Groups").click()
    expect(phone.heading()).to_have_text("Groups")


FIGURES = {
    "seconds(0.00025)": "250 µs",
    "seconds(0.0102)": "10.2 ms",
    "seconds(0.9999)": "1 s",  # not 1.00e+3 ms
    "seconds(1.234)": "1.23 s",
    "seconds(4000)": "1 h 6 min",  # not 4.00e+3 s
    "bytes(999)": "999 B",
    "bytes(1234567)": "1.23 MB",
    "rate(1234.5)": "1.23 k records/s",
    "count(1234567)": "1,234,567",
    "count(null)": "\N{EN DASH}",
    "duration(-1)": "no limit",
    "duration(9223372036854775807)": "no limit",  # not 106751991167 d 7 h
    "duration(90061000)": "1 d 1 h",
    "compact(13105)": "13,105",
    "compact(1234567)": "1.23 M",
    "retention({cleanup_policy: 'delete', retention_ms: 3600000, retention_bytes: -1})": "1 h",
    "retention({cleanup_policy: 'delete', retention_ms: -1, retention_bytes: 1000})": "1.00 kB",
    "retention({cleanup_policy: 'compact', retention_ms: 1, retention_bytes: -1})": "\N{EN DASH}",
    "retention({cleanup_policy: '', retention_ms: 3600000, retention_bytes: -1})": "no limit",
}


def test_figures_are_formatted_for_people(tab: Tab) -> None:
    tab.open()
    calls = ", ".join(f"format.{call}" for call in FIGURES)
    script = (
        f"async () => {{ const format = await import('/console/format.js'); return [{calls}] }}"
    )
    assert tab.page.evaluate(script) == list(FIGURES.values())
