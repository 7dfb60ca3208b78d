"""What holds for all tests."""

from __future__ import annotations

from tests.quick_java import make_java_quick

make_java_quick()
