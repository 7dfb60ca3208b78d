"""The pages with PySpark run, block by block, as a reader pastes them, in one Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.guide_runner import GuideRunner
from tests.support.guides import WITH_SPARK, guide
from tests.support.quick_commands import quick_commands

pytestmark = [
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("bash", "curl")), reason="needs bash and curl"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_commands(tmp_path_factory.mktemp("commands") / "bin") as folder:
        yield folder


LONG = ("spark", "pipelines", "tables")  # several streams each


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in WITH_SPARK],
)
def test_the_blocks_of_the_page_run_in_order(
    name: str, spark: Any, commands: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "guide"
    replace = {
        # Java resolves paths in the folder in which it was started.
        "./checkpoints": str(folder / "checkpoints"),
        "./lake": str(folder / "lake"),
        "running.wait(60)": "running.wait(1)",
    }
    GuideRunner(guide(name), tmp_path, commands, replace, spark=spark).run()
