"""An asyncio log in an event loop of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.async_log import Program, Run

import strandlog.aio
from strandlog.aio import waiting


@pytest.fixture(autouse=True)
def _no_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting consumers not look again by themselves: a test in which no event wakes them
    hangs instead of passing late."""
    monkeypatch.setattr(waiting, "RECHECK_SECONDS", 3_600.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program with an open log that has the topic `t` with two partitions."""

    async def main(program: Program) -> None:
        async with strandlog.aio.open(tmp_path / "data") as log:
            await log.create_topic("t", 2)
            await program(log)

    return lambda program: asyncio.run(main(program))
