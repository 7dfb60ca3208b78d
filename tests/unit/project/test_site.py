"""The documentation site builds without warnings, and its pages load nothing from other hosts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SITE = ROOT / "build" / "site"
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href|srcset)=[\"']?(https?:)?//"
)
IMPORTED = re.compile(r"(?:@import|url\()\s*[\"']?https?://")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="the packages of the site are not installed: `make docs` installs them",
)
def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts() -> None:
    build = [sys.executable, "tools/build_docs.py"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(SITE.rglob("*.html"))
    assert {SITE / "index.html", SITE / "docs/reference/python/library.html"} <= set(pages)
    assert "acknowledged" in (SITE / "docs/explanation/guarantees.html").read_text()
    assert "create_topic" in (SITE / "docs/reference/python/library.html").read_text()
    assert not [page for page in pages if LOADED.search(page.read_text())]
    styles = list(SITE.rglob("*.css"))
    assert styles
    assert not [style for style in styles if IMPORTED.search(style.read_text())]
