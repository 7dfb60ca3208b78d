"""A broker for the tests of one file, and the log behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.broker_process import emptied

import strandlog
from strandlog.testing.server import ServerThread


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server for the tests of a file; groups do not wait for late members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ServerThread(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def remote(broker: ServerThread) -> Iterator[strandlog.RemoteLog]:
    """The log behind the broker, empty."""
    with strandlog.connect(broker.address, timeout_ms=20_000) as log:
        yield emptied(log)
