"""The decisions of a sync, as tables of cases and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.errors import TableChangedError, TableGapError
from strandlog.tables.table import Commit
from strandlog.tables.topics import decisions
from strandlog.tables.topics.decisions import OffsetRange, check_gaps, check_source, plan
from strandlog.tables.topics.source import Bounds, TopicState

OFFSETS = st.integers(0, 30)
BOUNDS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: Bounds(min(pair), max(pair)))


def topic(partitions: dict[int, Bounds]) -> TopicState:
    return TopicState("orders", "topic-1", "cluster-1", partitions)


@pytest.mark.parametrize(
    ("synced", "bounds", "wanted", "gaps"),
    [
        (None, (0, 10), [(0, 0, 10)], []),
        (None, (4, 10), [(0, 4, 10)], []),  # what was deleted before the first sync is no gap
        (None, (4, 4), [], []),
        (3, (0, 10), [(0, 3, 10)], []),
        (10, (0, 10), [], []),
        (10, (10, 10), [], []),
        (3, (3, 10), [(0, 3, 10)], []),
        (3, (5, 10), [(0, 5, 10)], [(0, 3, 5)]),
        (3, (10, 10), [], [(0, 3, 10)]),
    ],
)
def test_what_to_read(
    synced: int | None,
    bounds: tuple[int, int],
    wanted: list[tuple[int, int, int]],
    gaps: list[tuple[int, int, int]],
) -> None:
    assert plan(topic({0: Bounds(*bounds)}), {0: synced}) == (wanted, gaps)


def test_a_topic_that_is_shorter_than_the_table_is_an_error() -> None:
    with pytest.raises(TableChangedError, match="up to offset 11, but the topic ends at 10"):
        plan(topic({0: Bounds(0, 10)}), {0: 11})


@given(st.dictionaries(st.integers(0, 3), BOUNDS, max_size=4), st.data())
def test_ranges_and_gaps_cover_exactly_what_is_not_synced(
    partitions: dict[int, Bounds], data: st.DataObject
) -> None:
    synced = {
        number: data.draw(st.none() | st.integers(0, bounds.end))
        for number, bounds in partitions.items()
    }
    found = plan(topic(partitions), synced)
    for number, bounds in partitions.items():
        start = synced[number]
        missing = set(range(bounds.start if start is None else start, bounds.end))
        covered = [
            offset
            for each in (*found.ranges, *found.gaps)
            if each.partition == number
            for offset in range(each.start, each.end)
        ]
        assert sorted(covered) == sorted(missing), "each offset once"
        readable = set(range(*bounds))
        assert all(
            set(range(each.start, each.end)) <= readable
            for each in found.ranges
            if each.partition == number
        )


def test_a_gap_stops_the_sync_and_names_the_offsets() -> None:
    gaps = [OffsetRange(0, 3, 5), OffsetRange(2, 0, 9)]
    with pytest.raises(TableGapError, match=r"orders-0 \[3, 5\), orders-2 \[0, 9\); --accept-gap"):
        check_gaps(topic({}), gaps, is_accepted=False)
    check_gaps(topic({}), gaps, is_accepted=True)
    check_gaps(topic({}), [], is_accepted=False)


PROPERTIES = {
    decisions.TOPIC: "orders",
    decisions.TOPIC_ID: "topic-1",
    decisions.CLUSTER_ID: "cluster-1",
    decisions.MODE: "append",
}


@pytest.mark.parametrize(
    ("changes", "wanted", "text"),
    [
        ({decisions.TOPIC: "sales"}, {}, "the table has topic 'sales', not"),
        ({decisions.TOPIC_ID: "topic-0"}, {}, "another topic of the same name"),
        ({decisions.CLUSTER_ID: "c", decisions.TOPIC_ID: "t"}, {}, "another cluster"),
        ({}, {decisions.MODE: "upsert"}, "created with mode=append, not upsert"),
    ],
)
def test_a_table_of_another_topic_or_mode_is_an_error(
    changes: dict[str, str], wanted: dict[str, str], text: str
) -> None:
    check_source(PROPERTIES, topic({}), {decisions.MODE: "append"})
    with pytest.raises(TableChangedError, match=text):
        check_source(PROPERTIES | changes, topic({}), wanted)


def test_a_table_of_another_program_is_an_error() -> None:
    with pytest.raises(TableChangedError, match="not created by `strandlog table sync`"):
        check_source({}, topic({}), {})


def test_a_changed_row_count_names_the_commit() -> None:
    own = Commit(4, "WRITE", {decisions.RANGES: "{}"})
    history = [own, Commit(3, "RESTORE", {}), Commit(2, "OPTIMIZE", {}), own]
    with pytest.raises(TableChangedError, match=r"has 90 rows.*written 100.*version 3: RESTORE"):
        decisions.check_rows(100, {}, 90, history)
    with pytest.raises(TableChangedError, match=r"has 1 row, but.*written 100"):
        decisions.check_rows(100, {}, 1, history)
    decisions.check_rows(100, {decisions.ACCEPTED_ROWS: "-10"}, 90, history)
    decisions.check_rows(100, {}, 100, [])
    decisions.check_rows(None, {}, 5, [])


def test_for_upserts_only_harmless_commits_may_follow_the_last_sync() -> None:
    own = Commit(4, "MERGE", {decisions.RANGES: "{}"})
    decisions.check_history([Commit(5, "OPTIMIZE", {}), own, Commit(3, "DELETE", {})])
    with pytest.raises(TableChangedError, match="version 5: DELETE"):
        decisions.check_history([Commit(5, "DELETE", {}), own])


def test_added_partitions_stop_an_upsert() -> None:
    properties = {decisions.PARTITIONS: "1"}
    decisions.check_partitions(properties, topic({0: Bounds(0, 1)}))
    with pytest.raises(TableChangedError, match="has 2 partitions and had 1"):
        decisions.check_partitions(properties, topic({0: Bounds(0, 1), 1: Bounds(0, 1)}))
    with pytest.raises(TableChangedError, match="has 1 partition and had 2"):
        decisions.check_partitions({decisions.PARTITIONS: "2"}, topic({0: Bounds(0, 1)}))
