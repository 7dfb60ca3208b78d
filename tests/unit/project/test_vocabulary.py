"""Words that source, tests and documentation do not use, because there are plainer ones.

Write listener instead of door, read-only log instead of guest, maintenance instead of upkeep or
chore, member list instead of roster, error instead of refusal, and name the subject of a sentence:
the client, the writer, another process.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORDS = (
    *("door", "guest", "chore", "upkeep", "roster", "refusal"),
    *("whoever", "whomever", "whomsoever", "somebody", "anybody", "everybody", "nobody"),
    *("doomed", "hurry", "breathe", "in its stead", "hangs? up", "hung up", "stands? still"),
    *("stood still", "is told", "are told", "was told", "were told", "made anew"),
    *("yard", "shelf"),
)
WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})s?(?![a-z])", re.IGNORECASE)
PLACES = ("src", "docs", "deploy", "proto", "examples", "tools", "benchmarks", "tests")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".json", ".yml", ".proto", ".toml"}


def _texts() -> list[Path]:
    found = [path for place in PLACES for path in (ROOT / place).rglob("*")]
    found = [path for path in found if path.suffix in SUFFIXES and "_pb2" not in path.name]
    return sorted({*found, *(ROOT / page for page in PAGES)} - {Path(__file__)})


def test_no_text_uses_the_words_that_the_project_has_replaced() -> None:
    used = {}
    for path in _texts():
        name = path.relative_to(ROOT).as_posix()
        words = sorted({match[0].lower() for match in WORD.finditer(path.read_text())})
        if words:
            used[name] = words
    assert not used
