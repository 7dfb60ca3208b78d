"""Committed offsets: storage, validation and expiry."""

from __future__ import annotations

import pytest

from strandlog.broker.groups.offsets import (
    CommittedOffsets,
    ExpiryRule,
    TransactionOffsets,
    commit_records,
    expired_partitions,
    offset_error,
    tombstones,
)
from strandlog.errors import DataError, OffsetMetadataTooLargeError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.group_records import OffsetKey, decode_key, decode_offset

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_offsets_are_kept_per_group() -> None:
    store = CommittedOffsets()
    store.put("g", {T0: OffsetAndMetadata(1), U0: OffsetAndMetadata(2)})
    store.put("h", {T0: OffsetAndMetadata(9)})
    store.put("g", {T0: OffsetAndMetadata(3)})
    assert store.fetch("g", [T0, T1]) == {T0: OffsetAndMetadata(3), T1: None}
    assert store.fetch("unknown", [T0]) == {T0: None}
    store.delete("h", [T0, T1])
    store.delete("h", [T0])
    assert store.groups() == ["g"]
    assert not store.has_offsets("h")


def test_the_groups_of_a_topic_are_those_with_offsets_in_it() -> None:
    store = CommittedOffsets()
    store.put("g", {T0: OffsetAndMetadata(1), T1: OffsetAndMetadata(1), U0: OffsetAndMetadata(1)})
    store.put("g", {T0: OffsetAndMetadata(2)})
    store.put("h", {T0: OffsetAndMetadata(1)})
    assert (store.groups_of("t"), store.groups_of("u")) == (["g", "h"], ["g"])
    store.delete("g", [T0, U0])
    store.delete("g", [T0, U0])
    assert (store.groups_of("t"), store.groups_of("u")) == (["g", "h"], [])
    store.delete("g", [T1])
    assert store.groups_of("t") == ["h"]


def test_returned_offsets_are_a_copy() -> None:
    store = CommittedOffsets()
    store.put("g", {T0: OffsetAndMetadata(1)})
    store.of_group("g").clear()
    assert store.has_offsets("g")


def test_commit_records_round_trip() -> None:
    value = OffsetAndMetadata(5, 2, "note", 77)
    ((key, data),) = commit_records("g|h", {T1: value})
    assert decode_key(key) == OffsetKey("g|h", "t", 1)
    assert data is not None and decode_offset(data) == value
    assert tombstones("g|h", [T1]) == [(key, None)]


def test_metadata_is_limited_in_bytes() -> None:
    assert offset_error(T0, OffsetAndMetadata(1, metadata="é" * 5), 10) is None
    too_long = offset_error(T0, OffsetAndMetadata(1, metadata="é" * 5), 9)
    assert isinstance(too_long, OffsetMetadataTooLargeError)


@pytest.mark.parametrize(
    ("partition", "value"),
    [
        (T0, OffsetAndMetadata(-1)),
        (T0, OffsetAndMetadata(2**63)),
        (T0, OffsetAndMetadata(1, leader_epoch=2**31)),
        (T0, OffsetAndMetadata(1, metadata="\ud800")),
        (TopicPartition("t", 2**31), OffsetAndMetadata(1)),
        (TopicPartition("t" * 40_000, 0), OffsetAndMetadata(1)),
    ],
)
def test_offsets_that_cannot_be_stored_are_rejected(
    partition: TopicPartition, value: OffsetAndMetadata
) -> None:
    assert isinstance(offset_error(partition, value, 4096), DataError)


@pytest.mark.parametrize(
    ("rule", "now_ms", "expired"),
    [
        (None, 10_000, []),
        (ExpiryRule(), 1_099, []),
        (ExpiryRule(), 1_100, [T0]),
        (ExpiryRule(), 1_500, [T0, U0]),
        (ExpiryRule(not_before_ms=1_200), 1_299, []),
        (ExpiryRule(not_before_ms=1_200), 1_300, [T0]),
        (ExpiryRule(kept_topics=frozenset({"t"})), 9_999, [U0]),
    ],
)
def test_when_offsets_expire(
    rule: ExpiryRule | None, now_ms: int, expired: list[TopicPartition]
) -> None:
    offsets = {
        T0: OffsetAndMetadata(1, commit_timestamp=1_000),
        U0: OffsetAndMetadata(1, commit_timestamp=1_400),
    }
    assert expired_partitions(offsets, rule, now_ms, retention_ms=100) == expired


class _CountedPartition(TopicPartition):
    """Counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        _CountedPartition.lookups += 1
        return super().__hash__()


def _lookups_of_a_commit(producers: int) -> int:
    pending = TransactionOffsets()
    for producer_id in range(producers):
        own = TopicPartition("t", producer_id)
        pending.add(producer_id, "g", {own: OffsetAndMetadata(producer_id)})
    before = _CountedPartition.lookups
    pending.supersede("g", [_CountedPartition("other", 0)])
    return _CountedPartition.lookups - before


def test_a_plain_commit_does_not_search_all_open_transactions() -> None:
    assert _lookups_of_a_commit(500) == _lookups_of_a_commit(1)


def test_offsets_of_ended_transactions_use_no_memory() -> None:
    pending = TransactionOffsets()
    for producer_id in range(4):
        for group in ("g", "h"):
            rows = {TopicPartition("t", n): OffsetAndMetadata(n) for n in range(producer_id, 5)}
            pending.add(producer_id, group, rows)
    pending.supersede("g", [TopicPartition("t", 4)])
    pending.commit(0)
    pending.abort(1)
    pending.supersede("h", [TopicPartition("t", n) for n in range(5)])
    assert (pending.groups(), pending.of_group("h")) == ({"g"}, set())
    pending.commit(3)
    pending.abort(2)
    assert (pending.groups(), pending.size_bytes, pending._holders) == (set(), 0, {})
