"""The group pages: lag, members, resetting offsets, deleting a group."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect
from tests.browser.browsing import Tab
from tests.browser.feeding import commit, make, member, send
from tests.support.http_client import ok
from tests.support.server import RunningBroker

MINUS = "\N{MINUS SIGN}"
HOSTILE = "<b>bold</b><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def orders(api: httpx.Client) -> str:
    """A topic with ten records in each of two partitions."""
    make(api, "orders", 2)
    for partition in range(2):
        send(api, "orders", *({"value": str(n)} for n in range(10)), partition=partition)
    return "orders"


def offsets(api: httpx.Client, group: str) -> dict[int, int]:
    positions = ok(api.get(f"/api/v1/groups/{group}"))["positions"]
    return {each["partition"]: each["offset"] for each in positions}


def test_groups_are_listed_by_their_lag(tab: Tab, api: httpx.Client, orders: str) -> None:
    commit(api, "list-slow", orders, 0)
    commit(api, "list-fast", orders, 9)
    tab.open("#/groups")
    tab.page.get_by_label("Filter").fill("list-")
    rows = tab.table("Groups").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("list-slow")
    expect(rows.first).to_contain_text("20")
    expect(rows.first).to_contain_text("Empty")
    tab.page.get_by_label("Filter").fill("no such")
    expect(tab.panel("Groups")).to_contain_text("No such group")
    expect(tab.page.locator(".js-plotly-plot .main-svg").first).to_be_visible()


def test_a_group_with_members_shows_their_partitions_and_cannot_be_reset(
    tab: Tab, broker: RunningBroker, orders: str
) -> None:
    with member(broker, "reading", orders) as consumer:
        consumer.commit(asynchronous=False)
        tab.open("#/groups/reading")
        expect(tab.figure("State")).to_contain_text("Stable")
        expect(tab.figure("Members")).to_contain_text("1")
        row = tab.row("Members", "reading-client")
        expect(row.last).to_contain_text("orders-0, orders-1")
        expect(tab.figure("Lag")).to_contain_text("records")
        link = tab.table("Offsets").get_by_role("link", name="Records of orders, partition")
        expect(link.first).to_be_visible()
        tab.keep_picture("group", is_whole=True)
        tab.click("Reset offsets")
        dialog = tab.dialog("Reset the offsets of reading")
        expect(dialog).to_contain_text("This group has 1 member. Stop them first")
        tab.click("Preview")
        expect(dialog.get_by_role("status")).to_contain_text("would move")
        expect(dialog.get_by_role("button", name="Reset offsets")).to_be_disabled()


def test_offsets_are_reset_after_a_preview(tab: Tab, api: httpx.Client, orders: str) -> None:
    commit(api, "moved", orders, 7)
    tab.open("#/groups/moved")
    expect(tab.figure("Lag")).to_contain_text("6")
    tab.click("Reset offsets")
    dialog = tab.dialog("Reset the offsets of moved")
    apply = dialog.get_by_role("button", name="Reset offsets")
    expect(apply).to_be_disabled()
    dialog.get_by_role("combobox", name="Reset to").select_option(label="Earliest")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("status")).to_have_text(
        "2 partitions of 2 would move; lag after that: 20 records."
    )
    changes = dialog.get_by_role("table", name="Preview of the reset").locator("tbody tr")
    expect(changes).to_have_count(2)
    expect(changes.first).to_contain_text(f"{MINUS}7")
    tab.keep_picture("reset")
    assert offsets(api, "moved") == {0: 7, 1: 7}, "a preview changes nothing"
    dialog.get_by_role("combobox", name="Reset to").select_option(label="Offset")
    expect(apply).to_be_disabled()
    dialog.get_by_label("Offset", exact=True).fill("3")
    dialog.get_by_role("button", name="Preview").click()
    expect(changes.first).to_contain_text(f"{MINUS}4")
    apply.click()
    expect(dialog).to_have_count(0)
    expect(tab.toast("moved: 2 offsets set")).to_be_visible()
    expect(tab.figure("Lag")).to_contain_text("14")
    assert offsets(api, "moved") == {0: 3, 1: 3}


def test_a_reset_of_an_unknown_topic_is_rejected(tab: Tab, api: httpx.Client, orders: str) -> None:
    commit(api, "strict", orders, 1)
    tab.expect_trouble("status of 404")
    tab.open("#/groups/strict")
    tab.click("Reset offsets")
    dialog = tab.dialog("Reset the offsets of strict")
    dialog.get_by_label("Other topic").fill("nowhere")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nowhere")


def test_a_group_is_deleted_when_it_has_no_members(
    tab: Tab, api: httpx.Client, broker: RunningBroker, orders: str
) -> None:
    tab.expect_trouble("status of 4(04|09)")
    with member(broker, "obsolete", orders) as consumer:
        consumer.commit(asynchronous=False)
        tab.open("#/groups/obsolete")
        tab.click("Delete group")
        dialog = tab.dialog("Delete group obsolete?")
        dialog.get_by_role("button", name="Delete group").click()
        expect(dialog.get_by_role("alert")).to_contain_text("member")
    dialog.get_by_role("button", name="Delete group").click()
    expect(tab.heading()).to_have_text("Groups")
    expect(tab.toast("obsolete deleted")).to_be_visible()
    assert api.get("/api/v1/groups/obsolete").status_code == 404


def test_markup_in_the_name_of_a_group_is_drawn_by_the_chart(
    tab: Tab, broker: RunningBroker, orders: str
) -> None:
    with member(broker, HOSTILE, orders) as consumer:
        consumer.commit(asynchronous=False)
        with member(broker, "tame", orders) as other:
            other.commit(asynchronous=False)
            tab.open("#/groups")
            expect(tab.row("Groups", HOSTILE)).to_be_visible()
            legend = tab.panel("Lag by group").locator(".legendtext")
            expect(legend.filter(has_text=HOSTILE[:12])).to_have_count(1)  # it is shortened
            tab.page.get_by_role("link", name=HOSTILE).click()
            expect(tab.heading()).to_have_text(HOSTILE)
            expect(tab.figure("Members")).to_contain_text("1")
    assert tab.page.locator("main img, main b").count() == 0


def test_the_axis_for_a_lag_of_one_is_not_labelled_in_thousandths(
    tab: Tab, api: httpx.Client, orders: str
) -> None:
    commit(api, "nearly", orders, 10)
    send(api, orders, {"value": "one more"})
    tab.open("#/groups/nearly")
    for title in ("Lag over time", "Lag by partition"):
        ticks = tab.panel(title).locator(".ytick text")
        expect(ticks.first).to_be_attached()
        expect(ticks.filter(has_text="1")).to_have_count(1)
        expect(ticks.filter(has_text="m")).to_have_count(0)
