"""A client to the broker of the test file, and a topic of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition

_numbers = itertools.count()


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
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.address, {"default.api.timeout.ms": "20000"}) as made:
        yield made


@pytest.fixture
def tp(client: WireClient) -> TopicPartition:
    """The first of three partitions of a new topic."""
    name = f"wire{next(_numbers)}"
    client.create_topic(name, 3, {"max.message.bytes": "3000000"})
    return TopicPartition(name, 0)
