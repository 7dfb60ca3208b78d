"""A real broker process on a real socket, for real clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on a fresh folder; groups do not wait for late joiners."""
    running = BrokerProcess(tmp_path / "data", {"group.initial.rebalance.delay.ms": "0"})
    running.start()
    yield running
    if running.process is not None:
        assert running.stop() == 0, "a broker stops cleanly"
