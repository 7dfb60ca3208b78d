"""The table in a compacted topic, and Kafka's choice of the partition for each owner."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from strandlog.broker.compacted_table import (
    CompactedTable,
    TableSpec,
    java_hash,
    latest_values,
    owner_partition,
)
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.config.tables.broker import broker_settings
from strandlog.model import TopicPartition
from strandlog.protocol.group_records import decode_key
from strandlog.storage.folder.log_dir import LogDir
from strandlog.testing import FakeClock, SimulatedFiles

if TYPE_CHECKING:
    from tests.unit.broker.conftest import GroupHarness


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # Known answers of Java's String.hashCode.
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("The quick brown fox jumps over the lazy dog", -609428141),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash_matches_java(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_the_partition_of_a_group_is_that_of_kafka() -> None:
    assert owner_partition("hello", 50) == 99162322 % 50
    assert owner_partition("The quick brown fox jumps over the lazy dog", 50) == 609428141 % 50
    assert owner_partition("polygenelubricants", 50) == 0
    assert owner_partition("anything", 1) == 0


def test_the_last_value_counts_and_null_deletes(harness: GroupHarness) -> None:
    harness.log.records = [
        (b"a", b"1"),
        (b"b", b"1"),
        (None, b"no key"),
        (b"a", b"2"),
        (b"b", None),
        (b"c", None),
        (b"d", b""),
    ]
    assert latest_values(harness.log) == {b"a": b"2", b"d": b""}


def test_all_records_of_a_group_go_to_one_partition(harness_type: type[GroupHarness]) -> None:
    harness = harness_type()
    member = harness.stable(group="hello")[0]
    harness.commit({TopicPartition("t", 0): 1}, member, group="hello")
    keys = [decode_key(key) for key, _ in harness.log.records if key is not None]
    assert [key.group for key in keys if key is not None] == ["hello", "hello"]


def test_records_are_spread_over_the_partitions_by_owner() -> None:
    ids = count(1)
    log_dir = LogDir("data", SimulatedFiles(), FakeClock(), lambda: UUID(int=next(ids)))
    catalog = TopicCatalog(log_dir, broker_settings(), lambda: UUID(int=next(ids)))
    written: list[int] = []
    table = CompactedTable(
        catalog,
        TableSpec("table", 3, {}, lambda key: key.decode()[0]),
        lambda log: written.append(log.tp.partition),
        log_dir.problems,
    )
    assert latest_values(table) == {}
    assert not table.exists
    assert [owner_partition(owner, 3) for owner in "ab"] == [97 % 3, 98 % 3] == [1, 2]
    table.append([(b"a1", b"1"), (b"b1", b"2"), (b"a1", b"3"), (b"a2", b"4")], 0)
    assert [log.log_end_offset for log in catalog.logs("table")] == [0, 3, 1]
    assert written == [1, 2]
    assert table.log_for("a") is catalog.log("table", 1)
    assert latest_values(table) == {b"a1": b"3", b"a2": b"4", b"b1": b"2"}
    assert not log_dir.problems
