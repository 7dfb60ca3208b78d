"""A broker that reports can reach, a client to it, and a topic for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from strandlog.client.wire.client import WireClient
from strandlog.testing.server import ServerThread

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    # Some records of the tests are of 1970: retention would delete them.
    forever = {"log.retention.ms": "-1"}
    with ServerThread(tmp_path_factory.mktemp("spark") / "data", forever, http=True) as running:
        yield running


@pytest.fixture
def client(broker: ServerThread) -> Iterator[WireClient]:
    with WireClient(broker.address) as connected:
        yield connected


@pytest.fixture
def topic(client: WireClient) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"s{next(_numbers)}"
    client.create_topic(name, 2)
    return name
