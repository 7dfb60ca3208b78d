"""Fetches of many partitions, some of which are deleted before they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.log_builders import DATA, START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.reads import fetch
from strandlog.broker.runtime import InlineRuntime
from strandlog.errors import TopicNotFoundError
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()
PARTITIONS = fetch.FEW_PARTITIONS + 1


class ServerRuntime(InlineRuntime):
    """Collects callbacks; the test runs them."""

    def __init__(self) -> None:
        super().__init__(executes_flushes=True)
        self.callbacks: list[Callable[[], None]] = []

    def run_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_large_fetch_does_not_read_a_topic_that_was_deleted_after_it_began(
    is_created_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "WAKE_SECONDS", -1)  # one partition per step
    runtime = ServerRuntime()
    broker = Broker(DATA, SimulatedFiles(), FakeClock(START_MS), uuids(), None, runtime)
    for name in ("many", "deleted"):
        broker.create_topic(CONTEXT, name, PARTITIONS if name == "many" else 1).result()
    for number in range(PARTITIONS):
        broker._catalog.log("many", number).append(batch(b"%d" % number))
    log = broker._catalog.log("deleted", 0)
    for number in range(3):
        log.append(batch(b"old %d" % number))
        log.roll()
    log.flush()
    wanted = [fetch.FetchPartition("many", number, 0, 10_000) for number in range(PARTITIONS)]
    wanted.append(fetch.FetchPartition("deleted", 0, 0, 10_000))
    found = broker.fetch(CONTEXT, fetch.FetchRequest(wanted, 0, 1_000_000, 0))
    assert not isinstance(found, list)
    broker.delete_topic(CONTEXT, "deleted").result()
    if is_created_again:
        broker.create_topic(CONTEXT, "deleted", 1).result()
        broker._catalog.log("deleted", 0).append(batch(b"new"))
    while not found.is_done:
        runtime.callbacks.pop(0)()
    *many, deleted = found.result()
    assert [each.error for each in many] == [None] * PARTITIONS
    assert isinstance(deleted.error, TopicNotFoundError)
    assert not deleted.data
    assert not broker.problems
