"""OffsetCommit, OffsetFetch and OffsetDelete over the wire."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.support.kafka_requests import Wire, create_topic

from strandlog.protocol.consumer_protocol import Subscription, encode_subscription

INVALID_REQUEST = 42
UNKNOWN_TOPIC, METADATA_TOO_LARGE, GROUP_NOT_FOUND, SUBSCRIBED, UNKNOWN_TOPIC_ID = (
    3,
    12,
    69,
    86,
    100,
)


def _commit(
    wire: Wire, group: str, topic: dict[str, Any], offset: int, metadata: str | None = ""
) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
    version = 10 if "topic_id" in topic else 9
    answer = wire.ask(
        8,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{**topic, "partitions": [part]}],
    )
    [found] = answer.topics
    assert getattr(found, "topic_id", None) == topic.get("topic_id")
    return int(found.partitions[0].error_code)


def _committed(wire: Wire, group: str, topics: list[dict[str, Any]] | None, version: int) -> Any:
    wanted = None if topics is None else [{**t, "partition_indexes": [0]} for t in topics]
    [found] = wire.ask(9, version, groups=[{"group_id": group, "topics": wanted}]).groups
    assert found.error_code == 0
    return found.topics


def test_offsets_are_committed_and_fetched_by_topic_id(wire: Wire) -> None:
    topic_id = create_topic(wire, "by-id")
    assert _commit(wire, "ids", {"topic_id": topic_id}, 5, "five") == 0
    [found] = _committed(wire, "ids", [{"topic_id": topic_id}], 10)
    row = found.partitions[0]
    assert (found.topic_id, row.committed_offset, row.metadata) == (topic_id, 5, "five")
    [every] = _committed(wire, "ids", None, 10)
    assert (every.topic_id, every.partitions[0].committed_offset) == (topic_id, 5)
    [named] = _committed(wire, "ids", [{"name": "by-id"}], 9)
    assert named.partitions[0].committed_offset == 5


def test_an_unknown_topic_id_commits_nothing(wire: Wire) -> None:
    old = create_topic(wire, "namesake")
    assert _commit(wire, "late", {"topic_id": old}, 5) == 0
    wire.ask(20, 6, topics=[{"name": "namesake", "topic_id": None}])
    new = create_topic(wire, "namesake")
    for stranger in (old, uuid4(), None):
        assert _commit(wire, "late", {"topic_id": stranger}, 9) == UNKNOWN_TOPIC_ID
        [found] = _committed(wire, "late", [{"topic_id": stranger}], 10)
        row = found.partitions[0]
        assert (found.topic_id, row.error_code, row.committed_offset) == (
            stranger,
            UNKNOWN_TOPIC_ID,
            -1,
        )
    [fresh] = _committed(wire, "late", [{"topic_id": new}], 10)
    assert fresh.partitions[0].committed_offset == -1


@pytest.mark.parametrize("version", range(1, 8))
def test_old_versions_fetch_one_group(wire: Wire, version: int) -> None:
    create_topic(wire, f"old-{version}")
    topic = {"name": f"old-{version}"}
    assert _commit(wire, f"group-{version}", topic, 3, "three") == 0
    wanted = [{**topic, "partition_indexes": [0, 1]}]
    [found] = wire.ask(9, version, group_id=f"group-{version}", topics=wanted).topics
    rows = [(row.partition_index, row.committed_offset, row.metadata) for row in found.partitions]
    assert rows == [(0, 3, "three"), (1, -1, "")]


def test_commit_metadata_is_returned_unchanged_and_has_a_limit(wire: Wire) -> None:
    create_topic(wire, "notes")
    topic = {"name": "notes"}
    note = "ä" * 2048  # 4096 bytes
    assert _commit(wire, "noting", topic, 1, note) == 0
    [found] = _committed(wire, "noting", [topic], 9)
    assert found.partitions[0].metadata == note
    assert _commit(wire, "noting", topic, 2, note + "x") == METADATA_TOO_LARGE
    [found] = _committed(wire, "noting", [topic], 9)
    assert (found.partitions[0].committed_offset, found.partitions[0].metadata) == (1, note)
    assert _commit(wire, "noting", topic, 3, None) == 0
    [found] = _committed(wire, "noting", [topic], 9)
    assert (found.partitions[0].committed_offset, found.partitions[0].metadata) == (3, "")


@pytest.mark.parametrize("offset", [-1, -5])
def test_a_negative_offset_is_an_invalid_request(wire: Wire, offset: int) -> None:
    create_topic(wire, f"below{offset}")
    topic = {"name": f"below{offset}"}
    assert _commit(wire, "below", topic, offset) == INVALID_REQUEST
    [found] = _committed(wire, "below", [topic], 9)
    assert found.partitions[0].committed_offset == -1  # none


# -- delete --------------------------------------------------------------------------------------


def _join(wire: Wire, group: str, topic: str) -> tuple[str, int]:
    metadata = encode_subscription(Subscription((topic,)))
    values: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    first = wire.ask(11, 5, member_id="", **values)
    joined = wire.ask(11, 5, member_id=first.member_id, **values)
    assert joined.error_code == 0
    wire.ask(14, 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return joined.member_id, joined.generation_id


def _delete(wire: Wire, group: str, *targets: tuple[str, int]) -> tuple[int, dict[Any, int]]:
    topics = [
        {"name": name, "partitions": [{"partition_index": number}]} for name, number in targets
    ]
    answer = wire.ask(47, 0, group_id=group, topics=topics)
    codes = {
        (topic.name, row.partition_index): int(row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }
    return int(answer.error_code), codes


def test_offsets_of_a_subscribed_topic_are_not_deleted(wire: Wire) -> None:
    for name in ("read", "forgotten"):
        create_topic(wire, name)
        assert _commit(wire, "reading", {"name": name}, 4) == 0
    member_id, _ = _join(wire, "reading", "read")
    targets = [("read", 0), ("forgotten", 0), ("forgotten", 9), ("no-such", 0)]
    error, codes = _delete(wire, "reading", *targets)
    assert error == 0
    assert codes == dict(zip(targets, [SUBSCRIBED, 0, UNKNOWN_TOPIC, UNKNOWN_TOPIC], strict=True))
    [kept, gone] = _committed(wire, "reading", [{"name": "read"}, {"name": "forgotten"}], 9)
    assert kept.partitions[0].committed_offset == 4
    assert gone.partitions[0].committed_offset == -1
    wire.ask(13, 1, group_id="reading", member_id=member_id)
    assert _delete(wire, "reading", ("read", 0)) == (0, {("read", 0): 0})


def test_deleting_offsets_of_an_unknown_group_is_an_error(wire: Wire) -> None:
    create_topic(wire, "unowned")
    assert _delete(wire, "no-such-group", ("unowned", 0)) == (GROUP_NOT_FOUND, {})


def test_commits_by_topic_id_reach_their_topics(wire: Wire) -> None:
    ids: list[UUID] = [create_topic(wire, f"mixed-{number}") for number in range(5)]
    for number, topic_id in enumerate(ids):
        assert _commit(wire, "mixed", {"topic_id": topic_id}, number) == 0
    found = _committed(wire, "mixed", None, 10)
    assert {row.topic_id: row.partitions[0].committed_offset for row in found} == {
        topic_id: number for number, topic_id in enumerate(ids)
    }
