"""Names of segments and partition folders: formatting and parsing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.model import TopicPartition
from strandlog.storage.paths import (
    parse_partition_dir,
    parse_segment_file,
    partition_dir,
    segment_stem,
)


@given(base=st.integers(0, 2**63 - 1), suffix=st.sampled_from([".log", ".index", ".timeindex"]))
def test_segment_names_round_trip_and_sort_like_their_offsets(base: int, suffix: str) -> None:
    stem = segment_stem(base)
    assert len(stem) == 20
    assert parse_segment_file(stem + suffix) == (base, suffix, "")
    for state in (".cleaned", ".swap", ".deleted", ".damaged"):
        assert parse_segment_file(stem + suffix + state) == (base, suffix, state)
    if base:
        assert segment_stem(base - 1) < stem


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point",
        "partition.metadata",
        "0.log",
        "0000000000000000000.log",
        "000000000000000000000.log",
        "09223372036854775808.log",
        "99999999999999999999.log",
        "\u0660" * 20 + ".log",
        "00000000000000000000",
        "0000000000000000000a.log",
        "00000000000000000000.log.deleted.tmp",
        "00000000000000000000-123.log.damaged",
        "x00000000000000000000.log",
        "00000000000000000000.log\nmore",
    ],
)
def test_other_file_names_are_not_segments(name: str) -> None:
    assert parse_segment_file(name) is None


@given(topic=st.text("abzAZ019._-", min_size=1, max_size=30), partition=st.integers(0, 999_999_999))
def test_partition_folder_names_round_trip(topic: str, partition: int) -> None:
    tp = TopicPartition(topic, partition)
    assert parse_partition_dir(partition_dir(tp)) == tp


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("a-0", ("a", 0)),
        ("a-b-12", ("a-b", 12)),
        ("a-1-2", ("a-1", 2)),
        ("a--3", ("a-", 3)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
    ],
)
def test_the_last_dash_separates_topic_and_partition(name: str, tp: tuple[str, int]) -> None:
    assert parse_partition_dir(name) == tp


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "-0",
        "a-",
        "a-x",
        "a-1x",
        "a b-0",
        "lost+found",
        "a-0.0123456789abcdef0123456789abcdef-delete",
        "a-0.0123456789abcdef0123456789abcdef-stray",
        "a-1234567890",
    ],
)
def test_other_folder_names_are_not_partitions(name: str) -> None:
    assert parse_partition_dir(name) is None


@pytest.mark.parametrize("name", ["a-007", "a-00"])
def test_a_partition_number_with_leading_zeros_is_not_a_partition(name: str) -> None:
    assert parse_partition_dir(name) is None
