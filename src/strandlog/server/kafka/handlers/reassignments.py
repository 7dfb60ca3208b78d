"""What tools for many nodes ask, answered by one: ElectLeaders, Alter- and
ListPartitionReassignments.

Node 0 leads every partition and has the only replica: elections are not needed, moves to node 0 are
done before they begin, other nodes do not exist, and there is never a move under way.
"""

from __future__ import annotations

from typing import Any

from strandlog.errors import StrandlogError
from strandlog.server.kafka.door import NODE_ID, KafkaDoor
from strandlog.server.kafka.refusals import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
)
from strandlog.server.kafka.request import Request


def elect_leaders(door: KafkaDoor, request: Request) -> None:
    wanted = request.body().topic_partitions
    results = []
    # Asked about everything, Kafka lists only what it did: nothing.
    for topic in wanted or ():
        rows = []
        for number in topic.partitions:
            refused: StrandlogError = ElectionNotNeededError(f"node {NODE_ID} leads already")
            try:
                door.broker.catalog.log(topic.topic, number)
            except StrandlogError as error:
                refused = error
            rows.append({"partition_id": number, **_told(refused)})
        results.append({"topic": topic.topic, "partition_result": rows})
    request.reply({"replica_election_results": results})


def alter_partition_reassignments(door: KafkaDoor, request: Request) -> None:
    responses = []
    for topic in request.body().topics:
        rows = []
        for part in topic.partitions:
            row: dict[str, Any] = {"partition_index": part.partition_index, "error_message": None}
            try:
                door.broker.catalog.log(topic.name, part.partition_index)
                _check_move(part.replicas)
            except StrandlogError as error:
                row |= _told(error)
            rows.append(row)
        responses.append({"name": topic.name, "partitions": rows})
    request.reply({"error_message": None, "responses": responses})


def _check_move(replicas: list[int] | None) -> None:
    if replicas is None:
        raise NoReassignmentInProgressError("there is no move to cancel")
    if replicas != [NODE_ID]:
        raise InvalidReplicaAssignmentError(
            f"a partition cannot move to nodes {replicas}; there is node {NODE_ID} alone"
        )


def list_partition_reassignments(door: KafkaDoor, request: Request) -> None:
    del door
    request.body()
    request.reply({"error_message": None, "topics": []})


def _told(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
