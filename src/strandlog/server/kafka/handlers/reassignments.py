"""Requests about a cluster of several nodes, answered by one: ElectLeaders, Alter- and
ListPartitionReassignments, AlterReplicaLogDirs, DescribeQuorum.

Node 0 leads every partition and has the only replica: elections are not needed, moves to node 0 are
done before they begin, other nodes do not exist, and there is never a move under way. The same is
true of moves between folders, because there is one data folder. The quorum that keeps the metadata
is node 0; it has no metadata log, so every offset of that log is -1 (unknown).
"""

from __future__ import annotations

from typing import Any

from strandlog.errors import StrandlogError, TopicNotFoundError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import ALTER, CLUSTER, DESCRIBE, kafka_api
from strandlog.server.kafka.handlers.asked import asked_once
from strandlog.server.kafka.listener import NODE_ID, KafkaDoor
from strandlog.server.kafka.refusals import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
)
from strandlog.server.kafka.request import Request
from strandlog.storage.partition.log import LEADER_EPOCH
from strandlog.storage.work import Steps, breathe


@kafka_api(
    api.ELECT_LEADERS,
    versions=(0, 2),
    requires=[ALTER.on(CLUSTER)],
    summary="Answers ELECTION_NOT_NEEDED for every partition.",
)
def elect_leaders(door: KafkaDoor, request: Request) -> Steps[None]:
    wanted = (yield from request.reading()).topic_partitions
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
            yield breathe
        results.append({"topic": topic.topic, "partition_result": rows})
    yield from request.replying({"replica_election_results": results})


@kafka_api(
    api.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    requires=[ALTER.on(CLUSTER)],
    summary="Moves to node 0 succeed, others fail.",
)
def alter_partition_reassignments(door: KafkaDoor, request: Request) -> Steps[None]:
    responses = []
    for topic in (yield from request.reading()).topics:
        rows = []
        for part in topic.partitions:
            row: dict[str, Any] = {"partition_index": part.partition_index, "error_message": None}
            try:
                door.broker.catalog.log(topic.name, part.partition_index)
                _check_move(part.replicas)
            except StrandlogError as error:
                row |= _told(error)
            rows.append(row)
            yield breathe
        responses.append({"name": topic.name, "partitions": rows})
    yield from request.replying({"error_message": None, "responses": responses})


def _check_move(replicas: list[int] | None) -> None:
    if replicas is None:
        raise NoReassignmentInProgressError("there is no move to cancel")
    if replicas != [NODE_ID]:
        raise InvalidReplicaAssignmentError(
            f"a partition cannot move to nodes {replicas}; there is node {NODE_ID} alone"
        )


@kafka_api(
    api.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Returns an empty list: nothing is being moved.",
)
def list_partition_reassignments(door: KafkaDoor, request: Request) -> Steps[None]:
    del door
    yield from request.reading()
    request.reply({"error_message": None, "topics": []})


@kafka_api(
    api.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    requires=[ALTER.on(CLUSTER)],
    summary="Moves to the data folder succeed, others fail: there is one folder.",
)
def alter_replica_log_dirs(door: KafkaDoor, request: Request) -> Steps[None]:
    catalog, folder = door.broker.catalog, door.broker.log_dir.path
    outcomes: dict[str, dict[int, dict[str, int]]] = {}
    for wanted in (yield from request.reading()).dirs:
        for topic in wanted.topics:
            rows = outcomes.setdefault(topic.name, {})
            yield breathe
            for number in topic.partitions:
                code = 0
                try:
                    catalog.log(topic.name, number)
                    if wanted.path != folder:
                        raise LogDirNotFoundError(f"the only data folder is {folder}")
                except StrandlogError as error:
                    code = error.kafka_code
                rows[number] = {"partition_index": number, "error_code": code}
                yield breathe
    results = [
        {"topic_name": name, "partitions": list(rows.values())} for name, rows in outcomes.items()
    ]
    yield from request.replying({"results": results})


METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
UNKNOWN_OFFSET = -1


@kafka_api(
    api.DESCRIBE_QUORUM,
    versions=(0, 2),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Describes a quorum of one node; offsets of the metadata log are unknown.",
)
def describe_quorum(door: KafkaDoor, request: Request) -> Steps[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics,
        lambda topic: topic.partitions,
        lambda part: int(part.partition_index),
        lambda topic: str(topic.topic_name),
    )
    topics = []
    for name, numbers in asked.topics.items():
        partitions = []
        for number in numbers:
            partitions.append(_quorum_row(name, number))
            yield breathe
        topics.append({"topic_name": name, "partitions": partitions})
    host, port = door.advertised(request.connection)
    node = {
        "node_id": NODE_ID,
        "listeners": [{"name": "PLAINTEXT", "host": host, "port": port}],
    }
    yield from request.replying({"error_message": None, "topics": topics, "nodes": [node]})


def _quorum_row(name: str, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"partition_index": number, "error_message": None}
    if (name, number) != (METADATA_TOPIC, METADATA_PARTITION):
        return row | _told(TopicNotFoundError(name))
    voter = {
        "replica_id": NODE_ID,
        "replica_directory_id": None,
        "log_end_offset": UNKNOWN_OFFSET,
    }
    return row | {
        "leader_id": NODE_ID,
        "leader_epoch": LEADER_EPOCH,
        "high_watermark": UNKNOWN_OFFSET,
        "current_voters": [voter],
    }


def _told(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
