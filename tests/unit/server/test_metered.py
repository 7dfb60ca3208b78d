"""`Metered` measures the coroutine's own time, and changes nothing about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandlog.server import metered
from strandlog.server.metered import Metered


def test_only_the_time_between_waits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(metered, "stopwatch", lambda: now)
    woken = asyncio.Event()

    async def work() -> str:
        nonlocal now
        now += 1
        await woken.wait()
        now += 2
        return "result"

    async def run() -> tuple[str, float]:
        nonlocal now
        measured = Metered(work())
        task = asyncio.ensure_future(_awaited(measured))
        await asyncio.sleep(0)
        now += 100
        woken.set()
        return await task, measured.seconds

    assert asyncio.run(run()) == ("result", 3)


async def _awaited(measured: Metered[str]) -> str:
    return await measured


def test_errors_and_cancellation_reach_the_coroutine() -> None:
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return ""

    async def failing() -> str:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def run() -> Any:
        task = asyncio.ensure_future(_awaited(Metered(work())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="no"):
            await Metered(failing())

    asyncio.run(run())
    assert ended == ["cancelled"]
