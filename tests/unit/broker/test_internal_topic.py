"""The table in a log, and Kafka's choice of the partition that keeps a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandlog.broker.internal_topic import (
    InternalTopic,
    group_key_partition,
    group_partition,
    java_hash,
    latest_values,
)
from strandlog.model import TopicPartition

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Bench


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
def test_hash_codes_are_those_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_the_partition_of_a_group_is_that_of_kafka() -> None:
    assert group_partition("hello", 50) == 99162322 % 50
    assert group_partition("The quick brown fox jumps over the lazy dog", 50) == 609428141 % 50
    assert group_partition("polygenelubricants", 50) == 0
    assert group_partition("anything", 1) == 0


def test_the_last_value_counts_and_null_deletes(bench: Bench) -> None:
    bench.log.records = [
        (b"a", b"1"),
        (b"b", b"1"),
        (None, b"lost"),
        (b"a", b"2"),
        (b"b", None),
        (b"c", None),
        (b"d", b""),
    ]
    assert latest_values(bench.log) == {b"a": b"2", b"d": b""}


def test_all_records_of_a_group_go_to_one_partition(bench_type: type[Bench]) -> None:
    bench = bench_type()
    member = bench.stable(group="hello")[0]
    bench.commit({TopicPartition("t", 0): 1}, member, group="hello")
    keys = [key for key, _ in bench.log.records if key is not None]
    assert len(keys) == 2
    assert {group_key_partition(key, 50) for key in keys} == {99162322 % 50}


def test_several_partitions_are_one_log(bench_type: type[Bench]) -> None:
    logs = [bench_type().log for _ in range(3)]
    topic = InternalTopic(logs, lambda key: key[0] % 3)
    topic.append([(b"\x00x", b"1"), (b"\x01", b"2"), (b"\x00x", b"3")], 0)
    assert [len(log.records) for log in logs] == [2, 1, 0]
    assert latest_values(topic) == {b"\x00x": b"3", b"\x01": b"2"}
