"""Which batches of an idempotent producer are new, known, or out of place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_builders import FOLDER, START_MS, batch, new_log, offsets, reopen

from strandlog.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)
from strandlog.record.batch_header import BatchHeader, read_header
from strandlog.record.builder import build_batch
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.partition.producer_state import ProducerState
from strandlog.testing import SimulatedFiles

LAST_SEQUENCE = 2**31 - 1


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, transactional: bool = False
) -> BatchHeader:
    built = build_batch(
        START_MS,
        [b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return read_header(built)


def state_after(*headers: BatchHeader) -> ProducerState:
    """The state after these batches, written one behind the other from offset 100 on."""
    state, offset = ProducerState(), 100
    for one in headers:
        assert state.check(one) is None
        state.update(one, offset)
        offset += one.last_offset_delta + 1
    return state


@pytest.mark.parametrize("sequence", [0, 5, LAST_SEQUENCE])
def test_an_unknown_producer_may_start_at_any_sequence(sequence: int) -> None:
    assert ProducerState().check(header(sequence)) is None


def test_a_sequence_follows_the_last_one() -> None:
    state = state_after(header(0, 3), header(3, 2))
    assert state.check(header(5)) is None
    for sequence in (6, 7, 1000, 2**30):
        with pytest.raises(OutOfOrderSequenceError, match="expected 5"):
            state.check(header(sequence))


def test_duplicates_of_the_last_five_batches_get_their_old_offsets() -> None:
    sent = [header(number * 2, 2) for number in range(7)]
    state = state_after(*sent)
    for number, one in enumerate(sent[2:], start=2):
        old = state.check(one)
        assert old is not None
        assert (old.first_offset, old.last_offset) == (100 + 2 * number, 101 + 2 * number)
    for forgotten in sent[:2]:
        with pytest.raises(DuplicateSequenceError, match="again"):
            state.check(forgotten)


def test_a_batch_that_overlaps_a_known_one_is_not_a_duplicate() -> None:
    state = state_after(header(0, 3), header(3, 3))
    for written in (header(3, 2), header(4, 2), header(1, 5)):
        with pytest.raises(DuplicateSequenceError):
            state.check(written)


def test_a_record_that_was_not_written_is_not_lost_as_a_duplicate() -> None:
    """Producers take "duplicate" for success: the new record of such a batch would be gone."""
    state = state_after(header(0, 3), header(3, 3))
    for partly_new in (header(4, 3), header(5, 2), header(0, 7)):
        with pytest.raises(OutOfOrderSequenceError, match="expected 6"):
            state.check(partly_new)


@pytest.mark.parametrize("began_at", [5, LAST_SEQUENCE - 1])
def test_a_batch_that_failed_before_the_first_one_is_not_lost_as_a_duplicate(began_at: int) -> None:
    """The first of several in flight was refused, the second made the producer known here."""
    state = state_after(header(began_at), header(began_at + 1))
    for missing in (header(began_at - 1), header(began_at - 2, 3)):
        with pytest.raises(OutOfOrderSequenceError):
            state.check(missing)


def test_an_old_duplicate_is_recognized_after_sequence_numbers_wrap() -> None:
    sent = [header((LAST_SEQUENCE - 1 + number) % 2**31) for number in range(12)]
    state = state_after(*sent)
    assert state.check(header(10)) is None
    for number in range(5):
        with pytest.raises(DuplicateSequenceError):
            state.check(header(number))
    with pytest.raises(OutOfOrderSequenceError):  # so long ago that it may as well be far ahead
        state.check(header(LAST_SEQUENCE))


def test_sequences_wrap_to_zero() -> None:
    state = state_after(header(LAST_SEQUENCE - 1, 1), header(LAST_SEQUENCE, 3))
    assert state.check(header(2)) is None
    old = state.check(header(LAST_SEQUENCE, 3))
    assert old is not None
    assert (old.first_sequence, old.last_sequence, old.first_offset) == (LAST_SEQUENCE, 1, 101)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(header(3))
    state.update(header(2), 104)
    assert state.check(header(3)) is None
    state = state_after(header(LAST_SEQUENCE))
    assert state.check(header(0)) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(header(1))


def test_a_new_epoch_begins_at_zero_and_ends_the_old_one() -> None:
    state = state_after(header(0, 3))
    with pytest.raises(OutOfOrderSequenceError, match="must start epoch 1"):
        state.check(header(3, epoch=1))
    state.update(header(0, epoch=1), 103)
    with pytest.raises(InvalidProducerEpochError, match="too old"):
        state.check(header(3))
    assert state.check(header(1, epoch=1)) is None
    old = state.check(header(0, epoch=1))
    assert old is not None
    assert old.first_offset == 103


def test_sequences_are_tracked_per_producer() -> None:
    state = state_after(header(0, 3), header(50, producer=8))
    assert len(state) == 2
    assert state.check(header(3)) is None
    assert state.check(header(51, producer=8)) is None
    assert state.last_offsets() == {102, 103}


def test_idle_producers_expire_unless_they_have_an_open_transaction() -> None:
    state = ProducerState()
    state.update(header(0), 100, START_MS)
    state.update(header(0, producer=8, transactional=True), 101, START_MS)
    assert state.expire(START_MS + 999, 1000) == 0
    assert state.expire(START_MS + 1000, 1000) == 1
    assert [producer for producer, _ in state] == [8]
    marker = read_header(control_batch(ControlType.COMMIT, 8, 0, START_MS, coordinator_epoch=3))
    state.end_transaction(marker, 3, START_MS + 500)
    assert state.expire(START_MS + 1000, 1000) == 0
    assert state.expire(START_MS + 1500, 1000) == 1
    assert len(state) == 0


def test_the_first_open_transaction_is_the_one_with_the_lowest_offset() -> None:
    state = state_after(
        header(0),
        header(0, 2, producer=8, transactional=True),
        header(0, producer=9, transactional=True),
        header(2, producer=8, transactional=True),
    )
    assert state.first_open_transaction() == 101
    state.end_transaction(header(-1, producer=8), 0)
    assert state.first_open_transaction() == 103
    state.end_transaction(header(-1, producer=9), 0)
    assert state.first_open_transaction() is None


batches_sent = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.booleans(), st.booleans()), max_size=25
)


@given(sent=batches_sent, start=st.sampled_from([0, 1000, LAST_SEQUENCE - 3]))
def test_a_snapshot_restores_the_state(sent: list[tuple[int, int, bool, bool]], start: int) -> None:
    state, offset = ProducerState(), 0
    next_sequence: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for producer, count, bumps, transactional in sent:
        if bumps:
            epochs[producer] = epochs.get(producer, 0) + 1
            next_sequence[producer] = 0
        sequence = next_sequence.get(producer, start)
        one = header(
            sequence,
            count,
            epoch=epochs.get(producer, 0),
            producer=producer,
            transactional=transactional,
        )
        assert state.check(one) is None
        state.update(one, offset)
        offset += count
        next_sequence[producer] = (sequence + count) % 2**31
    again = ProducerState.from_snapshot(state.snapshot())
    assert again is not None
    assert again.snapshot() == state.snapshot()
    assert again.last_offsets() == state.last_offsets()
    assert again.first_open_transaction() == state.first_open_transaction()
    for producer, entry in state:
        restored = again.get(producer)
        assert restored is not None
        assert restored.epoch == entry.epoch
        assert restored.batches[-1] == entry.batches[-1]
        follower = header(next_sequence[producer], epoch=entry.epoch, producer=producer)
        assert again.check(follower) is None


def test_a_snapshot_knows_a_batch_whose_sequences_wrap() -> None:
    wrapping = header(LAST_SEQUENCE - 1, 4)
    again = ProducerState.from_snapshot(state_after(wrapping).snapshot())
    assert again is not None
    old = again.check(wrapping)
    assert old is not None
    assert (old.first_offset, old.last_offset) == (100, 103)
    assert again.check(header(2)) is None


def test_a_damaged_snapshot_is_refused() -> None:
    data = state_after(header(0, 3), header(4, producer=8)).snapshot()
    assert ProducerState.from_snapshot(data) is not None
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert ProducerState.from_snapshot(bytes(damaged)) is None
    for size in range(len(data)):
        assert ProducerState.from_snapshot(data[:size]) is None
    assert ProducerState.from_snapshot(data + b"\0") is None


@pytest.mark.parametrize("how", ["close", "kill", "no snapshot"])
def test_a_log_acknowledges_a_duplicate_across_restarts_and_writes_it_once(how: str) -> None:
    files = SimulatedFiles()
    log_dir, log = new_log(files)
    sent = [batch(b"a%d" % n, b"b%d" % n, producer=(7, 0, 2 * n)) for n in range(20)]
    for one in sent:
        log.append(one)
    log.flush()
    assert len(log.segments) > 2
    if how == "kill":
        files = files.after_kill()
    else:
        log_dir.close()
    if how == "no snapshot":
        for name in files.list_dir(FOLDER):
            if name.endswith(".snapshot"):
                files.remove(f"{FOLDER}/{name}")
    _, log = reopen(files)
    result = log.append(sent[-1])
    assert (result.is_duplicate, result.base_offset, result.last_offset) == (True, 38, 39)
    assert log.append(batch(b"new", producer=(7, 0, 40))).base_offset == 40
    with pytest.raises(OutOfOrderSequenceError):
        log.append(batch(b"gap", producer=(7, 0, 42)))
    log.flush()
    assert offsets(log) == list(range(41))


def test_a_truncated_batch_can_be_appended_again() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    sent = [batch(b"v%d" % n, producer=(7, 0, n)) for n in range(6)]
    for one in sent:
        log.append(one)
    log.truncate_to(3)
    _, restarted = reopen(files.after_kill())
    assert restarted.producers.last_offsets() == log.producers.last_offsets()
    assert offsets(log) == offsets(restarted) == [0, 1, 2]
    assert not log.append(sent[3]).is_duplicate, "nothing is there that it could repeat"


def test_a_snapshot_of_another_partition_is_not_used() -> None:
    state = state_after(header(0, 3))
    data = state.snapshot("orders-0/00000000000000000007")
    assert ProducerState.from_snapshot(data, "orders-0/00000000000000000007") is not None
    assert ProducerState.from_snapshot(data) is not None, "tools read any snapshot"
    assert ProducerState.from_snapshot(data, "orders-1/00000000000000000007") is None
    assert ProducerState.from_snapshot(data, "orders-0/00000000000000000008") is None
    older = state.snapshot()
    assert ProducerState.from_snapshot(older, "orders-0/00000000000000000007") is not None
