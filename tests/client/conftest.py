"""What the tests of the client layer begin with.

Imports kafka-python where its warnings are not errors: it reads its schemas in a dated way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from tests.broker_process import BrokerProcess, emptied
from tests.client.desk import Desk

import strandlog

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk whose log is closed in the end, if it can be."""
    made = Desk()
    yield made
    made.disk.clear_faults()
    made.disk.watch(None)
    made.disk.capacity_bytes = None
    made.log.close()


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
