"""Requests about folders and the quorum leave the connection open."""

from __future__ import annotations

import pytest
from tests.support.kafka_requests import Wire, create_topic

UNKNOWN_TOPIC, LOG_DIR_NOT_FOUND = 3, 57


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_can_move_only_to_its_current_folder(wire: Wire, version: int) -> None:
    name = f"placed-{version}"
    create_topic(wire, name)
    folder = wire.ask(35, 4, topics=None).results[0].log_dir
    topics = [{"name": name, "partitions": [0, 7]}]

    def codes(path: str) -> dict[int, int]:
        [topic] = wire.ask(34, version, dirs=[{"path": path, "topics": topics}]).results
        assert topic.topic_name == name
        return {row.partition_index: int(row.error_code) for row in topic.partitions}

    assert codes(folder) == {0: 0, 7: UNKNOWN_TOPIC}
    assert codes("/elsewhere") == {0: LOG_DIR_NOT_FOUND, 7: UNKNOWN_TOPIC}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_one_node(wire: Wire, version: int) -> None:
    partitions = [{"partition_index": 0}]
    named = [{"topic_name": name, "partitions": partitions} for name in ("__cluster_metadata", "x")]
    answer = wire.ask(55, version, topics=named)
    assert answer.error_code == 0
    [metadata], [other] = (topic.partitions for topic in answer.topics)
    assert (metadata.error_code, metadata.leader_id, metadata.leader_epoch) == (0, 0, 0)
    assert [voter.replica_id for voter in metadata.current_voters] == [0]
    assert other.error_code == UNKNOWN_TOPIC
