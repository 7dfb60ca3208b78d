"""A command line on a data folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "data")
