"""A command line for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "data")
