"""Deletes records while a request of the HTTP listener reads them."""

from __future__ import annotations

import asyncio
from itertools import count
from types import ModuleType
from typing import Any

import pytest
from tests.support.server import RunningBroker

import strandlog


def trim_before_fetch(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    broker: RunningBroker,
    topic: str,
    number: int,
    before_offset: int,
) -> None:
    """Delete the records of partition 0 below an offset before the fetch with this number, counted
    from 0, that the module sends for the topic."""
    fetch = module.fetch
    numbers = count()

    def trim() -> None:
        with strandlog.connect(broker.address) as log:
            log.delete_records(topic, 0, before_offset)

    async def fetched(*given: Any, **more: Any) -> Any:
        if given[2].name == topic and next(numbers) == number:
            await asyncio.to_thread(trim)
        return await fetch(*given, **more)

    monkeypatch.setattr(module, "fetch", fetched)
