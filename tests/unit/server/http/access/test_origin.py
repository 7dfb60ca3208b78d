"""Which requests count as sent by the page of another site."""

from __future__ import annotations

import pytest

from strandlog.server.http.access.origin import check_origin
from strandlog.server.http.problems import HttpError

HOST = "127.0.0.1:9095"
OWN = "http://127.0.0.1:9095"
CHANGES = ["POST", "PUT", "PATCH", "DELETE"]
OTHERS = [
    "http://evil.example",
    "http://127.0.0.1:8000",
    "http://127.0.0.1",
    "http://localhost:9095",
    "null",
    "",
    "http://127.0.0.1:9095.evil.example",
    "http://[",
]


def is_accepted(method: str, *, has_cookie: bool = True, **headers: str) -> bool:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        check_origin(method, {"host": HOST, **given}, has_cookie=has_cookie)
    except HttpError as error:
        assert error.status == 403
        return False
    return True


@pytest.mark.parametrize("has_cookie", [False, True])
@pytest.mark.parametrize("method", ["GET", *CHANGES])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "other"])
def test_requests_of_other_pages_are_rejected(method: str, site: str, has_cookie: bool) -> None:
    assert not is_accepted(method, has_cookie=has_cookie, sec_fetch_site=site)
    # The browser vouches for Sec-Fetch-Site; an equal Origin does not help.
    assert not is_accepted(method, has_cookie=has_cookie, sec_fetch_site=site, origin=OWN)


@pytest.mark.parametrize("has_cookie", [False, True])
@pytest.mark.parametrize("method", ["GET", *CHANGES])
@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_requests_of_the_own_page_are_accepted(method: str, site: str, has_cookie: bool) -> None:
    assert is_accepted(method, has_cookie=has_cookie, sec_fetch_site=site)


@pytest.mark.parametrize("has_cookie", [False, True])
@pytest.mark.parametrize("method", ["GET", *CHANGES])
def test_without_sec_fetch_site_the_origin_decides(method: str, has_cookie: bool) -> None:
    assert is_accepted(method, has_cookie=has_cookie, origin=OWN)
    for other in OTHERS:
        assert not is_accepted(method, has_cookie=has_cookie, origin=other), other


@pytest.mark.parametrize("method", CHANGES)
def test_a_change_with_a_cookie_needs_one_of_the_headers(method: str) -> None:
    assert not is_accepted(method, has_cookie=True)
    assert is_accepted(method, has_cookie=False), "a program"
    assert is_accepted("GET", has_cookie=True), "a browser on http sends neither with a GET"


def test_following_a_link_is_accepted_but_a_form_of_another_site_is_not() -> None:
    site, mode = "cross-site", "navigate"
    assert is_accepted("GET", sec_fetch_site=site, sec_fetch_mode=mode)
    assert not is_accepted("POST", sec_fetch_site=site, sec_fetch_mode=mode, origin="null")


def test_the_host_is_compared_without_regard_to_case_and_scheme() -> None:
    for origin in ("https://Broker.LAN", "http://broker.lan"):
        check_origin("POST", {"host": "broker.lan", "origin": origin}, has_cookie=True)
