"""An embedded log whose disk and clock a test controls."""

from tests.unit.client.conftest import desk

__all__ = ["desk"]
