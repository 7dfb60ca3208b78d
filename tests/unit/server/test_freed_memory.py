"""What the server asks of the C library's allocator."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from strandlog.server import app

VARIABLES = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The calls of mallopt."""
    found: list[tuple[int, int]] = []

    def mallopt(*given: Any) -> None:
        found.append(given)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return found


def test_glibc_keeps_freed_memory(calls: list[tuple[int, int]]) -> None:
    app._keep_freed_memory()
    assert dict(calls) == {
        app.M_MMAP_THRESHOLD: app.LARGEST_HEAP_BLOCK_BYTES,
        app.M_TRIM_THRESHOLD: app.KEPT_FREE_BYTES,
    }


@pytest.mark.parametrize("name", VARIABLES)
def test_thresholds_in_the_environment_are_overridden(
    name: str, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "131072")
    app._keep_freed_memory()
    assert calls == []
