"""A server that the tests of one module share, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.kafka_requests import Wire

from strandlog.testing.server import ServerThread


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"group.initial.rebalance.delay.ms": "0", "log.retention.ms": "86400000"}
    with ServerThread(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running


@pytest.fixture
def wire(shared_broker: ServerThread) -> Iterator[Wire]:
    with Wire(shared_broker.port) as connection:
        yield connection
