"""A broker that reports can reach, a client to it, and a topic for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Some records of the tests are of 1970: retention would delete them.
    forever = {"log.retention.ms": "-1"}
    doors = ("--no-grpc", "--http-port", "0")
    running = BrokerProcess(tmp_path_factory.mktemp("spark") / "data", forever, doors=doors)
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.address) as connected:
        yield connected


@pytest.fixture
def topic(client: WireClient) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"s{next(_numbers)}"
    client.create_topic(name, 2)
    return name
