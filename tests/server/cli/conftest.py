"""Fixtures: a command line on a folder, on a broker, or on each in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import emptied
from tests.support.command_line import CommandLine

import strandlog
from strandlog.testing.server import ServerThread


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "data")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server for the tests of a file; groups do not wait for late members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ServerThread(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def wire(broker: ServerThread, tmp_path: Path) -> CommandLine:
    """A command line on an empty broker."""
    with strandlog.connect(broker.address) as log:
        emptied(log)
    return CommandLine(tmp_path / "data", broker.address)


@pytest.fixture(params=["folder", "wire"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """A command line on a folder, then on a broker: the behaviour must be the same."""
    if request.param == "folder":
        return CommandLine(tmp_path / "data")
    found: CommandLine = request.getfixturevalue("wire")
    return found
