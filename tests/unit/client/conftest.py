"""What the tests of the client layer begin with.

Imports kafka-python where its warnings are not errors: it reads its schemas in a dated way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from tests.support.embedded_harness import Desk

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
