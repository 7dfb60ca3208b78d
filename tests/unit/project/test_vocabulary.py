"""Words that the source and the documentation do not use, because Kafka has a plainer one.

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
)
WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})s?(?![a-z])", re.IGNORECASE)
PLACES = ("src", "docs", "deploy", "proto")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".json", ".yml", ".proto", ".toml"}
# What still has to be rewritten; a file leaves the list when it is clean, and none is added.
NOT_YET = {
    "docs/decisions/0002-synchronous-core.md",
    "docs/decisions/0005-the-recovery-point.md",
    "docs/decisions/0010-schemas-without-their-reader.md",
    "docs/decisions/0012-exactly-once-in-spark.md",
    "docs/decisions/0013-the-console.md",
    "docs/guides/clients.md",
    "docs/guides/console.md",
    "src/strandlog/__init__.py",
    "src/strandlog/client/__init__.py",
    "src/strandlog/record/arrow/columns.py",
    "src/strandlog/record/arrow/encode.py",
    "src/strandlog/record/arrow/kernels/compile.py",
    "src/strandlog/record/arrow/kernels/encode.py",
    "src/strandlog/record/batch.py",
    "src/strandlog/server/grpc/__init__.py",
    "src/strandlog/server/http/__init__.py",
    "src/strandlog/server/http/console/assets.py",
    "src/strandlog/server/http/metrics/families.py",
    "src/strandlog/server/node/__init__.py",
    "src/strandlog/server/node/listener.py",
    "src/strandlog/server/node/peer.py",
    "src/strandlog/storage/cleaning/compaction.py",
    "src/strandlog/storage/cleaning/retention.py",
    "src/strandlog/storage/folder/identity.py",
    "src/strandlog/storage/folder/log_dir.py",
    "src/strandlog/storage/partition/log.py",
    "src/strandlog/storage/partition/read.py",
    "src/strandlog/storage/readonly/dump.py",
    "src/strandlog/storage/readonly/committed.py",
    "src/strandlog/storage/readonly/verify.py",
    "src/strandlog/storage/readonly/view.py",
    "src/strandlog/storage/segment/cache.py",
    "src/strandlog/storage/segment/segment.py",
    "src/strandlog/storage/segment/swap.py",
}


def _texts() -> list[Path]:
    found = [path for place in PLACES for path in (ROOT / place).rglob("*")]
    found += [ROOT / page for page in PAGES]
    return sorted(path for path in found if path.suffix in SUFFIXES and "_pb2" not in path.name)


def test_no_text_uses_the_words_that_the_project_has_replaced() -> None:
    used = {}
    for path in _texts():
        name = path.relative_to(ROOT).as_posix()
        words = sorted({match[0].lower() for match in WORD.finditer(path.read_text())})
        if words and name not in NOT_YET:
            used[name] = words
    assert not used
