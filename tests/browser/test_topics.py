"""The topic pages: the list, one topic, its settings."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Route, expect
from tests.browser.browsing import PHONE, Tab
from tests.browser.feeding import make, send
from tests.support.http_client import ok
from tests.support.waiting import eventually


def settings_of(api: httpx.Client, topic: str) -> dict[str, tuple[str, str]]:
    rows = ok(api.get(f"/api/v1/topics/{topic}"))["config"]
    return {row["name"]: (row["value"], row["origin"]) for row in rows}


def test_a_topic_is_created_in_a_dialog(tab: Tab, api: httpx.Client) -> None:
    tab.open("#/topics")
    tab.page.get_by_role("button", name="Create topic").first.click()
    dialog = tab.dialog("Create topic")
    expect(dialog.get_by_label("Name")).to_be_focused()
    tab.fill("Partitions", "3")
    tab.choose("Retention", "1 day")
    tab.choose("Cleanup policy", "compact and delete")
    tab.click("Add a setting")
    tab.fill("Setting", "max.message.bytes")
    tab.fill("Value", "1234")
    dialog.get_by_label("Name").fill("created")
    tab.keep_picture("create-topic")
    tab.click("Create")
    expect(tab.heading()).to_have_text("created")
    expect(dialog).to_have_count(0)
    expect(tab.toast("Topic created created")).to_be_visible()
    expect(tab.figure("Partitions")).to_contain_text("3")
    settings = settings_of(api, "created")
    assert settings["retention.ms"] == ("86400000", "topic")
    assert settings["cleanup.policy"] == ("compact,delete", "topic")
    assert settings["max.message.bytes"] == ("1234", "topic")


def test_an_error_of_the_broker_appears_in_the_dialog(tab: Tab, api: httpx.Client) -> None:
    make(api, "taken")
    tab.expect_trouble("status of 4(09|22|00)")
    tab.open("#/topics?new=1")
    dialog = tab.dialog("Create topic")
    for name, words in (("taken", "exists"), ("no spaces", "name"), ("", "name")):
        dialog.get_by_label("Name").fill(name)
        tab.click("Create")
        expect(dialog.get_by_role("alert")).to_contain_text(words)
        expect(dialog).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    tab.page.reload()
    tab.settled()
    expect(dialog).to_have_count(0)


def test_the_page_of_a_topic_shows_its_lake_table(tab: Tab, api: httpx.Client) -> None:
    make(api, "plain")
    tab.open("#/topics/plain")
    expect(tab.figure("Partitions")).to_contain_text("1")
    expect(tab.page.get_by_role("region", name="Lake table")).to_be_hidden()
    body = {"name": "kept", "config": {"table.format": "delta"}}
    ok(api.post("/api/v1/topics", json=body), 201)
    tab.open("#/topics/kept")
    expect(tab.figure("Format")).to_contain_text("delta")
    expect(tab.figure("State")).to_contain_text("ok")
    tab.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    # The folder of the table was wider than a phone. The chart adapts a moment later.
    # The page's policy forbids Playwright's wait_for_function.
    fits = "document.documentElement.scrollWidth <= innerWidth"
    eventually(lambda: tab.page.evaluate(fits), "the page is not wider than the screen")


def test_topics_are_filtered_by_part_of_their_name(tab: Tab, api: httpx.Client) -> None:
    for name in ("flights.raw", "flights.clean", "weather"):
        make(api, name)
    tab.open("#/topics")
    expect(tab.row("Topics", "weather")).to_be_visible()
    tab.page.keyboard.press("/")
    search = tab.page.get_by_label("Filter")
    expect(search).to_be_focused()
    tab.page.keyboard.type("LIGHTS")
    expect(tab.row("Topics", "weather")).to_have_count(0)
    expect(tab.row("Topics", "flights")).to_have_count(2)
    search.fill("moon")
    expect(tab.panel("Topics")).to_contain_text("None of")
    expect(tab.panel("Topics")).to_contain_text("“moon”")


def test_internal_topics_are_shown_when_asked_for(tab: Tab, api: httpx.Client) -> None:
    make(api, "read")
    send(api, "read", {"value": "x"})
    reset = {"to": "latest", "topic": "read", "is_dry_run": False}
    ok(api.post("/api/v1/groups/internal-maker/reset", json=reset))
    tab.open("#/topics")
    expect(tab.row("Topics", "read").first).to_be_visible()
    expect(tab.row("Topics", "__consumer_offsets")).to_have_count(0)
    tab.page.get_by_label("Show internal topics").check()
    expect(tab.row("Topics", "__consumer_offsets")).to_be_visible()


def test_a_starred_topic_stays_on_top(tab: Tab, api: httpx.Client) -> None:
    for name in ("aaa", "zzz"):
        make(api, name)
    tab.open("#/topics")
    star = tab.page.get_by_role("button", name="Keep zzz on top")
    star.click()
    expect(star).to_have_attribute("aria-pressed", "true")
    expect(tab.table("Topics").locator("tbody tr").first).to_contain_text("zzz")
    tab.page.reload()
    tab.settled()
    expect(tab.table("Topics").locator("tbody tr").first).to_contain_text("zzz")
    star.click()
    expect(tab.table("Topics").locator("tbody tr").first).to_contain_text("aaa")


def test_the_focus_is_lost_when_a_row_moves(tab: Tab, api: httpx.Client) -> None:
    for name in ("aab", "zzy"):
        make(api, name)
    tab.open("#/topics")
    star = tab.page.get_by_role("button", name="Keep zzy on top")
    star.focus()
    tab.page.keyboard.press("Space")
    expect(tab.table("Topics").locator("tbody tr").first).to_contain_text("zzy")
    expect(star).to_be_focused()


def test_clicking_a_column_heading_sorts_by_it(tab: Tab, api: httpx.Client) -> None:
    make(api, "sort.two", 2)
    make(api, "sort.ten", 10)
    tab.open("#/topics?filter=sort.")
    rows = tab.table("Topics").locator("tbody tr")
    expect(rows.first).to_contain_text("sort.ten")
    head = tab.page.get_by_role("columnheader", name="Partitions")
    tab.page.get_by_role("button", name="Partitions").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(rows.first).to_contain_text("sort.ten")
    tab.page.get_by_role("button", name="Partitions").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(rows.first).to_contain_text("sort.two")


def test_a_setting_is_changed_and_reset(tab: Tab, api: httpx.Client) -> None:
    make(api, "set")
    tab.expect_trouble("status of 4")
    tab.open("#/topics/set")
    tab.click("Change retention.ms")
    dialog = tab.dialog("retention.ms")
    expect(dialog.get_by_label("Reset to the default")).to_have_count(0)
    tab.fill("Value", "soon")
    tab.click("Save")
    expect(dialog.get_by_role("alert")).to_contain_text("retention.ms")
    tab.fill("Value", "3600000")
    tab.click("Save")
    row = tab.row("Settings", "retention.ms").filter(has_text="1 h")
    expect(row).to_contain_text("topic")
    expect(tab.figure("Retention")).to_contain_text("1 h")
    assert settings_of(api, "set")["retention.ms"] == ("3600000", "topic")
    tab.page.get_by_label("Only changed from the default").check()
    expect(tab.row("Settings", "cleanup.policy")).to_have_count(0)
    expect(row).to_be_visible()
    tab.click("Change retention.ms")
    tab.page.get_by_label(re.compile("Reset to the default")).check()
    tab.click("Save")
    expect(row).to_have_count(0)
    assert settings_of(api, "set")["retention.ms"][1] != "topic"


def test_partitions_are_added(tab: Tab, api: httpx.Client) -> None:
    make(api, "grows", 2)
    tab.expect_trouble("status of 4")
    tab.open("#/topics/grows")
    tab.click("Add partitions")
    dialog = tab.dialog("Add partitions to grows")
    tab.fill("New number of partitions", "1")
    tab.click("Add")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    tab.fill("New number of partitions", "5")
    tab.click("Add")
    expect(tab.table("Partitions").locator("tbody tr")).to_have_count(5)
    expect(tab.figure("Partitions")).to_contain_text("5")


def test_deleting_a_topic_requires_typing_its_name(tab: Tab, api: httpx.Client) -> None:
    make(api, "obsolete")
    tab.open("#/topics/obsolete")
    tab.click("Delete")
    dialog = tab.dialog("Delete obsolete?")
    tab.fill("Type obsolete to confirm", "obsol")
    tab.click("Delete topic")
    expect(dialog.get_by_role("alert")).to_have_text("The name does not match: type obsolete.")
    tab.fill("Type obsolete to confirm", "obsolete")
    tab.click("Delete topic")
    expect(tab.toast("obsolete deleted")).to_be_visible()  # it disappears after a few seconds
    expect(tab.heading()).to_have_text("Topics")
    expect(tab.row("Topics", "obsolete")).to_have_count(0)
    assert api.get("/api/v1/topics/obsolete").status_code == 404


def test_a_page_reports_its_own_deleted_topic_as_not_found(tab: Tab, api: httpx.Client) -> None:
    """The page went on asking for the topic until the response to the deletion arrived."""
    make(api, "leaving")
    clock = tab.page.clock
    clock.install()
    tab.open("#/topics/leaving")

    def respond_late(route: Route) -> None:
        response = route.fetch()
        clock.run_for(10_000)
        route.fulfill(response=response)

    tab.page.route(
        "**/api/v1/topics/leaving",
        lambda route: (
            respond_late(route) if route.request.method == "DELETE" else route.continue_()
        ),
    )
    tab.click("Delete")
    tab.fill("Type leaving to confirm", "leaving")
    tab.click("Delete topic")
    expect(tab.heading()).to_have_text("Topics")


def test_ten_thousand_topics_block_the_page(tab: Tab, api: httpx.Client) -> None:
    make(api, "row")
    row = next(each for each in ok(api.get("/api/v1/topics"))["topics"] if each["name"] == "row")
    many = {"topics": [row | {"name": f"topic-{number}"} for number in range(10_000)]}
    tab.page.route("**/api/v1/topics?*", lambda route: route.fulfill(json=many))
    tab.open("#/topics")
    expect(tab.table("Topics").locator("tbody tr")).to_have_count(300)
    tab.click("Show 1,000 more of 10,000")
    expect(tab.table("Topics").locator("tbody tr")).to_have_count(1300)
    tab.page.get_by_label("Filter").fill("topic-9999")
    expect(tab.table("Topics").locator("tbody tr")).to_have_count(1)
    tab.page.unroute_all(behavior="wait")


def test_a_compacted_topic_shows_a_retention(tab: Tab, api: httpx.Client) -> None:
    make(api, "compacted", 1, **{"cleanup.policy": "compact"})
    tab.open("#/topics/compacted")
    expect(tab.figure("Retention")).to_have_text("\N{EN DASH}cleanup: compact")
    expect(tab.row("Settings", "max.compaction.lag.ms")).to_contain_text("no limit")
    expect(tab.table("Settings")).not_to_contain_text("9223372036854775807")
    # Buttons without a border looked like text.
    change = tab.page.get_by_role("button", name="Change retention.ms")
    expect(change).not_to_have_css("border-top-color", "rgba(0, 0, 0, 0)")
    tab.open("#/topics?filter=compacted")
    expect(tab.row("Topics", "compacted")).not_to_contain_text("7 d")


def test_an_unknown_topic_is_reported(tab: Tab) -> None:
    tab.expect_trouble("status of 404")
    tab.open("#/topics/nowhere")
    expect(tab.page.get_by_role("alert")).to_contain_text("nowhere")
    expect(tab.page.get_by_role("button", name="Try again")).to_be_visible()


def test_a_dialog_stays_open_over_another_page(tab: Tab, api: httpx.Client) -> None:
    make(api, "left")
    tab.open("#/topics")
    tab.page.goto(f"{tab.address}/#/topics/left")
    expect(tab.heading()).to_have_text("left")
    tab.settled()
    tab.click("Delete")
    expect(tab.dialog("Delete left?")).to_be_visible()
    tab.page.go_back()
    expect(tab.heading()).to_have_text("Topics")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
