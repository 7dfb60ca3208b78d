"""The files of the console as the server sends them; tests/browser tests the pages."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from tests.support.http_client import client_of, http_broker, problem

import strandlog.server.http.console
from strandlog.server.http.console.assets import POLICY

STATIC = Path(strandlog.server.http.console.__file__).parent / "static"
FILES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
MAX_FILE_LINES = 450


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        http_broker(tmp_path_factory.mktemp("console") / "data") as running,
        client_of(running) as opened,
    ):
        yield opened


def test_the_page_is_html_with_a_strict_content_security_policy(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-cache"
    assert "unsafe" not in POLICY
    assert "<script src=" in answer.text


def test_the_page_has_no_inline_scripts_or_styles(client: httpx.Client) -> None:
    page = client.get("/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)", page), "the policy forbids scripts in the page"
    assert not re.search(r"\son\w+=|\sstyle=", page)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_unchanged(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/console/{name}")
    assert answer.status_code == 200
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = client.get(f"/console/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and not again.content
    plain = client.get(f"/console/{name}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content


def test_every_referenced_file_exists() -> None:
    missing = []
    for name in FILES:
        text = (STATIC / name).read_text()
        for wanted in re.findall(r'from "(\.[^"]+)"', text):
            if not (STATIC / name).parent.joinpath(wanted).exists():
                missing.append((name, wanted))
        for wanted in re.findall(r'(?:src|href)="/console/([^"]+)"', text):
            if not (STATIC / wanted).exists():
                missing.append((name, wanted))
    assert not missing


def test_every_file_is_used() -> None:
    texts = {name: (STATIC / name).read_text() for name in FILES}
    unused = [
        name
        for name in FILES
        if name != "index.html"
        and not any(Path(name).name in text for other, text in texts.items() if other != name)
    ]
    assert not unused


def test_files_are_short_and_use_no_html_strings_or_remote_addresses() -> None:
    for name in FILES:
        text = (STATIC / name).read_text()
        assert len(text.splitlines()) <= MAX_FILE_LINES, name
        if name.endswith(".js"):
            assert text.startswith("// "), f"{name} opens with what it is"
        # Markup out of strings is how the words of a record would become part of the page.
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert "//cdn" not in text and not re.search(r"https?://(?!www\.w3\.org)[a-z]", text), name


def test_plotly_is_served_from_its_package(client: httpx.Client) -> None:
    spec = find_spec("plotly")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    with client.stream("GET", "/console/plotly.min.js") as answer:
        raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(raw) == source.read_bytes()


@pytest.mark.parametrize("name", ["", "nothing.js", "../app.py", "%2e%2e/app.py", "views"])
def test_an_unknown_file_is_not_found(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/console/{name}")
    problem(answer, 404)


def test_the_console_page_rejects_post(client: httpx.Client) -> None:
    problem(client.post("/", json={}), 405)
