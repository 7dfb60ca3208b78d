"""A client to the broker of the test file, and a topic of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.testing.server import ServerThread

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server for the tests of a file; groups do not wait for late members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ServerThread(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def client(broker: ServerThread) -> Iterator[WireClient]:
    with WireClient(broker.address, {"default.api.timeout.ms": "20000"}) as made:
        yield made


@pytest.fixture
def tp(client: WireClient) -> TopicPartition:
    """The first of three partitions of a new topic."""
    name = f"wire{next(_numbers)}"
    client.create_topic(name, 3, {"max.message.bytes": "3000000"})
    return TopicPartition(name, 0)
