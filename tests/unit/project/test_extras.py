"""An extra that an error names has the package that the error says is missing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# MissingExtraError("schemas", "avro"), or error.name or "avro" as the second argument
RAISED = re.compile(r'MissingExtraError\("(\w+)", (?:\w+\.name or )?"(\w+)"\)')


def packages(extra: str) -> set[str]:
    """The packages of an extra, and of the extras that it includes."""
    found: set[str] = set()
    for each in EXTRAS[extra]:
        included = re.fullmatch(r"strandlog\[(.*)\]", each)
        for other in included[1].split(",") if included else ():
            found |= packages(other)
        found.add(re.split(r"[\[<>=]", each)[0].replace("-", "_"))
    return found


def test_an_error_names_an_extra_that_has_the_missing_package() -> None:
    sources = (ROOT / "src").rglob("*.py")
    named = {pair for path in sources for pair in RAISED.findall(path.read_text())}
    assert ("client", "kio") in named
    assert not [pair for pair in sorted(named) if pair[1] not in packages(pair[0])]
