"""Handlers for ApiVersions, FindCoordinator, DescribeCluster, DescribeLogDirs, DescribeQuorum, and
for the APIs that elect leaders and move replicas.

The only node is 0. It leads every partition and has the only replica: no election is ever needed, a
reassignment to node 0 succeeds without effect, any other fails, and none is ever in progress. The
same holds for moves between folders, because there is one data folder. The metadata quorum consists
of node 0; there is no metadata log, so every offset of that log is -1 (unknown).
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Any, Literal

from strandlog.broker.access.permission import (
    ALTER,
    CLUSTER,
    DESCRIBE,
    GROUP,
    TRANSACTIONAL_ID,
    Permission,
)
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.broker.topics.topic import PartitionState
from strandlog.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    StrandlogError,
    TopicNotFoundError,
)
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import LEADER_EPOCH, NODE_ID, declared_apis, kafka_api
from strandlog.server.kafka.handlers.metadata import cluster_operations
from strandlog.server.kafka.request import Request, asked_once

logger = logging.getLogger(__name__)
COORDINATOR_GROUP, COORDINATOR_TRANSACTION = 0, 1
COORDINATOR_KINDS: dict[int, Literal["group", "transaction"]] = {
    COORDINATOR_GROUP: "group",
    COORDINATOR_TRANSACTION: "transaction",
}
FIND_COORDINATOR = {
    "group": DESCRIBE.on(GROUP),
    "transaction": DESCRIBE.on(TRANSACTIONAL_ID),
}
DESCRIBE_CLUSTER, ALTER_CLUSTER = DESCRIBE.on(CLUSTER), ALTER.on(CLUSTER)
COORDINATOR_NOT_AVAILABLE = 15
SOFTWARE_NAMED_FROM = 3
ENDPOINT_BROKERS, ENDPOINT_CONTROLLERS = 1, 2
MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115
METADATA_TOPIC, METADATA_PARTITION = "__cluster_metadata", 0
UNKNOWN_OFFSET = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


@kafka_api(
    api.API_VERSIONS,
    versions=(0, 4),
    requires=[],
    summary="Lists the APIs and versions on this page.",
    notes=(
        "An unsupported version gets error 35 in the layout of version 0. The feature "
        "`transaction.version` is not offered."
    ),
)
def api_versions(broker: Broker, request: Request) -> None:
    del broker
    body = request.body()
    if request.version >= SOFTWARE_NAMED_FROM and not (
        _SOFTWARE.fullmatch(body.client_software_name)
        and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        request.reply({"error_code": InvalidRequestError.kafka_code})
        return
    keys = [each.advertised() for each in declared_apis()]
    request.reply({"error_code": 0, "api_keys": keys})
    if (session := request.connection.sasl) is not None:
        session.authentication.versions_sent()


@kafka_api(
    api.FIND_COORDINATOR,
    versions=(0, 6),
    requires=[(DESCRIBE.on(GROUP), DESCRIBE.on(TRANSACTIONAL_ID))],
    summary="Returns this broker, which coordinates every group and transaction.",
    notes="The permission depends on the key type.",
)
def find_coordinator(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    host, port = request.advertised
    key_type = getattr(body, "key_type", COORDINATOR_GROUP)
    keys = getattr(body, "coordinator_keys", None)

    kind = COORDINATOR_KINDS.get(key_type)
    names = [body.key] if keys is None else list(dict.fromkeys(keys))
    denied: dict[str, int] = {}
    if kind is not None:
        denied = yield from _denied_keys(broker, request, FIND_COORDINATOR[kind], names)

    def row(code: int) -> dict[str, Any]:
        if code:
            return {"node_id": -1, "host": "", "port": -1, "error_code": code}
        return {"node_id": NODE_ID, "host": host, "port": port, "error_code": 0}

    def reply(code: int) -> None:
        if keys is None:
            request.reply(row(denied.get(body.key, code)))
        else:
            rows = [{**row(denied.get(key, code)), "key": key} for key in names]
            request.reply_in_slices({"coordinators": rows})

    def failed(error: StrandlogError) -> None:
        logger.warning("cannot create the coordinator's topic: %s", error)
        reply(COORDINATOR_NOT_AVAILABLE)

    if kind is None:
        reply(InvalidRequestError.kafka_code)
    elif len(denied) == len(names):
        reply(0)
    else:
        # The client is about to use the coordinator, so its topic is created now.
        key = next(name for name in names if name not in denied)
        found = broker.find_coordinator(request.context, kind, key)
        request.when_done(found, lambda _: reply(0), failed, in_line=True)


def _denied_keys(
    broker: Broker, request: Request, needs: Permission, names: list[str]
) -> Work[dict[str, int]]:
    """Return the error code of each group or transactional id that the client may not see."""
    denied: dict[str, int] = {}
    for name in names:
        yield yield_control
        try:
            broker.check_access(request.context, needs, name)
        except StrandlogError as error:
            denied[name] = error.kafka_code
    return denied


@kafka_api(
    api.DESCRIBE_CLUSTER,
    versions=(0, 2),
    requires=[],
    summary="Returns the cluster id and the only broker.",
)
def describe_cluster(broker: Broker, request: Request) -> None:
    body = request.body()
    asked = getattr(body, "endpoint_type", ENDPOINT_BROKERS)
    if asked != ENDPOINT_BROKERS:
        is_known = asked == ENDPOINT_CONTROLLERS
        request.reply(
            {
                "error_code": MISMATCHED_ENDPOINT_TYPE if is_known else UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": f"this is a broker; use endpoint type {ENDPOINT_BROKERS}",
                "cluster_id": "",
            }
        )
        return
    host, port = request.advertised
    request.reply(
        {
            "cluster_id": broker.cluster_id,
            "controller_id": NODE_ID,
            "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_authorized_operations": cluster_operations(broker, request, body),
            "endpoint_type": ENDPOINT_BROKERS,
        }
    )


# -- folders ---------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_LOG_DIRS,
    versions=(1, 4),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Returns the size of each partition, and the size and free space of the disk.",
)
def describe_log_dirs(broker: Broker, request: Request) -> Work[None]:
    wanted = (yield from request.reading()).topics
    context = request.context
    if not broker.has_access(context, DESCRIBE_CLUSTER):
        code = _denied_code(broker, request, DESCRIBE_CLUSTER)
        request.reply({"error_code": code, "results": []})
        return
    numbers_of: dict[str, Any] = dict.fromkeys(broker.topic_names(context, DESCRIBE_CLUSTER))
    if wanted is not None:
        asked = yield from asked_once(
            (row for row in wanted if broker.has_topic(context, row.topic, DESCRIBE_CLUSTER)),
            lambda row: row.partitions,
            name_of=lambda row: str(row.topic),
        )
        numbers_of = dict(asked.topics)
    topics = []
    for name, numbers in numbers_of.items():
        yield yield_control
        rows = []
        count = 0
        if broker.has_topic(context, name, DESCRIBE_CLUSTER):
            count = broker.topic(context, name, DESCRIBE_CLUSTER).partitions
        for number in range(count) if numbers is None else sorted(numbers):
            with contextlib.suppress(StrandlogError):  # the partition may not exist
                state = broker.partition_state(context, name, number, DESCRIBE_CLUSTER)
                rows.append(_size_row(state))
            yield yield_control
        topics.append({"name": name, "partitions": rows})
    result: dict[str, Any] = {"log_dir": broker.path, "topics": topics}
    try:
        disk = broker.disk_usage()
        result["total_bytes"], result["usable_bytes"] = disk.total_bytes, disk.free_bytes
    except StrandlogError as error:
        result["error_code"] = error.kafka_code
    yield from request.replying({"results": [result]})


def _denied_code(broker: Broker, request: Request, needs: Permission) -> int:
    """Return the error code if the client lacks a permission, otherwise 0."""
    try:
        broker.check_access(request.context, needs)
    except StrandlogError as error:
        return error.kafka_code
    return 0


def _size_row(state: PartitionState) -> dict[str, Any]:
    return {
        "partition_index": state.partition,
        "partition_size": state.size_bytes,
        "offset_lag": 0,
        "is_future_key": False,
    }


@kafka_api(
    api.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    requires=[ALTER.on(CLUSTER)],
    summary="Accepts moves to the only data folder, and rejects others.",
)
def alter_replica_log_dirs(broker: Broker, request: Request) -> Work[None]:
    folder = broker.path
    outcomes: dict[str, dict[int, dict[str, int]]] = {}
    for wanted in (yield from request.reading()).dirs:
        for topic in wanted.topics:
            rows = outcomes.setdefault(topic.name, {})
            yield yield_control
            for number in topic.partitions:
                code = 0
                try:
                    broker.partition_state(request.context, topic.name, number, ALTER_CLUSTER)
                    if wanted.path != folder:
                        raise LogDirNotFoundError(f"the only data folder is {folder}")
                except StrandlogError as error:
                    code = error.kafka_code
                rows[number] = {"partition_index": number, "error_code": code}
                yield yield_control
    results = [
        {"topic_name": name, "partitions": list(rows.values())} for name, rows in outcomes.items()
    ]
    yield from request.replying({"results": results})


# -- replicas --------------------------------------------------------------------------------------


@kafka_api(
    api.ELECT_LEADERS,
    versions=(0, 2),
    requires=[ALTER.on(CLUSTER)],
    summary="Returns ELECTION_NOT_NEEDED for each partition that is named and exists.",
)
def elect_leaders(broker: Broker, request: Request) -> Work[None]:
    wanted = (yield from request.reading()).topic_partitions
    results = []
    denied = _denied_code(broker, request, ALTER_CLUSTER)
    # If all partitions are requested, Kafka only lists elections that took place: there are none.
    for topic in wanted or ():
        rows = []
        for number in topic.partitions:
            failure: StrandlogError = ElectionNotNeededError(
                f"node {NODE_ID} already leads this partition"
            )
            try:
                broker.partition_state(request.context, topic.topic, number, ALTER_CLUSTER)
            except StrandlogError as error:
                failure = error
            rows.append({"partition_id": number, **_error_fields(failure)})
            yield yield_control
        results.append({"topic": topic.topic, "partition_result": rows})
    yield from request.replying({"error_code": denied, "replica_election_results": results})


@kafka_api(
    api.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    requires=[ALTER.on(CLUSTER)],
    summary="Accepts reassignments to node 0, and rejects others.",
)
def alter_partition_reassignments(broker: Broker, request: Request) -> Work[None]:
    responses = []
    body = yield from request.reading()
    if code := _denied_code(broker, request, ALTER_CLUSTER):
        request.reply({"error_code": code, "error_message": None, "responses": []})
        return
    for topic in body.topics:
        rows = []
        for part in topic.partitions:
            row: dict[str, Any] = {"partition_index": part.partition_index, "error_message": None}
            try:
                broker.partition_state(
                    request.context, topic.name, part.partition_index, ALTER_CLUSTER
                )
                _check_move(part.replicas)
            except StrandlogError as error:
                row |= _error_fields(error)
            rows.append(row)
            yield yield_control
        responses.append({"name": topic.name, "partitions": rows})
    yield from request.replying({"error_message": None, "responses": responses})


def _check_move(replicas: list[int] | None) -> None:
    if replicas is None:
        raise NoReassignmentInProgressError("there is no reassignment to cancel")
    if replicas != [NODE_ID]:
        raise InvalidReplicaAssignmentError(
            f"a partition cannot move to nodes {replicas}; there is only node {NODE_ID}"
        )


@kafka_api(
    api.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Returns an empty list: nothing is being moved.",
)
def list_partition_reassignments(broker: Broker, request: Request) -> Work[None]:
    yield from request.reading()
    code = _denied_code(broker, request, DESCRIBE_CLUSTER)
    request.reply({"error_code": code, "error_message": None, "topics": []})


# -- quorum ----------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_QUORUM,
    versions=(0, 2),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Describes a quorum of one node; offsets of the metadata log are unknown.",
)
def describe_quorum(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    if code := _denied_code(broker, request, DESCRIBE_CLUSTER):
        request.reply({"error_code": code, "error_message": None, "topics": [], "nodes": []})
        return
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
            yield yield_control
        topics.append({"topic_name": name, "partitions": partitions})
    host, port = request.advertised
    node = {
        "node_id": NODE_ID,
        "listeners": [{"name": request.listener.label, "host": host, "port": port}],
    }
    yield from request.replying({"error_message": None, "topics": topics, "nodes": [node]})


def _quorum_row(name: str, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"partition_index": number, "error_message": None}
    if (name, number) != (METADATA_TOPIC, METADATA_PARTITION):
        return row | _error_fields(TopicNotFoundError(name))
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


def _error_fields(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
