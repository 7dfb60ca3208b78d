"""Signing in and out, what a user sees, and attacks: markup in names, other sites, rebinding."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Request, expect
from tests.browser.browsing import ARGUMENTS, PHONE, Tab, chromium, new_tab
from tests.browser.feeding import commit, make, report, send
from tests.support.acls import allow_user
from tests.support.certificates import Authority
from tests.support.http_client import PATIENCE_S, http_address, http_broker, ok
from tests.support.users import set_password

from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_NAME,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    WRITE,
)
from strandlog.testing.server import ServerThread

ROOT, ALICE = ("root", "r00t"), ("alice", "wonder")
MARKUP = '<img src=x onerror="window.hacked=1">'
HACKER = ("<b onmouseover=alert(1)>&amp", "h")
ENDED = "Your session has ended. Sign in to continue where you were."
DENIED = r"status of (401|403)"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {
        "http.authentication": "required",
        "authorizer.class.name": "strandlog",
        "super.users": f"User:root;User:{HACKER[0]}",
        "connection.failed.authentication.delay.ms": "1",
        "http.max.failed.logins": "1000",
    }
    with http_broker(tmp_path_factory.mktemp("login") / "data", settings) as running:
        for user, password in (ROOT, HACKER):
            set_password(running, user, password)
        yield running


@pytest.fixture(scope="module")
def api(broker: ServerThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=http_address(broker), auth=ROOT, timeout=PATIENCE_S) as client:
        make(client, "orders", 2)
        send(client, "orders", {"key": "k", "value": "first"})
        make(client, "secret")
        commit(client, "billing", "orders", 0)
        yield client


@pytest.fixture(autouse=True)
def alice(broker: ServerThread, api: httpx.Client) -> None:
    set_password(broker, *ALICE)
    allow_user(broker, "alice", [(READ.on(TOPIC), "orders"), (DESCRIBE.on(GROUP), "billing")])


@pytest.fixture
def tab(browser: Browser, broker: ServerThread) -> Iterator[Tab]:
    with new_tab(browser, http_address(broker)) as opened:
        opened.expect_trouble(DENIED)
        yield opened


def sign_in(tab: Tab, user: tuple[str, str] = ALICE, route: str = "#/topics") -> None:
    tab.page.goto(f"{tab.address}/{route}")
    give(tab, user)
    expect(tab.page.get_by_role("button", name=f"User menu of {user[0]}")).to_be_visible()
    tab.settled()


def give(tab: Tab, user: tuple[str, str]) -> None:
    """Fill in the login page and send it by keyboard."""
    tab.fill("User", user[0])
    tab.fill("Password", user[1])
    tab.page.keyboard.press("Enter")


def login_page(tab: Tab) -> Locator:
    return tab.page.get_by_role("dialog", name="Sign in to strandlog")


def sign_out(tab: Tab) -> None:
    tab.page.get_by_role("button", name="User menu").click()
    tab.click("Sign out")
    expect(login_page(tab)).to_be_visible()


def kept_by_browser(tab: Tab) -> str:
    """What scripts can read: a secret in it would be stolen by the first injected script."""
    found: str = tab.page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )
    return found


# -- the login page --------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_user_signs_in_by_keyboard_and_reaches_the_page_of_the_address(tab: Tab) -> None:
    tab.page.goto(f"{tab.address}/#/topics/orders")
    expect(tab.page.get_by_label("User", exact=True)).to_be_focused()
    tab.page.keyboard.type("alice")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.type("wrong")
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("alert")).to_have_text("Wrong user or password.")
    expect(tab.page.get_by_label("Password", exact=True)).to_be_focused()
    expect(tab.page.get_by_label("Password", exact=True)).to_have_value("")
    tab.page.keyboard.type("wonder")
    tab.page.keyboard.press("Enter")
    expect(tab.heading()).to_have_text("orders")
    assert "wonder" not in kept_by_browser(tab)
    assert tab.page.evaluate("document.cookie") == "", "scripts cannot read the session"


def test_the_login_page_cannot_be_closed_and_nothing_behind_it_can_be_reached(tab: Tab) -> None:
    tab.page.goto(f"{tab.address}/#/topics")
    expect(tab.page.get_by_label("User", exact=True)).to_be_focused()
    for _ in range(3):
        tab.page.keyboard.press("Escape")
    expect(login_page(tab)).to_be_visible()
    for _ in range(6):
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.matches('body, dialog.login *')")


def test_an_empty_field_is_named(tab: Tab) -> None:
    tab.page.goto(tab.address)
    tab.click("Sign in")
    expect(tab.page.get_by_role("alert")).to_have_text("Enter the user.")
    tab.fill("User", "alice")
    tab.click("Sign in")
    expect(tab.page.get_by_role("alert")).to_have_text("Enter the password.")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), PHONE], ids=["desk", "phone"])
def test_the_login_page_and_the_user_menu_are_accessible(
    browser: Browser, broker: ServerThread, is_dark: bool, size: tuple[int, int]
) -> None:
    shade, place = "dark" if is_dark else "light", "phone" if size == PHONE else "desk"
    with new_tab(browser, http_address(broker), size, is_dark=is_dark) as tab:
        tab.expect_trouble(DENIED)
        tab.page.goto(f"{tab.address}/#/topics/orders")
        give(tab, ("alice", "wrong"))
        expect(tab.page.get_by_role("alert")).not_to_be_empty()
        tab.keep_picture(f"login-{place}-{shade}")
        assert Axe().run(tab.page).response["violations"] == []
        give(tab, ALICE)
        tab.settled()
        tab.page.get_by_role("button", name="User menu").click()
        expect(tab.page.get_by_role("button", name="Sign out")).to_be_visible()
        tab.keep_picture(f"user-menu-{place}-{shade}")
        assert Axe().run(tab.page).response["violations"] == []
        assert tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_no_request_of_the_console_can_open_the_browsers_password_dialog(tab: Tab) -> None:
    offers: list[str] = []
    tab.page.on(
        "response",
        lambda answer: (
            offers.append(answer.headers["www-authenticate"]) if answer.status == 401 else None
        ),
    )
    sign_in(tab, ROOT, "#/")
    sign_out(tab)
    assert offers
    assert not [each for each in offers if "basic" in each.lower()]


# -- sessions --------------------------------------------------------------------------------------


def test_signing_out_ends_the_session_and_leaves_nothing_behind(
    tab: Tab, api: httpx.Client
) -> None:
    sign_in(tab, ROOT, "#/")
    expect(tab.page.get_by_text("Live", exact=True)).to_be_visible()
    cookies = tab.page.context.cookies()
    [session] = [each for each in cookies if "strandlog" in each["name"]]
    assert session["httpOnly"] and session["sameSite"] == "Strict"
    sign_out(tab)
    assert not tab.page.context.cookies()
    assert "billing" not in kept_by_browser(tab)
    stolen = {session["name"]: session["value"]}
    assert httpx.get(f"{tab.address}/api/v1/topics", cookies=stolen).status_code == 401
    tab.page.reload()
    expect(login_page(tab)).to_be_visible()


def test_after_the_session_ends_the_same_user_continues_with_its_input(
    tab: Tab, broker: ServerThread
) -> None:
    allow_user(broker, "alice", [(READ.on(TOPIC), "orders"), (WRITE.on(TOPIC), "orders")])
    sign_in(tab, ALICE, "#/topics/orders/produce")
    tab.fill("Value", '{"long": "text"}')
    set_password(broker, "alice", "changed")  # ends the session
    tab.click("Send")
    expect(tab.page.get_by_text(ENDED)).to_be_visible()
    give(tab, ("alice", "changed"))
    expect(tab.page.get_by_label("Value", exact=True)).to_have_value('{"long": "text"}')
    tab.click("Send")
    expect(
        tab.page.get_by_text("partition 0, offset").or_(tab.page.get_by_text("partition 1, offset"))
    ).to_be_visible()


def test_a_dialog_stays_open_behind_the_login_page(tab: Tab, broker: ServerThread) -> None:
    sign_in(tab, ROOT, "#/topics")
    tab.click("Create topic")
    tab.fill("Name", "half-writt")
    set_password(broker, *ROOT)  # ends the session
    expect(tab.page.get_by_text(ENDED)).to_be_visible()
    expect(tab.page.get_by_label("User", exact=True)).to_be_focused()
    give(tab, ROOT)
    expect(login_page(tab)).to_have_count(0)
    name = tab.dialog("Create topic").get_by_label("Name", exact=True)
    expect(name).to_be_focused()
    expect(name).to_have_value("half-writt")


def test_a_page_that_is_only_read_asks_for_a_login_and_continues(
    tab: Tab, broker: ServerThread, api: httpx.Client
) -> None:
    sign_in(tab)
    set_password(broker, "alice", "changed")
    expect(tab.page.get_by_text(ENDED)).to_be_visible()
    allow_user(broker, "alice", [(READ.on(TOPIC), "*")])
    give(tab, ("alice", "changed"))
    expect(tab.row("Topics", "secret")).to_be_visible()  # loaded again


def test_a_live_stream_ends_with_the_session(tab: Tab, broker: ServerThread) -> None:
    sign_in(tab, ALICE, "#/topics/orders/records?live=1")
    expect(tab.page.get_by_role("button", name="Pause")).to_be_visible()
    set_password(broker, "alice", "changed")
    expect(tab.page.get_by_text(ENDED)).to_be_visible()


def test_another_user_starts_with_a_fresh_page(tab: Tab, broker: ServerThread) -> None:
    sign_in(tab, ROOT, "#/topics/secret")
    set_password(broker, *ROOT)  # ends the session
    expect(tab.page.get_by_text(ENDED)).to_be_visible()
    give(tab, ALICE)
    expect(tab.page.get_by_role("button", name="User menu of alice")).to_be_visible()
    expect(tab.page.get_by_role("alert")).to_contain_text("alice lacks the permission DESCRIBE")


def test_a_tab_notices_that_another_tab_signed_in_another_user(tab: Tab) -> None:
    sign_in(tab, ROOT, "#/topics/orders")
    other = Tab(tab.page.context.new_page(), tab.address)
    other.expect_trouble(DENIED)
    other.open("#/topics")
    sign_out(other)
    expect(tab.page.get_by_text(ENDED)).to_be_visible()
    give(other, ALICE)
    expect(other.page.get_by_role("button", name="User menu of alice")).to_be_visible()
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(tab.page.get_by_role("button", name="User menu of alice")).to_be_visible()
    expect(login_page(tab)).to_have_count(0)
    other.page.evaluate(f"fetch('/api/v1/session', {as_json(ROOT)})")
    expect(tab.page.get_by_role("button", name="User menu of alice")).to_be_visible()
    tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(tab.page.get_by_role("button", name="User menu of root")).to_be_visible()
    assert not other.unexpected()


def as_json(user: tuple[str, str]) -> str:
    """The options of a `fetch` that signs a user in."""
    body = json.dumps({"user": user[0], "password": user[1]})
    headers = {"content-type": "application/json"}
    return json.dumps({"method": "POST", "headers": headers, "body": body})


@contextmanager
def resolving_browser(browser: Browser, name: str) -> Iterator[Browser]:
    """Another browser, in which a name resolves to this machine."""
    rules = [
        f"--host-resolver-rules=MAP {name} 127.0.0.1",
        # Chromium itself protects loopback from other pages; other browsers do not.
        "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
    ]
    started = browser.browser_type.launch(executable_path=chromium(), args=[*ARGUMENTS, *rules])
    try:
        yield started
    finally:
        started.close()


def test_signing_in_works_under_a_name_without_tls(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """There, browsers send no Sec-Fetch-Site, so Origin must do."""
    settings = {"http.authentication": "required", "http.hosts": "broker.test"}
    with (
        http_broker(tmp_path_factory.mktemp("named") / "data", settings) as server,
        resolving_browser(browser, "broker.test") as other,
        new_tab(other, http_address(server).replace("127.0.0.1", "broker.test")) as tab,
    ):
        tab.expect_trouble(DENIED)
        set_password(server, *ALICE)
        seen: list[Request] = []
        tab.page.on("request", lambda request: seen.append(request))  # noqa: PLW0108 - needs a name
        tab.page.goto(tab.address)
        expect(login_page(tab)).to_contain_text("This connection is not encrypted")
        sign_in(tab, ALICE, "#/topics")
        tab.page.get_by_role("button", name="Create topic").first.click()
        tab.fill("Name", "made")
        tab.dialog("Create topic").get_by_role("button", name="Create").click()
        expect(tab.heading()).to_have_text("made")
        assert not any("sec-fetch-site" in request.all_headers() for request in seen)
        sign_out(tab)


def test_signing_in_over_tls_uses_a_cookie_that_is_bound_to_the_host(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    settings = {
        "http.listener": "https://127.0.0.1:0",
        "http.authentication": "required",
        "ssl.keystore.location": str(authority.issue("server").store),
    }
    with http_broker(folder / "data", settings) as server:
        set_password(server, *ALICE)
        context = browser.new_context(ignore_https_errors=True, locale="en-GB")
        tab = Tab(context.new_page(), f"https://{server.listener('http')}")
        tab.expect_trouble(DENIED)
        sign_in(tab, ALICE, "#/")
        expect(tab.page.get_by_text("Live", exact=True)).to_be_visible()
        [cookie] = context.cookies()
        assert cookie["name"].startswith("__Host-strandlog-session-")
        assert cookie["secure"] and cookie["httpOnly"]
        sign_out(tab)
        assert not context.cookies()
        assert not tab.unexpected()
        context.close()


# -- what a user may do ----------------------------------------------------------------------------


def test_pages_that_the_user_may_not_see_are_hidden(tab: Tab, broker: ServerThread) -> None:
    sign_in(tab, ALICE, "#/")
    expect(tab.heading()).to_have_text("Topics")
    links = tab.page.get_by_role("navigation", name="Pages").get_by_role("link")
    expect(links).to_have_text(["Topics", "Groups"])
    expect(tab.row("Topics", "orders")).to_be_visible()
    expect(tab.row("Topics", "secret")).to_have_count(0)
    tab.open("#/broker")
    expect(tab.page.get_by_text("User:alice lacks the permission DESCRIBE on the")).to_be_visible()
    allow_user(broker, "alice", [(DESCRIBE.on(CLUSTER), CLUSTER_NAME)])
    tab.page.reload()
    expect(links).to_have_text(["Overview", "Topics", "Groups", "Pipelines", "Broker"])
    expect(tab.panel("Settings")).to_contain_text("lacks the permission DESCRIBE_CONFIGS")


def test_actions_that_the_user_may_not_use_say_why(tab: Tab) -> None:
    sign_in(tab)
    create = tab.page.get_by_role("button", name="Create topic")
    expect(create).to_be_disabled()
    create.click(force=True)
    expect(tab.toast("User:alice lacks the permission CREATE on any topic.")).to_be_visible()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    tab.open("#/topics/orders")
    # The state and the lag of its groups came from a stream that requires more permissions.
    expect(tab.row("Groups that read this topic", "billing")).to_contain_text("Empty")
    expect(tab.page.get_by_role("link", name="Records", exact=True)).to_be_enabled()
    for name, operation in (("Add partitions", "ALTER"), ("Delete", "DELETE")):
        button = tab.page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_disabled()
        reason = f"User:alice lacks the permission {operation} on topic 'orders'."
        expect(button).to_have_attribute("title", reason)
    tab.open("#/topics/orders/produce")
    expect(tab.page.get_by_text("lacks the permission WRITE on topic 'orders'")).to_be_visible()
    tab.open("#/groups/billing")
    expect(tab.page.get_by_role("button", name="Reset offsets")).to_be_disabled()
    expect(tab.page.get_by_role("button", name="Delete group")).to_be_disabled()


@pytest.mark.parametrize("route", ["", "/records", "/produce"])
def test_a_topic_that_the_user_may_not_see_offers_no_actions(tab: Tab, route: str) -> None:
    sign_in(tab, ALICE, f"#/topics/secret{route}")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("User:alice lacks the permission DESCRIBE on topic 'secret'")
    for name in ("Records", "Produce", "Live tail"):
        expect(tab.page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    for name in ("Add partitions", "Delete"):
        expect(tab.page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_a_permission_that_is_granted_enables_the_action_without_a_reload(
    tab: Tab, broker: ServerThread
) -> None:
    sign_in(tab, ALICE, "#/topics/orders")
    produce = tab.page.get_by_role("link", name="Produce", exact=True)
    expect(produce).to_have_attribute("aria-disabled", "true")
    allow_user(broker, "alice", [(READ.on(TOPIC), "orders"), (WRITE.on(TOPIC), "orders")])
    expect(produce).not_to_have_attribute("aria-disabled", "true")
    produce.click()
    expect(tab.heading()).to_have_text("Produce")


def test_on_loopback_signing_in_is_offered_but_not_required(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        http_broker(tmp_path_factory.mktemp("optional") / "data") as server,
        new_tab(browser, http_address(server)) as tab,
    ):
        tab.expect_trouble(DENIED)
        tab.open("#/topics")
        expect(tab.heading()).to_have_text("Topics")
        button = tab.page.get_by_role("button", name="Sign in")
        expect(button).to_have_count(0)  # without users, a login can only fail
        set_password(server, *ALICE)
        tab.page.reload()
        button.click()
        expect(login_page(tab)).to_be_visible()
        tab.page.keyboard.press("Escape")
        expect(tab.heading()).to_have_text("Topics")
        tab.click("Sign in")
        give(tab, ALICE)
        expect(tab.page.get_by_role("button", name="User menu of alice")).to_be_visible()
        expect(tab.heading()).to_have_text("Topics")
        tab.page.get_by_role("button", name="User menu").click()
        tab.click("Sign out")
        expect(tab.page.get_by_role("button", name="Sign in")).to_be_visible()
        expect(tab.heading()).to_have_text("Topics")


def test_a_user_who_is_not_signed_in_is_not_told_that_there_are_no_topics(
    browser: Browser, tmp_path: Path
) -> None:
    settings = {"authorizer.class.name": "strandlog", "super.users": "User:alice"}
    with (
        http_broker(tmp_path / "data", settings) as server,
        new_tab(browser, http_address(server)) as tab,
    ):
        tab.expect_trouble(DENIED)
        set_password(server, *ALICE)
        tab.open("#/topics")
        expect(tab.panel("Topics")).to_contain_text("Sign in to see topics")
        allow_user(server, "ANONYMOUS", [(DESCRIBE.on(CLUSTER), CLUSTER_NAME)])
        tab.page.reload()
        tab.open("#/")
        expect(tab.heading()).to_have_text("Overview")
        expect(tab.page.get_by_text("Sign in to see topics")).to_be_visible()
        tab.click("Sign in")
        give(tab, ALICE)
        expect(tab.page.get_by_text("No topics yet")).to_be_visible()


# -- markup ----------------------------------------------------------------------------------------


def is_harmless(page: Page) -> bool:
    return (
        page.evaluate("window.hacked === undefined")
        and page.locator("main img, dialog img[src='x'], main b, .bar b, #toasts img").count() == 0
    )


def test_markup_in_names_values_and_errors_is_shown_as_text(tab: Tab, api: httpx.Client) -> None:
    dialogs: list[str] = []
    tab.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    make(api, "marked")
    headers = [{"name": MARKUP, "value": MARKUP}]
    for value in (MARKUP, f'{{"html": "{quote(MARKUP)}", "<b>": "<script>alert(1)</script>"}}'):
        send(api, "marked", {"key": MARKUP, "value": value, "headers": headers})
    group = f"{MARKUP}<script>alert(1)</script>"
    commit(api, quote(group, safe=""), "marked", 0)
    report(
        api,
        quote(MARKUP, safe=""),
        {"name": MARKUP, "rows": 1, "batch_ms": 1},
        error=MARKUP,
        state="failed",
    )
    sign_in(tab, HACKER, "#/")
    expect(tab.page.get_by_role("button", name=f"User menu of {HACKER[0]}")).to_have_text(
        f"{HACKER[0]}▾"
    )
    tab.page.get_by_role("button", name="User menu").click()
    expect(tab.page.locator("#user-menu strong").filter(has_text=HACKER[0])).to_be_visible()
    tab.page.keyboard.press("Escape")
    routes = {
        "#/": group,
        "#/topics/marked/records": MARKUP,
        "#/groups": group,
        f"#/groups/{quote(group, safe='')}": group,
        "#/pipelines": MARKUP,
        f"#/pipelines/{quote(MARKUP, safe='')}": MARKUP,
        f"#/topics/{quote(MARKUP, safe='')}": MARKUP,
        f"#/topics/{quote(MARKUP, safe='')}/records": MARKUP,
        f"#/groups/{quote(MARKUP, safe='')}": MARKUP,
    }
    tab.expect_trouble(r"status of (400|404)")
    for route, text in routes.items():
        tab.open(route)
        expect(tab.page.get_by_role("main")).to_contain_text(text)
        if route.endswith("marked/records"):
            for button in tab.page.get_by_role("button", name="Partition 0, offset").all():
                button.click()
        assert is_harmless(tab.page), route
    assert not dialogs


def test_markup_in_a_login_and_in_a_denial_is_shown_as_text(tab: Tab) -> None:
    tab.page.goto(tab.address)
    give(tab, (MARKUP, MARKUP))
    expect(tab.page.get_by_role("alert")).to_have_text("Wrong user or password.")
    assert is_harmless(tab.page)
    sign_in(tab, ALICE, f"#/topics/{quote(MARKUP, safe='')}")
    expect(tab.page.get_by_role("alert")).to_contain_text("lacks the permission")
    expect(tab.page.get_by_role("alert")).to_contain_text(MARKUP)
    assert is_harmless(tab.page)


# -- other sites -----------------------------------------------------------------------------------

ATTACK = """<!doctype html><title>another site</title>
<iframe name="sink"></iframe>
<form id="form" method="post" enctype="text/plain" target="sink">
  <input name='{"records":[{"value":"forged' value='"}]}'>
</form>
<script>
async function attack(target) {
  const found = {};
  const attempt = async (name, path, options) => {
    try {
      const answer = await fetch(target + path, {credentials: "include", ...options});
      found[name] = answer.type === "opaque" ? "opaque" : await answer.text();
    } catch (error) {
      found[name] = "blocked";
    }
  };
  const json = {"content-type": "application/json"};
  const body = JSON.stringify({records: [{value: "forged"}]});
  const records = "/api/v1/topics/orders/records";
  await attempt("read", "/api/v1/topics", {});
  await attempt("read without cors", "/api/v1/topics", {mode: "no-cors"});
  await attempt("json", records, {method: "POST", headers: json, body});
  await attempt("text", records, {method: "POST", mode: "no-cors", body});
  await attempt("delete", "/api/v1/topics/orders", {method: "DELETE"});
  await attempt("sign out", "/api/v1/session", {method: "DELETE"});
  found.events = await new Promise((resolve) => {
    const source = new EventSource(`${target}/api/v1/live`, {withCredentials: true});
    source.onmessage = source.onopen = () => resolve("open");
    source.onerror = () => { source.close(); resolve("blocked"); };
  });
  const form = document.getElementById("form");
  form.action = target + records;
  form.submit();
  return found;
}
</script>"""


@contextmanager
def another_site(host: str) -> Iterator[str]:
    """A web server on another port of this machine, with a page that attacks the broker."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ATTACK.encode() if self.path == "/" else b""
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            del args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_site_can_neither_read_nor_change_anything(
    tab: Tab, broker: ServerThread, api: httpx.Client, host: str
) -> None:
    """127.0.0.1 is the same site, to which the browser sends the cookie; localhost is another."""
    sign_in(tab, ROOT)
    before = ok(api.get("/api/v1/topics/orders"))["partitions"]
    answers: list[tuple[str, int]] = []
    tab.expect_trouble(".*")
    tab.page.on("response", lambda answer: answers.append((answer.request.method, answer.status)))
    with another_site(host) as site:
        tab.page.goto(site)
        answers.clear()
        with tab.page.expect_response(
            lambda answer: answer.request.is_navigation_request()
        ) as form:
            found = tab.page.evaluate("(target) => attack(target)", tab.address)
        assert form.value.status == 403
    assert {name for name, each in found.items() if each not in ("blocked", "opaque")} == set()
    assert {status for _, status in answers} <= {403, 405, 415}
    assert ok(api.get("/api/v1/topics/orders"))["partitions"] == before
    tab.page.goto(f"{tab.address}/#/topics/orders")  # still signed in
    expect(tab.heading()).to_have_text("orders")


def test_a_link_from_another_site_opens_the_console(tab: Tab) -> None:
    """The browser keeps the cookie back for the link itself, but not for the page's requests."""
    sign_in(tab)
    with another_site("localhost") as site:
        tab.expect_trouble(".*")
        tab.page.goto(site)
        tab.page.evaluate("(target) => { location.href = target + '/#/topics' }", tab.address)
        expect(tab.heading()).to_have_text("Topics")


def test_a_name_of_another_site_that_resolves_to_this_machine_reaches_nothing(
    browser: Browser, broker: ServerThread
) -> None:
    """DNS rebinding: the attacker's page has this origin, and its name now resolves to here."""
    with resolving_browser(browser, "evil.example") as started:
        page = started.new_page()
        address = http_address(broker).replace("127.0.0.1", "evil.example")
        for path in ("/", "/api/v1/topics", "/healthz", "/metrics"):
            answer = page.goto(address + path)
            assert answer is not None and answer.status == 421
        page.route("**/attack", lambda route: route.fulfill(body=ATTACK, content_type="text/html"))
        page.goto(f"{address}/attack")
        found = page.evaluate("attack('')")
        assert {name for name, each in found.items() if "Unknown host" in each} == {
            *("read", "read without cors", "json", "text", "delete", "sign out")
        }
        assert found["events"] == "blocked"
