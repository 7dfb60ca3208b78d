"""The Authorization header and the challenge."""

from __future__ import annotations

import base64

import pytest

from strandlog.server.access.logins import Password, Token, parse_authorization
from strandlog.server.http.access.credentials import not_authenticated


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "credentials"),
    [
        (basic("alice:secret"), Password("alice", "secret")),
        (basic("alice:se:cr:et"), Password("alice", "se:cr:et")),
        (basic("alice:"), Password("alice", "")),
        (basic(":p"), Password("", "p")),
        (basic("zoë:pässwörd"), Password("zoë", "pässwörd")),
        (basic("alice:secret").replace("Basic ", "bAsIc   "), Password("alice", "secret")),
        ("Bearer a.b.c", Token("a.b.c")),
        ("bearer a.b.c ", Token("a.b.c")),
    ],
)
def test_valid_headers(header: str, credentials: Password | Token) -> None:
    assert parse_authorization(header) == credentials


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic ",
        "Basic ???",
        "Basic YQ",  # no padding
        basic("no colon"),
        "Basic " + base64.b64encode(b"\xff\xfe:p").decode(),
        "Bearer",
        "Bearer ",
        "Digest username=alice",
        "alice:secret",
    ],
)
def test_invalid_headers(header: str) -> None:
    assert parse_authorization(header) is None


SCRIPTS = [
    {"sec-fetch-mode": "cors"},
    {"sec-fetch-mode": "same-origin"},
    {"x-requested-with": "strandlog"},
    {"accept": "text/event-stream"},
]


@pytest.mark.parametrize("headers", SCRIPTS, ids=str)
def test_a_script_is_not_offered_basic_because_its_browser_would_open_a_dialog(
    headers: dict[str, str],
) -> None:
    offers = [value for _, value in not_authenticated("x", headers).headers]
    assert offers == ['Bearer realm="strandlog"']


@pytest.mark.parametrize(
    "headers", [{}, {"sec-fetch-mode": "navigate"}, {"accept": "*/*"}], ids=str
)
def test_programs_and_links_are_offered_both_schemes(headers: dict[str, str]) -> None:
    offers = [value for _, value in not_authenticated("x", headers).headers]
    assert offers == ['Basic realm="strandlog", charset="UTF-8"', 'Bearer realm="strandlog"']
