"""Every pipeline file in the pipelines guide is valid, also those of which it shows a part.

test_guides_on_spark.py runs the whole guide.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from strandlog.spark.pipeline import validate

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pipelines.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(GUIDE.read_text()) if name == language]


def whole(block: str) -> str:
    """A pipeline file with a block: as it is, or with the other tables of the first one."""
    first = blocks("toml")[0]
    tables = tomllib.loads(block)
    if "source" in tables:
        return block
    if "name" in tables.get("pipeline", {}):
        return block + first[first.index("[[source]]") :]
    return first + "\n" + block


def pipeline_blocks() -> list[str]:
    return [block for block in blocks("toml") if "[[case]]" not in block]


@pytest.mark.parametrize("number", range(len(pipeline_blocks())))
def test_every_pipeline_of_the_guide_is_valid(number: int, spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(whole(pipeline_blocks()[number]))
    found = validate(file, spark)
    assert (found.problems, found.unchecked) == ([], [])
