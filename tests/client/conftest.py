"""What the tests of the client layer begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.desk import Desk


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk whose log is closed in the end, if it can be."""
    made = Desk()
    yield made
    made.disk.clear_faults()
    made.disk.watch(None)
    made.disk.capacity_bytes = None
    made.log.close()
