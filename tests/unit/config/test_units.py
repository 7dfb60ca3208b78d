"""Counts with their nouns."""

from __future__ import annotations

import pytest

from strandlog.config.units import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 records"), (1, "1 record"), (2000, "2,000 records")]
)
def test_a_count_has_a_noun_in_the_right_number(count: int, text: str) -> None:
    assert counted(count, "record") == text
