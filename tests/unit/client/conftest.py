"""Fixtures for the tests of the client package.

Imports kafka-python here, where its deprecation warnings are not errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from tests.support.embedded_harness import EmbeddedHarness

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401


@pytest.fixture
def embedded() -> Iterator[EmbeddedHarness]:
    """An embedded log; the teardown clears all faults and closes it."""
    harness = EmbeddedHarness()
    yield harness
    harness.disk.clear_faults()
    harness.disk.watch(None)
    harness.disk.capacity_bytes = None
    harness.log.close()
