"""Requests about ACLs, folders and the quorum leave the connection open."""

from __future__ import annotations

import pytest
from tests.support.kafka_requests import Wire, create_topic

UNKNOWN_TOPIC, SECURITY_DISABLED, LOG_DIR_NOT_FOUND = 3, 54, 57
ANY = 1
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_say_that_security_is_disabled(wire: Wire, version: int) -> None:
    described = wire.ask(29, version, **FILTER)
    assert (described.error_code, described.resources) == (SECURITY_DISABLED, ())
    assert "authorizer" in described.error_message
    created = wire.ask(30, version, creations=[RULE, RULE]).results
    assert [row.error_code for row in created] == [SECURITY_DISABLED] * 2
    deleted = wire.ask(31, version, filters=[FILTER]).filter_results
    assert [row.error_code for row in deleted] == [SECURITY_DISABLED]


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
