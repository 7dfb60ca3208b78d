"""Requests of cluster tools to a single broker: elections, reassignments, coordinators."""

from __future__ import annotations

import pytest
from tests.support.kafka_requests import Wire, create_topic

UNKNOWN_TOPIC, INVALID_ASSIGNMENT, INVALID_REQUEST = 3, 39, 42
ELECTION_NOT_NEEDED, NO_REASSIGNMENT = 84, 85


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_needed(wire: Wire, version: int) -> None:
    create_topic(wire, f"led-{version}", 2)
    wanted = [{"topic": f"led-{version}", "partitions": [1, 2]}]
    answer = wire.ask(43, version, topic_partitions=wanted)
    [topic] = answer.replica_election_results
    codes = {row.partition_id: int(row.error_code) for row in topic.partition_result}
    assert codes == {1: ELECTION_NOT_NEEDED, 2: UNKNOWN_TOPIC}
    assert wire.ask(43, version, topic_partitions=None).replica_election_results == ()


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_stay_where_they_are(wire: Wire, version: int) -> None:
    create_topic(wire, f"moved-{version}", 3)
    parts = [
        {"partition_index": number, "replicas": replicas}
        for number, replicas in enumerate([[0], [0, 1], None, [0]])
    ]
    [topic] = wire.ask(
        45, version, topics=[{"name": f"moved-{version}", "partitions": parts}]
    ).responses
    codes = [int(row.error_code) for row in topic.partitions]
    assert codes == [0, INVALID_ASSIGNMENT, NO_REASSIGNMENT, UNKNOWN_TOPIC]
    assert wire.ask(46, 0, topics=None).topics == ()


def test_resources_with_settings_are_listed_by_type(wire: Wire) -> None:
    create_topic(wire, "listed")
    rows = wire.ask(74, 1, resource_types=[]).config_resources
    assert {(2, "listed"), (4, "0")} <= {(row.resource_type, row.resource_name) for row in rows}
    rows = wire.ask(74, 1, resource_types=[4]).config_resources
    assert [(row.resource_type, row.resource_name) for row in rows] == [(4, "0")]
    assert wire.ask(74, 0).config_resources == ()
    assert wire.ask(74, 1, resource_types=[77]).error_code == 35


def test_an_unknown_coordinator_type_is_a_final_error(wire: Wire) -> None:
    answer = wire.ask(10, 6, key_type=2, coordinator_keys=["a"])
    [refused] = answer.coordinators
    assert (refused.error_code, refused.node_id) == (INVALID_REQUEST, -1)
    [found] = wire.ask(10, 6, key_type=0, coordinator_keys=["a"]).coordinators
    assert (found.error_code, found.node_id, found.host) == (0, 0, "127.0.0.1")


def test_authorized_operations_of_a_group_are_returned_on_request(wire: Wire) -> None:
    [plain] = wire.ask(15, 5, groups=["g"]).groups
    [asked] = wire.ask(15, 5, groups=["g"], include_authorized_operations=True).groups
    assert plain.authorized_operations == -(2**31)
    assert asked.authorized_operations == 3400
