"""A broker that the tests of one module share, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = BrokerProcess(
        tmp_path_factory.mktemp("broker") / "data",
        {"group.initial.rebalance.delay.ms": "0", "log.retention.ms": "86400000"},
    )
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def wire(shared_broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(shared_broker.port) as connection:
        yield connection
