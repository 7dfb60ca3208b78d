"""An asyncio log in an event loop of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.async_log import Program, Run

import strandlog.aio


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program with an open log that has the topic `t` with two partitions."""

    async def main(program: Program) -> None:
        async with strandlog.aio.open(tmp_path / "data") as log:
            await log.create_topic("t", 2)
            await program(log)

    return lambda program: asyncio.run(main(program))
