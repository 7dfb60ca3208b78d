"""Fetches of committed records while a wrong transaction index is rebuilt."""

from __future__ import annotations

import pytest
from tests.support.log_builders import DATA, START_MS, batch, remove_index_checksums, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.reads.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.broker.runtime import InlineRuntime
from strandlog.errors import StorageError
from strandlog.model import IsolationLevel
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.segment.transaction_index import ENTRY, VERSION
from strandlog.storage.work import Work, run_inline
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()


class ServerRuntime(InlineRuntime):
    """Collects background work; the test executes it."""

    def __init__(self) -> None:
        super().__init__(executes_flushes=True)
        self.works: list[Work[None]] = []

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        self.works.append(work)


def wrong_folder() -> SimulatedFiles:
    """A topic with one committed transaction, which an index lists as aborted."""
    files = SimulatedFiles()
    broker = Broker(DATA, files, FakeClock(START_MS), uuids())
    broker.create_topic(CONTEXT, "t", 1).result()
    log = broker._catalog.log("t", 0)
    log.append(batch(b"committed", producer=(7, 0, 0), transactional=True))
    log.append(control_batch(ControlType.COMMIT, 7, 0, START_MS), is_control=True)
    log.roll()
    broker.close()
    remove_index_checksums(files, log.folder)
    files.append_to(f"{log.segments.sealed[0].stem}.txnindex", ENTRY.pack(VERSION, 7, 0, 1, 2))
    return files


def fetch(broker: Broker) -> FetchPartitionData:
    committed = IsolationLevel.READ_COMMITTED
    request = FetchRequest([FetchPartition("t", 0, 0, 1000)], 1, 1000, 0, committed)
    found = broker.fetch(CONTEXT, request)
    assert isinstance(found, list)
    return found[0]


def test_the_event_loop_does_not_read_a_partition_whose_transaction_index_is_wrong() -> None:
    runtime = ServerRuntime()
    broker = Broker(DATA, wrong_folder(), FakeClock(START_MS), uuids(), None, runtime)
    for _ in range(3):
        found = fetch(broker)
        assert isinstance(found.error, StorageError)
        assert "is being rebuilt" in str(found.error)
        assert not found.data
    (work,) = runtime.works
    run_inline(work)
    found = fetch(broker)
    assert (found.error, found.aborted) == (None, [])
    assert b"committed" in bytes(found.data)
    assert any("a transaction index was wrong" in problem for problem in broker.problems)


@pytest.mark.parametrize("uses_fetch", [True, False])
def test_a_broker_without_threads_rebuilds_a_wrong_transaction_index_at_once(
    uses_fetch: bool,
) -> None:
    broker = Broker(DATA, wrong_folder(), FakeClock(START_MS), uuids())
    found = fetch(broker) if uses_fetch else broker.read(CONTEXT, "t", 0, 0, 1000)
    assert not found.aborted
    assert b"committed" in bytes(found.data)
