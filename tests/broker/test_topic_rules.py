"""What a topic may be called and how many partitions it may have."""

from __future__ import annotations

import pytest

from strandlog.broker.topics.topic_rules import (
    INTERNAL_TOPICS,
    MAX_TOPIC_NAME_LENGTH,
    check_not_internal,
    check_partition_count,
    check_topic_name,
)
from strandlog.errors import InvalidPartitionsError, InvalidTopicError


@pytest.mark.parametrize(
    "name", ["a", "a.b", "a_b", "a-b", "A-1", "...", "-", "0", "x" * MAX_TOPIC_NAME_LENGTH]
)
def test_legal_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is empty"),
        (".", "it names a folder"),
        ("..", "it names a folder"),
        ("a b", "letters, digits, '.', '_' and '-' are allowed"),
        ("a/b", "are allowed"),
        ("ä", "are allowed"),
        ("a\n", "are allowed"),
        ("a\0", "are allowed"),
        ("x" * 250, "it has 250 characters, at most 249 fit"),
        (b"bytes", "a name is a str"),
        (None, "a name is a str"),
        (5, "a name is a str"),
    ],
)
def test_names_that_are_none(name: object, reason: str) -> None:
    with pytest.raises(InvalidTopicError, match=reason) as caught:
        check_topic_name(name)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("count", [0, -1, 101, 10**9])
def test_counts_outside_the_range(count: int) -> None:
    with pytest.raises(InvalidPartitionsError, match=r"1 to 100 are \(max.partitions.per.topic\)"):
        check_partition_count(count, 100)


@pytest.mark.parametrize("count", ["3", 1.0, None, True])
def test_counts_that_are_no_numbers(count: object) -> None:
    with pytest.raises(InvalidPartitionsError, match="is not a number of partitions"):
        check_partition_count(count, 100)


def test_counts_inside_the_range() -> None:
    assert [check_partition_count(count, 100) for count in (1, 100)] == [1, 100]


def test_the_logs_own_topics_are_told_apart() -> None:
    for name in INTERNAL_TOPICS:
        with pytest.raises(InvalidTopicError, match="it is the log's own; choose another one"):
            check_not_internal(name)
    check_not_internal("__mine")
