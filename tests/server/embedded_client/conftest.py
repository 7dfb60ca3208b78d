"""An embedded log whose disk and clock a test controls."""

from tests.unit.client.conftest import embedded

__all__ = ["embedded"]
