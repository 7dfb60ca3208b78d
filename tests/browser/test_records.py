"""The records page: reading, searching, opening a record, the live tail."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Locator, expect
from tests.browser.browsing import Tab
from tests.browser.feeding import make, produce, send
from tests.support.http_client import ok
from tests.support.kafka_transactions import KafkaTransactions
from tests.support.server import RunningBroker

LARGE = '{"id": 12345678901234567890, "name": "café", "price": 1.50, "tags": [], "none": null}'
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


def rows(tab: Tab) -> Locator:
    return tab.table("Records").locator("tbody tr:not(.detail)")


def open_record(tab: Tab, partition: int, offset: int) -> Locator:
    name = f"Partition {partition}, offset {offset}"
    tab.page.get_by_role("button", name=name, exact=True).click()
    return tab.page.locator("tr.detail")


@pytest.fixture(scope="module")
def numbers(api: httpx.Client) -> str:
    """A topic with 0 to 249 in partition 0 and one record in partition 1."""
    make(api, "numbers", 2)
    for number in range(0, 250, 50):
        values = range(number, number + 50)
        send(api, "numbers", *({"key": f"k{n}", "value": json.dumps({"n": n})} for n in values))
    send(api, "numbers", {"key": "other", "value": "elsewhere"}, partition=1)
    return "numbers"


def test_the_newest_records_come_first(tab: Tab, numbers: str) -> None:
    tab.open(f"#/topics/{numbers}/records")
    expect(rows(tab)).to_have_count(100)
    expect(rows(tab).first).to_contain_text("elsewhere")
    expect(rows(tab).nth(1)).to_contain_text('{"n": 249}')
    expect(tab.panel("Records").get_by_role("status")).to_contain_text("100 records shown")


def test_a_value_is_cut_beside_empty_space(tab: Tab, api: httpx.Client) -> None:
    make(api, "wide")
    headers = [{"name": "n" * 300, "value": "v" * 300}, {"name": "", "value": "x"}]
    send(api, "wide", {"key": "k", "value": "word " * 100, "headers": headers})
    tab.open("#/topics/wide/records")
    value = tab.page.locator(".preview").bounding_box()
    size = rows(tab).locator("td").last.bounding_box()
    assert value is not None and size is not None
    assert size["x"] - (value["x"] + value["width"]) < 30
    details = open_record(tab, 0, 0).bounding_box()
    assert details is not None and details["height"] < 900, "a long header took all the width"


def test_control_characters_are_shown_as_boxes(tab: Tab, api: httpx.Client) -> None:
    """A binary value that happens to be valid UTF-8 was shown as text that fonts do not have."""
    make(api, "binary")
    send(api, "binary", {"value": "\0\x01c\x7f"})
    tab.open("#/topics/binary/records")
    expect(rows(tab).first).to_contain_text("\u2400\u2401c\u2421")
    details = open_record(tab, 0, 0)
    expect(details.get_by_label("Value", exact=True)).to_contain_text("00 01 63 7f")
    details.get_by_role("button", name="Text").click()
    expect(details.get_by_label("Value", exact=True)).to_have_text("\u2400\u2401c\u2421")


def test_the_oldest_records_can_be_paged_through(tab: Tab, numbers: str) -> None:
    tab.open(f"#/topics/{numbers}/records")
    tab.choose("Start from", "Oldest")
    expect(tab.page).to_have_url(re.compile("from=oldest"))
    tab.choose("Partition", "0")
    expect(rows(tab).first).to_contain_text('{"n": 0}')
    expect(rows(tab)).to_have_count(100)
    tab.click("Show more")
    expect(rows(tab)).to_have_count(200)
    tab.click("Show more")
    expect(rows(tab)).to_have_count(250)
    expect(tab.page.get_by_role("button", name="Show more")).to_be_hidden()
    expect(tab.panel("Records").get_by_role("status")).to_contain_text("end of the topic")


def test_records_from_an_offset_and_the_address_keeps_it(tab: Tab, numbers: str) -> None:
    tab.open(f"#/topics/{numbers}/records?partition=0")
    expect(rows(tab).first).to_contain_text('{"n": 249}')
    tab.choose("Start from", "Offset")
    tab.fill("Offset", "240")
    tab.click("Search")
    expect(rows(tab)).to_have_count(10)
    expect(tab.page).to_have_url(re.compile("partition=0&from=offset&offset=240"))
    tab.page.reload()
    expect(rows(tab)).to_have_count(10)
    expect(tab.page.get_by_label("Offset", exact=True)).to_have_value("240")
    tab.expect_trouble("status of 416")
    tab.fill("Offset", "251")
    tab.click("Search")
    expect(tab.page.get_by_role("alert")).to_contain_text("250")


def test_records_from_a_time_on(tab: Tab, api: httpx.Client, broker: RunningBroker) -> None:
    make(api, "times")
    for hour in range(3):
        at_ms = 1_700_000_000_000 + hour * 3_600_000
        produce(broker, "times", b"hour %d" % hour, timestamp=at_ms)
    tab.open("#/topics/times/records")
    tab.choose("Start from", "Time")
    tab.fill("Time", "2023-11-14T23:00:00")
    tab.click("Search")
    expect(rows(tab)).to_have_count(2)
    expect(rows(tab).first).to_contain_text("hour 1")
    expect(rows(tab).first).to_contain_text("2023-11-14 23:13:20.000")


@pytest.mark.parametrize(
    ("where", "text", "equals", "found"),
    [
        ("Value", "brown", None, ["fox"]),
        ("Key", "fo", None, ["fox"]),
        ("Header", "trace=abc", None, ["dog"]),
        ("Header", "trace", None, ["dog"]),
        ("JSON path", "animal.legs", "4", ["json"]),
        ("Value", "nothing like this", None, []),
    ],
)
def test_records_are_searched(
    tab: Tab, api: httpx.Client, where: str, text: str, equals: str | None, found: list[str]
) -> None:
    if api.get("/api/v1/topics/animals").status_code == 404:
        make(api, "animals")
        header = {"name": "trace", "value": "abc"}
        send(
            api,
            "animals",
            {"key": "fox", "value": "the quick brown fox"},
            {"key": "dog", "value": "the lazy dog", "headers": [header]},
            {"key": "json", "value_json": {"animal": {"legs": 4}}},
            {"key": "bird", "value_json": {"animal": {"legs": 2}}},
        )
    tab.open("#/topics/animals/records")
    tab.choose("Search in", where)
    tab.page.get_by_role("searchbox", name="Search").fill(text)
    if equals is not None:
        tab.fill("Equals", equals)
    tab.page.keyboard.press("Enter")
    for key in found:
        expect(rows(tab).filter(has_text=key)).to_have_count(1)
    if found:
        expect(rows(tab)).to_have_count(len(found))
    else:
        expect(tab.panel("Records")).to_contain_text("Nothing found")


def test_a_search_of_the_newest_records_stops_before_old_ones(tab: Tab, api: httpx.Client) -> None:
    make(api, "old", 1, **{"max.message.bytes": "1000000"})
    send(api, "old", {"value": "needle"})
    for _ in range(12):  # more bytes than one request reads
        send(api, "old", {"value": "x" * 900_000})
    tab.open(f"#/topics/old/records?{urlencode({'where': 'value', 'search': 'needle'})}")
    expect(tab.panel("Records")).to_contain_text("The search stopped before the older ones")
    tab.click("Search from the oldest")
    expect(rows(tab)).to_have_count(1)


def test_the_newest_of_large_records_are_shown(tab: Tab, api: httpx.Client) -> None:
    make(api, "bulky", 1, **{"max.message.bytes": "1000000"})
    for _ in range(12):  # more bytes than one request reads
        send(api, "bulky", {"value": "x" * 900_000})
    tab.open("#/topics/bulky/records")
    status = tab.panel("Records").get_by_role("status")
    expect(status).to_contain_text("older records not read")
    expect(rows(tab).first.get_by_role("button", name="Partition 0, offset 11")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Show more")).to_be_hidden()


def test_an_opened_record_keeps_all_digits_of_large_numbers(tab: Tab, api: httpx.Client) -> None:
    make(api, "large")
    header = {"name": "source", "value": "the test"}
    send(api, "large", {"key": "k", "value": LARGE, "headers": [header]})
    tab.open("#/topics/large/records")
    detail = open_record(tab, 0, 0)
    expect(detail).to_contain_text("Headers (1)")
    expect(detail).to_contain_text("the test")
    expect(detail).to_contain_text("86 B")
    value = detail.get_by_label("Value", exact=True)
    expect(value).to_contain_text('"id": 12345678901234567890,\n  "name": "café",')
    expect(value).to_contain_text('"price": 1.50,\n  "tags": [],\n  "none": null\n}')
    detail.get_by_role("button", name="Text").first.click()
    expect(value).to_have_text(LARGE)
    detail.get_by_role("button", name="Hex").first.click()
    expect(value).to_contain_text("00000000  7b 22 69 64")
    tab.keep_picture("record")
    open_record(tab, 0, 0)
    expect(detail).to_have_count(0)


def test_bytes_are_shown_in_hexadecimal(tab: Tab, api: httpx.Client, broker: RunningBroker) -> None:
    make(api, "bytes")
    produce(broker, "bytes", bytes(range(240, 256)) + b"A", key=b"\xff\x00")
    tab.open("#/topics/bytes/records")
    expect(rows(tab).first).to_contain_text("f0 f1 f2")
    detail = open_record(tab, 0, 0)
    expect(detail.get_by_label("Value", exact=True)).to_contain_text("00000010  41")
    expect(detail.get_by_label("Key", exact=True)).to_contain_text("ff 00")
    expect(detail.get_by_role("button", name="Text")).to_have_count(0)


def test_opening_a_truncated_value_fetches_all_of_it(tab: Tab, api: httpx.Client) -> None:
    make(api, "long")
    send(api, "long", {"value": "x" * 50_000 + "the end"})
    tab.open("#/topics/long/records")
    detail = open_record(tab, 0, 0)
    expect(detail.get_by_label("Value", exact=True)).to_contain_text("the end")


def test_null_and_empty_values_differ(tab: Tab, api: httpx.Client) -> None:
    make(api, "none")
    send(api, "none", {"key": "null"}, {"key": "empty", "value": ""})
    tab.open("#/topics/none/records")
    expect(rows(tab).nth(1).locator("td").nth(4)).to_have_text("null")
    expect(rows(tab).nth(0).locator("td").nth(4)).to_have_text("empty")


def test_a_topic_without_records_says_so(tab: Tab, api: httpx.Client) -> None:
    make(api, "void")
    tab.open("#/topics/void/records")
    expect(tab.panel("Records")).to_contain_text("No records")
    tab.panel("Records").get_by_role("link", name="Produce").click()
    expect(tab.heading()).to_have_text("Produce")


def test_markup_in_records_is_text(tab: Tab, api: httpx.Client) -> None:
    make(api, "hostile")
    headers = [{"name": HOSTILE, "value": HOSTILE}]
    send(api, "hostile", {"key": HOSTILE, "value": HOSTILE, "headers": headers})
    send(api, "hostile", {"value_json": {HOSTILE: HOSTILE}})
    tab.open("#/topics/hostile/records")
    expect(rows(tab)).to_have_count(2)
    for offset in (0, 1):
        expect(open_record(tab, 0, offset).first).to_contain_text("onerror")
    expect(rows(tab).nth(1)).to_contain_text(HOSTILE)
    assert tab.page.locator("main img, main script").count() == 0
    assert tab.page.title() == "Records · strandlog"


def test_the_live_tail_shows_what_a_producer_sends(
    tab: Tab, api: httpx.Client, broker: RunningBroker
) -> None:
    make(api, "tail", 2)
    produce(broker, "tail", b"before")
    tab.open("#/topics/tail/records")
    expect(rows(tab)).to_have_count(1)
    tab.click("Live tail")
    status = tab.panel("Records").get_by_role("status")
    expect(status).to_contain_text("Live;")
    produce(broker, "tail", *(b"live %d" % n for n in range(5)))
    expect(rows(tab)).to_have_count(6)
    expect(rows(tab).first).to_contain_text("live")
    expect(rows(tab).last).to_contain_text("before")
    tab.keep_picture("live-tail")
    tab.click("Pause")
    expect(status).to_have_text("Paused; 6 records kept")
    produce(broker, "tail", b"while paused")
    expect(tab.page.get_by_role("button", name="Live tail")).to_be_visible()
    expect(rows(tab)).to_have_count(6)
    tab.click("Live tail")
    expect(status).to_contain_text("Live;")
    produce(broker, "tail", b"after")
    expect(rows(tab).first).to_contain_text("after")
    expect(rows(tab)).to_have_count(7)
    expect(tab.page).to_have_url(re.compile("live=1"))


def test_the_live_tail_shows_only_matching_records(
    tab: Tab, api: httpx.Client, broker: RunningBroker
) -> None:
    make(api, "sifted")
    tab.open("#/topics/sifted/records?where=value&search=yes&live=1")
    expect(tab.panel("Records").get_by_role("status")).to_contain_text("Live")
    produce(broker, "sifted", b"no 1", b"yes 2", b"no 3", b"yes 4")
    expect(rows(tab)).to_have_count(2)
    expect(rows(tab).first).to_contain_text("yes 4")


def test_open_and_aborted_transactions_are_shown_on_request(
    tab: Tab, api: httpx.Client, broker: RunningBroker
) -> None:
    make(api, "transactions")
    transactions = KafkaTransactions(broker.address, "console")
    transactions.begin("transactions", b"aborted")
    transactions.abort()
    transactions.begin("transactions", b"open")
    tab.open("#/topics/transactions/records")
    status = tab.panel("Records").get_by_role("status")
    expect(status).to_contain_text("1 offset after an open transaction not shown")
    expect(rows(tab)).to_have_count(0)
    tab.page.get_by_label("Transactions").select_option("Also open and aborted")
    expect(rows(tab)).to_have_count(2)
    expect(tab.page).to_have_url(re.compile("transactions=all"))
    tab.keep_picture("transactions")
    transactions.commit()
    tab.page.get_by_label("Transactions").select_option("Committed")
    expect(rows(tab)).to_have_count(1)
    expect(rows(tab).first).to_contain_text("open")


def test_a_live_tail_of_a_deleted_topic_says_so(tab: Tab, api: httpx.Client) -> None:
    make(api, "gone")
    tab.open("#/topics/gone/records?live=1")
    status = tab.panel("Records").get_by_role("status")
    expect(status).to_contain_text("Live")
    assert api.delete("/api/v1/topics/gone").status_code in (200, 204)
    expect(status).to_contain_text("gone")
    expect(tab.page.get_by_role("button", name="Live tail")).to_be_visible()


def test_the_live_tail_replaces_the_records_shown_before(
    tab: Tab, api: httpx.Client, broker: RunningBroker
) -> None:
    make(api, "mixed")
    produce(broker, "mixed", b"old")
    tab.open("#/topics/mixed/records?from=oldest")
    expect(rows(tab)).to_have_count(1)
    tab.click("Live tail")
    expect(tab.panel("Records").get_by_role("status")).to_contain_text("Live; 0 records")
    produce(broker, "mixed", b"new")
    expect(rows(tab)).to_have_count(1)
    expect(rows(tab)).to_contain_text("new")


def test_a_value_with_a_schema_is_shown_decoded(tab: Tab, api: httpx.Client) -> None:
    fields = [{"name": "name", "type": "string"}, {"name": "total", "type": "long"}]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    added = ok(api.post("/subjects/coded-value/versions", json={"schema": text}))
    prefix = b"\0" + added["id"].to_bytes(4, "big")
    good = prefix + b"\x06ada" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    make(api, "coded")
    for key, value in (("damaged", prefix + b"\x06"), ("good", good)):
        send(api, "coded", {"key": key, "value_base64": base64.b64encode(value).decode()})
    tab.open("#/topics/coded/records")
    expect(rows(tab).first).to_contain_text('"name": "ada"')
    detail = open_record(tab, 0, 1)
    expect(detail).to_contain_text(f"Avro schema {added['id']}, coded-value")
    value = detail.get_by_label("Value", exact=True)
    expect(value).to_contain_text('"name": "ada",\n  "total": 9223372036854775807')
    expect(detail.get_by_role("button", name="Hex")).to_have_count(1)  # of the key
    tab.keep_picture("decoded")
    open_record(tab, 0, 1)
    damaged = open_record(tab, 0, 0)
    expect(damaged).to_contain_text("Not decoded: field name: the data ends too early")
    tab.keep_picture("not-decoded")
