"""Rules for topic names and partition counts."""

from __future__ import annotations

import pytest

from strandlog.broker.topics.topic import (
    INTERNAL_TOPICS,
    check_partition_count,
    check_topic_name,
    forbid_internal,
)
from strandlog.config.limits.records import MAX_TOPIC_NAME_CHARACTERS
from strandlog.errors import InvalidPartitionsError, InvalidTopicError


@pytest.mark.parametrize(
    "name", ["a", "a.b", "a_b", "a-b", "A-1", "...", "-", "0", "x" * MAX_TOPIC_NAME_CHARACTERS]
)
def test_legal_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "it is empty"),
        (".", "it is a reserved directory name"),
        ("..", "it is a reserved directory name"),
        ("a b", "only letters, digits, '.', '_' and '-' are allowed"),
        ("a/b", "are allowed"),
        ("ä", "are allowed"),
        ("a\n", "are allowed"),
        ("a\0", "are allowed"),
        ("x" * 250, "it has 250 characters; the maximum is 249"),
        (b"bytes", "it must be a str"),
        (None, "it must be a str"),
        (5, "it must be a str"),
    ],
)
def test_invalid_names(name: object, reason: str) -> None:
    with pytest.raises(InvalidTopicError, match=reason) as caught:
        check_topic_name(name)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("count", [0, -1, 101, 10**9])
def test_partition_counts_out_of_range(count: int) -> None:
    with pytest.raises(InvalidPartitionsError, match="between 1 and 100 "):
        check_partition_count(count, 100)


@pytest.mark.parametrize("count", ["3", 1.0, None, True])
def test_partition_counts_that_are_not_integers(count: object) -> None:
    with pytest.raises(InvalidPartitionsError, match="partition count must be an integer"):
        check_partition_count(count, 100)


def test_partition_counts_in_range() -> None:
    assert [check_partition_count(count, 100) for count in (1, 100)] == [1, 100]


def test_internal_topics_are_forbidden() -> None:
    for name in INTERNAL_TOPICS:
        with pytest.raises(InvalidTopicError, match="it is an internal topic"):
            forbid_internal(name)
    forbid_internal("__mine")
