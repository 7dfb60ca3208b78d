"""Links in the documents lead to files, and ARCHITECTURE.md names modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "strandlog"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)")
MODULE = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert not [link for link in links if not (document.parent / link).exists()]


def test_architecture_names_existing_modules() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [SOURCE, ROOT, *(path for path in SOURCE.iterdir() if path.is_dir())]
    missing = [
        name for name in MODULE.findall(text) if not any((each / name).exists() for each in folders)
    ]
    assert not missing


def test_every_guarantee_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/.]+)`", text)
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if f" {page}\n" not in navigation]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140
