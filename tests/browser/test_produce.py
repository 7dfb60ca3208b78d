"""The page that produces a single record."""

from __future__ import annotations

from typing import Any

import httpx
from playwright.sync_api import expect
from tests.browser.browsing import Tab
from tests.browser.feeding import make
from tests.support.http_client import ok


def records(api: httpx.Client, topic: str) -> list[dict[str, Any]]:
    query = {"format": "plain"}
    found: list[dict[str, Any]] = ok(api.get(f"/api/v1/topics/{topic}/records", params=query))[
        "records"
    ]
    return found


def test_a_produced_record_links_to_its_position(tab: Tab, api: httpx.Client) -> None:
    make(api, "sent", 3)
    tab.open("#/topics/sent/produce")
    value = tab.page.get_by_label("Value", exact=True)
    expect(value).to_be_focused()
    tab.fill("Key", "k")
    tab.choose("Partition", "2")
    value.fill('{"n": 12345678901234567890}')
    tab.click("Add a header")
    tab.fill("Name", "source")
    tab.page.get_by_role("group", name="Headers").get_by_label("Value").fill("a hand")
    tab.keep_picture("produce")
    tab.click("Send")
    link = tab.panel("Sent").get_by_role("link", name="partition 2, offset 0")
    expect(link).to_be_visible()
    [record] = records(api, "sent")
    assert record["key"]["data"] == "k"
    assert record["value"]["data"] == '{"n": 12345678901234567890}'
    assert [(each["name"], each["value"]["data"]) for each in record["headers"]] == [
        ("source", "a hand")
    ]
    link.click()
    expect(tab.heading()).to_have_text("Records")
    expect(tab.table("Records").locator("tbody tr")).to_have_count(1)
    expect(tab.page.get_by_role("button", name="Partition 2, offset 0")).to_be_visible()


def test_invalid_json_is_reported_and_not_sent(tab: Tab, api: httpx.Client) -> None:
    make(api, "typo")
    tab.open("#/topics/typo/produce")
    value = tab.page.get_by_label("Value", exact=True)
    value.fill('{"n": }')
    expect(tab.page.get_by_role("alert")).to_contain_text("Not JSON")
    expect(value).to_have_attribute("aria-invalid", "true")
    tab.click("Send")
    tab.choose("Value format", "Text")
    expect(tab.page.get_by_role("alert")).to_have_count(0)
    tab.click("Send")
    expect(tab.panel("Sent").get_by_role("link")).to_have_count(1)
    assert [each["value"]["data"] for each in records(api, "typo")] == ['{"n": }']


def test_empty_json_is_not_sent(tab: Tab, api: httpx.Client) -> None:
    make(api, "blank")
    tab.open("#/topics/blank/produce")
    tab.fill("Value", "  ")
    tab.click("Send")
    expect(tab.page.get_by_role("alert")).to_contain_text("The value is empty")
    assert records(api, "blank") == []


def test_bytes_null_and_the_quick_key(tab: Tab, api: httpx.Client) -> None:
    make(api, "forms")
    tab.open("#/topics/forms/produce")
    tab.expect_trouble("status of 4")
    sent = tab.panel("Sent").get_by_role("link")
    tab.choose("Value format", "Base64")
    tab.fill("Value", "no base64!")
    tab.page.keyboard.press("Control+Enter")
    expect(tab.page.get_by_role("alert")).to_contain_text("base64")
    tab.fill("Value", "/wBB")
    tab.page.keyboard.press("Control+Enter")
    expect(sent).to_have_count(1)
    tab.choose("Value format", "Null (a tombstone)")
    expect(tab.page.get_by_label("Value", exact=True)).to_be_disabled()
    tab.fill("Key", "gone")
    tab.page.keyboard.press("Enter")
    expect(sent).to_have_count(2)
    raw, tombstone = records(api, "forms")
    assert raw["value"] == {
        "kind": "base64",
        "data": "/wBB",
        "size_bytes": 3,
        "is_truncated": False,
    }
    assert (tombstone["key"]["data"], tombstone["value"]) == ("gone", None)


def test_a_record_sent_without_acks_is_listed_as_sent(tab: Tab, api: httpx.Client) -> None:
    make(api, "blind")
    tab.open("#/topics/blind/produce")
    tab.choose("Acks", "none: do not wait")
    tab.click("Send")
    expect(tab.panel("Sent").get_by_role("listitem")).to_have_count(1)


def test_an_error_of_the_broker_appears_beside_the_form(tab: Tab, api: httpx.Client) -> None:
    make(api, "small", 1, **{"max.message.bytes": "200"})
    tab.expect_trouble("status of 413")
    tab.open("#/topics/small/produce")
    tab.choose("Value format", "Text")
    tab.fill("Value", "x" * 1000)
    tab.click("Send")
    expect(tab.page.get_by_role("alert")).to_contain_text("200")
