"""A broker for the tests of one file, and the log behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess, emptied

import strandlog


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A real broker for the tests of a file; groups do not wait for late joiners."""
    running = BrokerProcess(
        tmp_path_factory.mktemp("broker") / "data", {"group.initial.rebalance.delay.ms": "0"}
    )
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def remote(broker: BrokerProcess) -> Iterator[strandlog.RemoteLog]:
    """The log behind the broker, empty."""
    with strandlog.connect(broker.address, timeout_ms=20_000) as log:
        yield emptied(log)
