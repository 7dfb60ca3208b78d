"""The README and the guides run, block by block, as a reader pastes them; those with Spark are in
tests/spark/test_guides_on_spark.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.guide_runner import GuideRunner
from tests.support.guides import WITHOUT_SPARK, guide
from tests.support.quick_commands import quick_commands

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("bash", "curl")), reason="needs bash and curl"
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_commands(tmp_path_factory.mktemp("commands") / "bin") as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_the_blocks_of_the_guide_run_in_order(name: str, commands: Path, tmp_path: Path) -> None:
    GuideRunner(guide(name), tmp_path, commands).run()
