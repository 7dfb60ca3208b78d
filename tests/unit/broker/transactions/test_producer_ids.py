"""No producer id is allocated twice, whatever happens to `producer-ids.json`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.support.broker_harness import TransactionHarness
from tests.support.log_builders import batch

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.transactions.producer_ids import BLOCK, FILE
from strandlog.storage.files import PREVIOUS_SUFFIX
from strandlog.storage.partition.producer_state import IMPLAUSIBLE_ID
from strandlog.storage.problem_list import MAX_OF_A_KIND
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()

PATH = f"data/{FILE}"
DAY_MS = 86_400_000


def open_broker(disk: SimulatedFiles, clock: FakeClock | None = None) -> Broker:
    ids = itertools.count(1)
    return Broker("data", disk, clock or FakeClock(), lambda: UUID(int=next(ids)))


def write(broker: Broker, producer_id: int, sequence: int = 0, partition: int = 0) -> bool:
    """Append one record of a producer; False if it was taken for a duplicate."""
    log = broker._catalog.log("t", partition)
    data = batch(b"v", producer=(producer_id, 0, sequence), timestamp=broker.clock.now_ms())
    return not broker._appender.append(log, data).is_duplicate


def used_folder(disk: SimulatedFiles, producers: int = 3) -> list[int]:
    """A stopped folder in which so many producers have written; returns their ids."""
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t", 2).result()
    used = [broker._producer_ids.next() for _ in range(producers)]
    for number, producer_id in enumerate(used):
        write(broker, producer_id, partition=number % 2)
    broker.close()
    return used


def empty(disk: SimulatedFiles, path: str) -> None:
    disk.truncate(path, 0)


def flip(disk: SimulatedFiles, path: str) -> None:
    disk.flip_bit(path, 70)


def both(damage: Callable[[SimulatedFiles, str], None]) -> Callable[[SimulatedFiles, str], None]:
    def damage_both(disk: SimulatedFiles, path: str) -> None:
        damage(disk, path)
        if disk.exists(path + PREVIOUS_SUFFIX):
            damage(disk, path + PREVIOUS_SUFFIX)

    return damage_both


DAMAGES = {
    "flipped": flip,
    "emptied": empty,
    "deleted": SimulatedFiles.remove,
    "both flipped": both(flip),
    "both emptied": both(empty),
    "both deleted": both(SimulatedFiles.remove),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("producers", [3, BLOCK + 3])
def test_records_of_a_new_producer_are_written_after_the_id_file_was_lost(
    damage: Callable[[SimulatedFiles, str], None], producers: int
) -> None:
    disk = SimulatedFiles()
    used = used_folder(disk, producers)
    damage(disk, PATH)
    broker = open_broker(disk)
    assert any(FILE in problem for problem in broker.problems)
    for _ in range(2):
        new = broker._producer_ids.next()
        assert new not in used
        assert write(broker, new), "acknowledged as a duplicate and not written"
        used.append(new)
    broker.close()
    broker = open_broker(disk)
    assert not broker.problems, "reported once"
    assert broker._producer_ids.next() not in used


def test_an_old_copy_of_the_id_file_is_reported() -> None:
    disk = SimulatedFiles()
    used_folder(disk)
    old = disk.read(PATH)
    broker = open_broker(disk)
    later = [broker._producer_ids.next() for _ in range(BLOCK)][-1]
    write(broker, later)
    broker.close()
    disk.replace(PATH, old)
    disk.replace(PATH + PREVIOUS_SUFFIX, old)
    broker = open_broker(disk)
    assert any(f"producer id {later} is in use" in problem for problem in broker.problems)
    assert broker._producer_ids.next() > later


def test_an_id_file_older_than_its_copy_is_reported() -> None:
    disk = SimulatedFiles()
    used_folder(disk)
    older = disk.read(PATH)
    broker = open_broker(disk)
    silent = [broker._producer_ids.next() for _ in range(2 * BLOCK)]  # no partition knows them
    broker.close()
    disk.replace(PATH, older)
    again = open_broker(disk)
    assert again._producer_ids.next() > silent[-1]
    assert [p for p in again.problems if "producer-ids.json is older than its copy" in p]
    again.close()
    assert not open_broker(disk).problems


def test_ids_known_only_to_the_log_or_a_silent_producer_are_not_allocated_again() -> None:
    """After the state of all producers has expired, twice, with the file lost each time."""
    disk, clock = SimulatedFiles(), FakeClock()
    used: list[int] = []
    for _ in range(3):
        broker = open_broker(disk, clock)
        if "t" not in broker._catalog:
            broker.create_topic(CONTEXT, "t").result()
        new = [broker._producer_ids.next() for _ in range(5)]
        assert not set(new) & set(used)
        assert write(broker, new[0])
        used += new
        clock.advance(2 * DAY_MS)
        broker.tick()
        assert not len(broker._catalog.log("t", 0).producers), "nothing shows the ids any more"
        broker.close()
        both(SimulatedFiles.remove)(disk, PATH)


def test_ids_in_the_recovered_tail_count() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk, FakeClock(0))  # at this time only evidence helps
    broker.create_topic(CONTEXT, "t").result()
    used = [broker._producer_ids.next() for _ in range(7)]
    write(broker, used[-1])
    killed = disk.after_kill()
    both(SimulatedFiles.remove)(killed, PATH)
    assert open_broker(killed, FakeClock(0))._producer_ids.next() > used[-1]


def test_ids_known_only_to_the_transaction_table_count() -> None:
    harness = TransactionHarness(clock=FakeClock(0))  # at this time only evidence helps
    producer_id, _ = harness.producer()
    killed = harness.disk.after_kill()
    both(SimulatedFiles.remove)(killed, PATH)
    again = TransactionHarness(killed, FakeClock(0))
    assert again.broker._producer_ids.next() > producer_id


def test_an_id_made_up_by_a_client_is_not_allocated_to_another() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    first = broker._producer_ids.next()
    write(broker, first + 1)
    second = broker._producer_ids.next()
    assert second > first + 1
    assert write(broker, second)
    write(broker, 2**63 - 1)
    write(broker, IMPLAUSIBLE_ID)
    assert broker._producer_ids.next() == second + 1, "absurd ids do not use up all others"
    write(broker, 2**61)  # nor do they push ids out of what a double can hold
    assert broker._producer_ids.next() == second + 2


def test_a_new_folder_starts_at_0_and_reports_nothing() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    assert [broker._producer_ids.next() for _ in range(3)] == [0, 1, 2]
    assert not broker.problems
    broker.close()
    broker = open_broker(disk)
    assert broker._producer_ids.next() == BLOCK
    assert not broker.problems


def test_a_folder_without_its_id_file_opens_on_a_full_disk() -> None:
    disk = SimulatedFiles()
    used = used_folder(disk)
    both(SimulatedFiles.remove)(disk, PATH)
    disk.fail_on("create", FILE, count=1)
    broker = open_broker(disk)
    assert any(FILE in problem for problem in broker.problems)
    assert broker._producer_ids.next() not in used


def test_ever_higher_made_up_ids_are_reported_once() -> None:
    broker = open_broker(SimulatedFiles())
    broker.create_topic(CONTEXT, "t").result()
    for turn in range(MAX_OF_A_KIND + 90):
        write(broker, broker._producer_ids.next() + BLOCK, partition=0)
        assert len(broker.problems) <= MAX_OF_A_KIND + 1, turn
    broker._producer_ids.check()
    assert len(broker.problems) == MAX_OF_A_KIND + 1
    assert broker.problems[-1].endswith(": 90 more times")
