"""Subscriptions and assignments: our bytes are those of kafka-python, and back."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.consumer_protocol import encode_sticky_user_data

from strandlog.errors import DataError
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of how kafka-python reads its schemas
    from kafka.protocol.consumer.metadata import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )

FULL = Subscription(
    ("orders", "b"), b"xy", (TopicPartition("orders", 0), TopicPartition("orders", 2)), 7, "r1"
)
GOLDEN = bytes.fromhex(
    "0003 00000002 00066f7264657273 000162 00000002 7879"
    "00000001 00066f7264657273 00000002 00000000 00000002 00000007 00027231"
)


def by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for topic, partition in partitions:
        result.setdefault(topic, []).append(partition)
    return result


def test_the_bytes_of_a_full_subscription() -> None:
    assert encode_subscription(FULL) == GOLDEN
    assert decode_subscription(GOLDEN) == FULL


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_are_those_of_kafka_python(version: int) -> None:
    topic_type = ConsumerProtocolSubscription.TopicPartition
    theirs = ConsumerProtocolSubscription(
        version=version,
        topics=list(FULL.topics),
        user_data=FULL.user_data,
        owned_partitions=[
            topic_type(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(FULL.owned_partitions).items()
        ],
        generation_id=FULL.generation,
        rack_id=FULL.rack,
    ).encode()
    assert encode_subscription(FULL, version) == theirs
    decoded = decode_subscription(theirs)
    assert decoded == FULL._replace(
        owned_partitions=FULL.owned_partitions if version >= 1 else (),
        generation=FULL.generation if version >= 2 else -1,
        rack=FULL.rack if version >= 3 else None,
    )


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("user_data", [None, b"", b"x"])
def test_assignments_are_those_of_kafka_python(version: int, user_data: bytes | None) -> None:
    topic_type = ConsumerProtocolAssignment.TopicPartition
    theirs = ConsumerProtocolAssignment(
        version=version,
        assigned_partitions=[topic_type(topic="orders", partitions=[0, 2])],
        user_data=user_data,
    ).encode()
    ours = Assignment(FULL.owned_partitions, user_data)
    assert encode_assignment(ours, version) == theirs
    assert decode_assignment(theirs) == ours


def test_a_later_version_is_read_as_the_latest_known() -> None:
    later = b"\x00\x09" + GOLDEN[2:] + b"something new"
    assert decode_subscription(later) == FULL


def test_an_empty_assignment_has_no_partitions() -> None:
    assert decode_assignment(b"") == Assignment(())


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff" + GOLDEN[2:]])
def test_an_invalid_subscription_is_rejected(data: bytes) -> None:
    with pytest.raises(DataError):
        decode_subscription(data)


def test_a_subscription_cut_anywhere_is_rejected() -> None:
    for end in range(len(GOLDEN)):
        with pytest.raises(DataError):
            decode_subscription(GOLDEN[:end])


@given(st.binary(max_size=80))
def test_random_bytes_are_decoded_or_rejected(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment, decode_sticky_user_data):
        try:
            decode(data)
        except DataError:
            continue


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=8)
PARTITIONS = st.lists(st.builds(TopicPartition, TEXT, st.integers(0, 2**31 - 1)), unique=True)


@given(
    st.lists(TEXT),
    st.none() | st.binary(max_size=9),
    PARTITIONS,
    st.integers(-1, 2**31 - 1),
    st.none() | TEXT,
)
def test_every_subscription_comes_back(
    topics: list[str],
    user_data: bytes | None,
    owned: list[TopicPartition],
    generation: int,
    rack: str | None,
) -> None:
    subscription = Subscription(tuple(topics), user_data, tuple(owned), generation, rack)
    decoded = decode_subscription(encode_subscription(subscription))
    assert by_topic(decoded.owned_partitions) == by_topic(subscription.owned_partitions)
    assert decoded._replace(owned_partitions=()) == subscription._replace(owned_partitions=())


def test_sticky_user_data_round_trips_and_its_first_version_has_no_generation() -> None:
    data = encode_sticky_user_data(FULL.owned_partitions, 4)
    assert decode_sticky_user_data(data) == (FULL.owned_partitions, 4)
    assert decode_sticky_user_data(data[:-4]) == (FULL.owned_partitions, -1)
