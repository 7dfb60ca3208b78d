"""What follows what a query has read, and what counts as lost."""

from __future__ import annotations

import pytest

from strandlog.model import TopicPartition
from strandlog.spark.offsets import StreamOffset
from strandlog.spark.source.continuity import (
    Bounds,
    beyond_end,
    continued,
    deleted,
    past_latest,
    planned,
    recreated,
    trimmed,
)
from strandlog.spark.source.planning import OffsetRange

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
OLD, NEW = {"a": "old"}, {"a": "new"}


def at(offset: int | None, ids: dict[str, str] | None = None) -> StreamOffset:
    return StreamOffset({} if offset is None else {A: offset}, ids or {})


@pytest.mark.parametrize(
    ("done", "bounds", "start", "losses"),
    [
        (at(5), Bounds(0, 9), 5, []),
        (at(9), Bounds(0, 9), 9, []),
        (at(5), Bounds(7, 9), 7, [trimmed(A, 5, 7)]),
        (at(12), Bounds(0, 9), 9, [beyond_end(A, 12, 9)]),
        (at(None), Bounds(0, 9), 0, []),
        (at(None), Bounds(3, 9), 3, [trimmed(A, 0, 3)]),
        (at(5, OLD), Bounds(0, 9, "old"), 5, []),
        (at(5, OLD), Bounds(0, 9, "new"), 0, [recreated(A, 5)]),
        (at(5, OLD), Bounds(0, 9), 5, []),  # a broker without topic ids
        (at(5), Bounds(0, 9, "new"), 5, []),  # a checkpoint without ids
    ],
)
def test_where_a_query_continues(
    done: StreamOffset, bounds: Bounds, start: int, losses: list[object]
) -> None:
    ends = dict.fromkeys(past_latest(done.offsets, {A: bounds}), bounds.latest)
    assert continued(done, {A: bounds}, ends) == ({A: start}, losses)


def test_an_open_transaction_is_not_the_end_of_a_partition() -> None:
    assert past_latest({A: 8}, {A: Bounds(0, 5)}) == [A]
    assert continued(at(8), {A: Bounds(0, 5)}, {A: 9}) == ({A: 8}, [])


def test_a_deleted_topic_does_not_change_the_offsets_of_others() -> None:
    found = continued(StreamOffset({A: 5, B: 6}, {}), {B: Bounds(0, 9)}, {})
    assert found == ({B: 6}, [deleted(A, 5)])


@pytest.mark.parametrize(
    ("done", "until", "bounds", "reads", "losses"),
    [
        (at(3), at(7), Bounds(0, 9), (3, 7), []),
        (at(3), at(7), Bounds(5, 9), (5, 7), [trimmed(A, 3, 5)]),
        (at(3), at(7), Bounds(8, 9), None, [trimmed(A, 3, 8)]),
        (at(3), at(7), Bounds(0, 5), (3, 5), [beyond_end(A, 5, 5)]),
        (at(3), at(7), Bounds(0, 2), None, [beyond_end(A, 3, 2)]),
        (at(9), at(4), Bounds(0, 4), None, [beyond_end(A, 9, 4)]),  # it went on at the end
        (at(5), at(5), Bounds(8, 9), None, []),  # nothing to read, so nothing is lost yet
        (at(None), at(4), Bounds(0, 9), (0, 4), []),
        (at(None), at(4), Bounds(2, 9), (2, 4), [trimmed(A, 0, 2)]),
        (at(9, OLD), at(4, NEW), Bounds(0, 4, "new"), (0, 4), [recreated(A, 9)]),
        (at(4, OLD), at(4, NEW), Bounds(0, 4, "new"), (0, 4), [recreated(A, 4)]),
        (at(1, OLD), at(4, OLD), Bounds(0, 9, "new"), None, [recreated(A, 1)]),
        (at(3), at(7), None, None, [deleted(A, 3)]),
        (at(5), at(5), None, None, []),
    ],
)
def test_what_a_batch_reads(
    done: StreamOffset,
    until: StreamOffset,
    bounds: Bounds | None,
    reads: tuple[int, int] | None,
    losses: list[object],
) -> None:
    known = {} if bounds is None else {A: bounds}
    doubtful = {*past_latest(done.offsets, known), *past_latest(until.offsets, known)}
    found = planned(done, until, known, {tp: known[tp].latest for tp in doubtful})
    assert found.ranges == ([] if reads is None else [OffsetRange(A, *reads)])
    assert found.losses == losses


def test_a_loss_names_its_offsets() -> None:
    assert str(trimmed(A, 5, 7)) == "offsets 5 to 6 of a-0 were deleted"
    assert "a-0 was deleted" in str(deleted(A, 5))
    assert "deleted and created again" in str(recreated(A, 5))
