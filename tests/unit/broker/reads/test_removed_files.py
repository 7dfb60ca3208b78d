"""Fetches after another program has removed or truncated files of the active segment."""

from __future__ import annotations

import pytest
from tests.support.log_builders import DATA, START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.reads.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.errors import StorageError
from strandlog.model import IsolationLevel
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()
COUNT = 20


def reopened(files: SimulatedFiles, *, rolls: bool = False) -> Broker:
    """A broker on a topic with two partitions, aborted transactions and many index entries. With
    `rolls`, there is a sealed segment before all of this."""
    settings = {"index.interval.bytes": 1}
    broker = Broker(DATA, files, FakeClock(START_MS), uuids())
    broker.create_topic(CONTEXT, "t", 2, settings).result()
    for number in range(2):
        log = broker._catalog.log("t", number)
        if rolls:
            log.append(batch(b"sealed"))
            log.roll()
        log.append(batch(b"aborted", producer=(7, 0, 0), transactional=True))
        log.append(control_batch(ControlType.ABORT, 7, 0, START_MS), is_control=True)
        for _ in range(COUNT):
            log.append(batch(b"value"))
    broker.close()
    return Broker(DATA, files, FakeClock(START_MS), uuids())


def fetch(broker: Broker, offset: int = 0) -> list[FetchPartitionData]:
    committed = IsolationLevel.READ_COMMITTED
    parts = [FetchPartition("t", number, offset, 100_000) for number in range(2)]
    found = broker.fetch(CONTEXT, FetchRequest(parts, 1, 100_000, 0, committed))
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("size", [None, 0, 12])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_reads_do_not_fail_without_an_index_of_the_active_segment(
    suffix: str, size: int | None
) -> None:
    files = SimulatedFiles()
    broker = reopened(files)
    log = broker._catalog.log("t", 0)
    expected = fetch(broker)
    path = f"{log.segments.active.stem}.{suffix}"
    if size is None:
        files.remove(path)
    else:
        files.truncate(path, size)
    for _ in range(2):
        assert fetch(broker) == expected
        assert fetch(broker, COUNT)[0].data
        found = run_inline(
            broker.list_offset(CONTEXT, "t", 0, START_MS, IsolationLevel.READ_COMMITTED)
        )
        assert found.offset == 0
        log.append(batch(b"value"))
        log.flush()
        expected = fetch(broker)


def test_the_loss_of_an_active_segment_does_not_fail_the_fetch_of_other_partitions() -> None:
    files = SimulatedFiles()
    broker = reopened(files, rolls=True)
    log = broker._catalog.log("t", 0)
    files.truncate(log.segments.active.log_path, 300)
    lost, intact = fetch(broker)
    assert isinstance(lost.error, StorageError)
    assert not lost.data
    assert intact.error is None
    assert intact.data
