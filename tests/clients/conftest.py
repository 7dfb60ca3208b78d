"""A real broker process on a real socket, for real clients.

`broker` is one for the test alone, which may kill it; `shared_broker` serves many tests of one
worker, each on a `topic` of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess

# Groups do not wait for late joiners, and a member that was killed is missed soon.
QUICK = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}

_numbers = itertools.count()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on a fresh folder."""
    running = BrokerProcess(tmp_path / "data", QUICK)
    running.start()
    yield running
    if running.process is not None:
        assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for many tests; none of them may stop it."""
    running = BrokerProcess(tmp_path_factory.mktemp("shared") / "data", QUICK)
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def topic() -> str:
    """A name that no other test on the shared broker uses; for groups too."""
    return f"t{next(_numbers)}"
