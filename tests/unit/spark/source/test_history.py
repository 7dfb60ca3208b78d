"""A read of a table and a log together has every record of the topic exactly once."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from strandlog.model import TopicPartition
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.history import divided, with_history
from strandlog.spark.source.planning import OffsetRange

TP = TopicPartition("t", 0)


class Topic(NamedTuple):
    """A partition: which offsets have committed records, what the table has, what the log has."""

    end: int
    aborted: frozenset[int]  # offsets without a committed record
    synced: int | None  # the table's progress; None: it does not know the partition
    log_start: int

    def in_table(self) -> set[int]:
        return set(range(self.synced or 0)) - self.aborted

    def in_log(self) -> set[int]:
        return set(range(self.log_start, self.end)) - self.aborted


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    end = draw(st.integers(0, 40))
    synced = draw(st.none() | st.integers(0, end))
    aborted = draw(st.frozensets(st.integers(0, 40)))
    return Topic(end, aborted, synced, draw(st.integers(0, end)))


@given(topics(), st.integers(0, 40), st.integers(0, 40), st.integers(1, 40))
def test_each_record_is_read_once(topic: Topic, start: int, end: int, step: int) -> None:
    """Also if the read is split into several ranges, as the micro-batches of a stream are."""
    start, end = min(start, end, topic.end), min(max(start, end), topic.end)
    ranges = [
        OffsetRange(TP, at, min(at + step, end)) for at in range(start, end, step) if at < end
    ]
    progress = {} if topic.synced is None else {TP: topic.synced}
    found = divided(ranges, progress, {TP: topic.log_start})
    rows: list[int] = []
    for part in found.table:
        rows += [at for at in range(part.start, part.end) if at in topic.in_table()]
    for part in found.log:
        assert part.start >= topic.log_start, "the log can be read there"
        rows += [at for at in range(part.start, part.end) if at in topic.in_log()]
    existing = {at for at in range(start, end) if at not in topic.aborted}
    missing = existing - topic.in_table() - topic.in_log()
    assert sorted(rows) == sorted(existing - missing)
    assert bool(found.losses) == any(
        (topic.synced or 0) <= at < topic.log_start for at in range(start, end)
    ), "a gap is reported, and only a gap"


def test_a_gap_names_the_offsets() -> None:
    found = divided([OffsetRange(TP, 0, 100)], {TP: 30}, {TP: 50})
    assert [str(each) for each in found.losses] == ["offsets 30 to 49 of t-0 were deleted"]
    assert found.table == [OffsetRange(TP, 0, 30)]
    assert found.log == [OffsetRange(TP, 50, 100)]


def test_a_gap_that_the_table_lists_is_a_loss_where_a_read_covers_it() -> None:
    gaps = [OffsetRange(TP, 10, 20), OffsetRange(TopicPartition("t", 1), 0, 5)]
    for wanted, lost in (
        ((0, 100), ["offsets 10 to 19 of t-0 were deleted"]),
        ((15, 100), ["offsets 15 to 19 of t-0 were deleted"]),
        ((0, 12), ["offsets 10 to 11 of t-0 were deleted"]),
        ((0, 10), []),
        ((20, 100), []),
    ):
        found = divided([OffsetRange(TP, *wanted)], {TP: 30}, {TP: 0}, gaps)
        assert [str(each) for each in found.losses] == lost, wanted


def test_the_table_extends_what_can_be_read() -> None:
    other = TopicPartition("t", 1)
    bounds = {TP: Bounds(50, 100, "id"), other: Bounds(7, 9, "id")}
    assert with_history(bounds, {TP: 60}) == {TP: Bounds(0, 100, "id"), other: Bounds(7, 9, "id")}
