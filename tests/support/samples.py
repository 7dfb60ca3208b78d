"""Chooses the parameters that `make test` runs of a large matrix; `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = pytest.mark.slow


def outer_versions(rows: Iterable[tuple[Any, int]]) -> list[Any]:
    """Mark all but the first and the last version of each API `slow`.

    `rows` are pairs of API and version. The versions of an API differ in few fields.
    """
    all_rows = list(rows)
    spans: dict[Any, list[int]] = {}
    for api, version in all_rows:
        spans.setdefault(api, []).append(version)
    return [
        pytest.param(api, version)
        if version in (min(spans[api]), max(spans[api]))
        else pytest.param(api, version, marks=SLOW)
        for api, version in all_rows
    ]


def one_in(step: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all but every `step`-th case `slow`."""
    return [
        case if number % step == 0 else pytest.param(case, marks=SLOW)
        for number, case in enumerate(cases)
    ]
