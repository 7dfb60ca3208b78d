"""CreateTopics, CreatePartitions and DeleteTopics over the wire."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.kafka_requests import Wire, create_topic, topic_id_of

INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR = 17, 36, 37, 38
INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC_ID = 39, 40, 42, 100
UNKNOWN_TOPIC = 3


def _wanted(name: str, **changes: Any) -> dict[str, Any]:
    default = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    return {"name": name, **default, **changes}


def _create(wire: Wire, *topics: dict[str, Any], validate_only: bool = False) -> list[Any]:
    return list(wire.ask(19, 7, topics=topics, timeout=1000, validate_only=validate_only).topics)


def _by_hand(*nodes_of_partitions: list[int], first: int = 0) -> list[dict[str, Any]]:
    return [
        {"partition_index": first + number, "broker_ids": nodes}
        for number, nodes in enumerate(nodes_of_partitions)
    ]


def test_a_created_topic_is_returned_with_its_id_and_every_setting(wire: Wire) -> None:
    [made] = _create(
        wire,
        _wanted("told", num_partitions=3, configs=[{"name": "segment.bytes", "value": "4096"}]),
    )
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 3, 1)
    assert made.topic_id == topic_id_of(wire, "told")
    configs = {row.name: row for row in made.configs}
    assert len(configs) > 20
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("4096", 1)
    assert configs["cleanup.policy"].config_source == 5


def test_minus_one_selects_the_defaults_of_the_broker(wire: Wire) -> None:
    [made] = _create(wire, _wanted("defaults"))
    assert (made.error_code, made.replication_factor) == (0, 1)
    [found] = wire.ask(3, 12, topics=[{"topic_id": None, "name": "defaults"}]).topics
    assert len(found.partitions) == made.num_partitions >= 1


def test_validate_only_creates_nothing_and_returns_the_topic(wire: Wire) -> None:
    good, exists, bad = _create(
        wire,
        _wanted("would-be", num_partitions=2),
        _wanted("told-already", num_partitions=2),
        _wanted("bad name"),
        validate_only=True,
    )
    assert (good.error_code, good.num_partitions, exists.error_code) == (0, 2, 0)
    assert good.topic_id is None
    assert bad.error_code == INVALID_TOPIC
    create_topic(wire, "told-already")
    [again] = _create(wire, _wanted("told-already"), validate_only=True)
    assert again.error_code == TOPIC_EXISTS
    [missing] = wire.ask(
        3, 12, topics=[{"topic_id": None, "name": "would-be"}], allow_auto_topic_creation=False
    ).topics
    assert missing.error_code == UNKNOWN_TOPIC


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"replication_factor": 3}, INVALID_REPLICATION_FACTOR, "replication factor"),
        ({"replication_factor": 0}, INVALID_REPLICATION_FACTOR, "replication factor"),
        ({"num_partitions": 0}, INVALID_PARTITIONS, "partitions"),
        ({"num_partitions": -2}, INVALID_PARTITIONS, "partitions"),
        ({"num_partitions": 2**31 - 1}, INVALID_PARTITIONS, "max.partitions.per.topic"),
        ({"configs": [{"name": "retention.ns", "value": "1"}]}, INVALID_CONFIG, "'retention.ms'"),
        ({"configs": [{"name": "segment.bytes", "value": "x"}]}, INVALID_CONFIG, "segment.bytes"),
        ({"configs": [{"name": "segment.bytes", "value": None}]}, INVALID_CONFIG, "segment.bytes"),
        ({"assignments": _by_hand([0], [1])}, INVALID_REPLICA_ASSIGNMENT, "node 0"),
        ({"assignments": _by_hand([0, 0])}, INVALID_REPLICA_ASSIGNMENT, "node 0"),
        ({"assignments": _by_hand([])}, INVALID_REPLICA_ASSIGNMENT, "node 0"),
        ({"assignments": _by_hand([0], first=1)}, INVALID_REPLICA_ASSIGNMENT, "0, 1, 2"),
        ({"assignments": _by_hand([0]), "num_partitions": 1}, INVALID_REQUEST, "-1"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_an_invalid_topic_is_an_error_and_is_not_created(
    wire: Wire, changes: dict[str, Any], code: int, words: str, validate_only: bool
) -> None:
    [refused, other] = _create(
        wire, _wanted("refused", **changes), _wanted("", **changes), validate_only=validate_only
    )
    assert refused.error_code == code
    assert words in refused.error_message
    assert other.error_code in (code, INVALID_TOPIC)
    [missing] = wire.ask(
        3, 12, topics=[{"topic_id": None, "name": "refused"}], allow_auto_topic_creation=False
    ).topics
    assert missing.error_code == UNKNOWN_TOPIC


def test_partitions_can_be_assigned_by_hand(wire: Wire) -> None:
    [made] = _create(wire, _wanted("by-hand", assignments=_by_hand([0], [0], [0])))
    assert (made.error_code, made.num_partitions) == (0, 3)


def test_a_topic_named_twice_gets_one_error(wire: Wire) -> None:
    rows = _create(wire, _wanted("twice"), _wanted("once"), _wanted("twice"))
    assert {row.name: int(row.error_code) for row in rows} == {"twice": INVALID_REQUEST, "once": 0}
    assert len(rows) == 2


def test_internal_topics_cannot_be_created_or_changed(wire: Wire) -> None:
    [made] = _create(wire, _wanted("__consumer_offsets"))
    assert made.error_code == INVALID_TOPIC
    [seen] = wire.ask(3, 12, topics=[{"topic_id": None, "name": "__consumer_offsets"}]).topics
    assert seen.error_code == UNKNOWN_TOPIC


# -- partitions ----------------------------------------------------------------------------------


def _grow(wire: Wire, *topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    answer = wire.ask(37, 3, topics=topics, timeout=1000, validate_only=validate_only)
    rows = {row.name: row for row in answer.results}
    assert len(rows) == len(answer.results), "a row per topic"
    return rows


def _partitions(wire: Wire, name: str) -> int:
    [topic] = wire.ask(3, 12, topics=[{"topic_id": None, "name": name}]).topics
    return len(topic.partitions)


def test_create_partitions_answers_each_topic(wire: Wire) -> None:
    for name in ("grow", "stay", "odd"):
        create_topic(wire, name, 2)
    rows = _grow(
        wire,
        {"name": "grow", "count": 4, "assignments": [{"broker_ids": [0]}, {"broker_ids": [0]}]},
        {"name": "stay", "count": 2, "assignments": None},
        {"name": "odd", "count": 3, "assignments": [{"broker_ids": [7]}]},
        {"name": "no-such", "count": 3, "assignments": None},
    )
    assert {name: int(row.error_code) for name, row in rows.items()} == {
        "grow": 0,
        "stay": INVALID_PARTITIONS,
        "odd": INVALID_REPLICA_ASSIGNMENT,
        "no-such": UNKNOWN_TOPIC,
    }
    assert "only grow" in rows["stay"].error_message
    assert [_partitions(wire, name) for name in ("grow", "stay", "odd")] == [4, 2, 2]


def test_create_partitions_with_validate_only_changes_nothing(wire: Wire) -> None:
    create_topic(wire, "try", 2)
    rows = _grow(wire, {"name": "try", "count": 3, "assignments": None}, validate_only=True)
    assert rows["try"].error_code == 0
    rows = _grow(wire, {"name": "try", "count": 1, "assignments": None}, validate_only=True)
    assert rows["try"].error_code == INVALID_PARTITIONS
    rows = _grow(
        wire,
        {"name": "try", "count": 4, "assignments": [{"broker_ids": [0]}]},
        validate_only=True,
    )
    assert rows["try"].error_code == INVALID_REPLICA_ASSIGNMENT
    assert _partitions(wire, "try") == 2


# -- delete --------------------------------------------------------------------------------------


def _delete(wire: Wire, *targets: tuple[str | None, UUID | None]) -> list[Any]:
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in targets]
    return list(wire.ask(20, 6, topics=topics, timeout=1000).responses)


def test_topics_are_deleted_by_id_and_a_new_one_has_a_new_id(wire: Wire) -> None:
    first = create_topic(wire, "again")
    [gone] = _delete(wire, (None, first))
    assert (gone.error_code, gone.name, gone.topic_id) == (0, "again", first)
    second = create_topic(wire, "again")
    assert second != first
    [late] = _delete(wire, (None, first))
    assert (late.error_code, late.topic_id) == (UNKNOWN_TOPIC_ID, first)
    assert topic_id_of(wire, "again") == second


def test_a_topic_to_delete_has_a_name_or_an_id(wire: Wire) -> None:
    topic_id = create_topic(wire, "kept")
    rows = _delete(
        wire, ("kept", topic_id), (None, None), ("no-such", None), (None, uuid4()), ("", None)
    )
    codes = [int(row.error_code) for row in rows]
    assert codes == [
        INVALID_REQUEST,
        INVALID_REQUEST,
        UNKNOWN_TOPIC,
        UNKNOWN_TOPIC_ID,
        UNKNOWN_TOPIC,
    ]
    rows = _delete(wire, ("kept", None), (None, topic_id))
    assert [int(row.error_code) for row in rows] == [INVALID_REQUEST, INVALID_REQUEST]
    assert topic_id_of(wire, "kept") == topic_id


def test_topics_are_deleted_by_name_in_old_versions(wire: Wire) -> None:
    create_topic(wire, "old-style")
    rows = wire.ask(20, 1, topic_names=["old-style", "no-such"], timeout=1000).responses
    assert {row.name: int(row.error_code) for row in rows} == {
        "old-style": 0,
        "no-such": UNKNOWN_TOPIC,
    }
