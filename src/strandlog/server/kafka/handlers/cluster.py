"""Who is there and what does it speak: ApiVersions, Metadata, FindCoordinator, DescribeCluster.

Metadata makes a topic that is asked for and not there, if the client and
`auto.create.topics.enable` allow it and the name is legal. One node leads all partitions, so what
Metadata says about the partitions of a topic follows from their number alone: it is encoded once
per number and version, for clients of large topics ask often.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any
from uuid import UUID

from strandlog.broker.compacted_table import TableTopic
from strandlog.broker.topics.catalog import Topic
from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.errors import StrandlogError
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.server.kafka.api import (
    CLUSTER,
    CREATE,
    DESCRIBE,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    declared_apis,
    kafka_api,
)
from strandlog.server.kafka.listener import NODE_ID, KafkaDoor
from strandlog.server.kafka.refusals import InvalidRequestError, NotCreatedYetError
from strandlog.server.kafka.request import Request
from strandlog.storage.folder.identity import uuid_of
from strandlog.storage.work import Steps, breathe

logger = logging.getLogger(__name__)

# Bits of what a client may do: everything that Kafka knows, as long as nobody asks who it is.
ALL_OPERATIONS_ON_TOPIC = 0b1101_1111_1000
ALL_OPERATIONS_ON_CLUSTER = 0b1_1111_1010_0000
NOT_ASKED_FOR = -2147483648
COORDINATOR_GROUP, COORDINATOR_TRANSACTION = 0, 1
COORDINATOR_NOT_AVAILABLE = 15
SOFTWARE_NAMED_FROM = 3
TOPIC_IDS_FROM = 12
ENDPOINT_BROKERS, ENDPOINT_CONTROLLERS = 1, 2
MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE = 114, 115

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
def api_versions(door: KafkaDoor, request: Request) -> None:
    del door
    body = request.body()
    if request.version >= SOFTWARE_NAMED_FROM and not (
        _SOFTWARE.fullmatch(body.client_software_name)
        and _SOFTWARE.fullmatch(body.client_software_version)
    ):
        request.reply({"error_code": InvalidRequestError.kafka_code})
        return
    keys = [each.advertised() for each in declared_apis()]
    request.reply({"error_code": 0, "api_keys": keys})


# -- metadata ------------------------------------------------------------------------------------


@kafka_api(
    api.METADATA,
    versions=(0, 13),
    requires=[DESCRIBE.on(TOPIC), (CREATE.on(CLUSTER), CREATE.on(TOPIC))],
    summary=(
        "Lists topics, partitions and the broker to connect to; creates missing topics on demand."
    ),
    notes=(
        "CREATE only for a topic to be created. One node leads every partition; cluster and "
        "topic ids are stable. Topic ids from version 12."
    ),
)
def metadata(door: KafkaDoor, request: Request) -> Steps[None]:
    body = yield from request.reading()
    # Each once: a short request could ask for a large topic many thousand times.
    wanted = None if body.topics is None else dict.fromkeys(body.topics)
    missing = yield from _names_to_make(door, body, wanted)
    limit = door.broker.settings.auto_create_topics_max_per_request
    refused: dict[str, StrandlogError] = dict.fromkeys(missing[limit:], NotCreatedYetError(limit))
    if missing:
        making = _making(door, missing[:limit])
        door.in_steps(
            request,
            making,
            lambda failed: door.in_slices(
                request, _describe(door, request, body, wanted, refused | failed)
            ),
        )
    else:
        yield from _describe(door, request, body, wanted, {})


def _names_to_make(door: KafkaDoor, body: Any, wanted: dict[Any, None] | None) -> Steps[list[str]]:
    """Topics that are asked for, are not there, and may be made for the asking."""
    may_create = getattr(body, "allow_auto_topic_creation", True)
    missing: dict[str, None] = {}
    if may_create and wanted and door.broker.settings.auto_create_topics_enable:
        for each in wanted:
            yield breathe
            name = each.name
            if name is None or getattr(each, "topic_id", None) is not None:
                continue
            if name not in door.broker.catalog and name not in INTERNAL_TOPICS:
                missing[name] = None
    return list(missing)


def _making(door: KafkaDoor, names: list[str]) -> Steps[dict[str, StrandlogError]]:
    """Make the topics; what was said about those that cannot be made."""
    refused: dict[str, StrandlogError] = {}
    for name in names:
        yield breathe
        if name not in door.broker.catalog:  # somebody else may have asked before
            try:
                yield from door.broker.creating_topic(name)
            except StrandlogError as error:
                refused[name] = error
    return refused


def _describe(
    door: KafkaDoor,
    request: Request,
    body: Any,
    wanted: dict[Any, None] | None,
    refused: dict[str, StrandlogError],
) -> Steps[None]:
    catalog = door.broker.catalog
    topics: list[dict[str, Any]] = []
    if wanted is None or (request.version == 0 and not wanted):
        for name in catalog.names():
            if name in catalog:  # it may be deleted meanwhile
                topics.append(_topic(catalog.topic(name), request.version))
            yield breathe
    else:
        for topic in wanted:
            topics.append(_wanted_topic(door, request, topic, refused))
            yield breathe
    if getattr(body, "include_topic_authorized_operations", False):
        for row in topics:
            if not row["error_code"]:
                row["topic_authorized_operations"] = ALL_OPERATIONS_ON_TOPIC
    host, port = door.advertised(request.connection)
    yield from request.replying(
        {
            "brokers": [{"node_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_id": door.broker.log_dir.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
            "cluster_authorized_operations": ALL_OPERATIONS_ON_CLUSTER
            if getattr(body, "include_cluster_authorized_operations", False)
            else NOT_ASKED_FOR,
        }
    )


def _wanted_topic(
    door: KafkaDoor, request: Request, wanted: Any, refused: dict[str, StrandlogError]
) -> dict[str, Any]:
    topic_id: UUID | None = getattr(wanted, "topic_id", None)
    name: str | None = wanted.name
    try:
        if name is None or topic_id is not None:
            if request.version < TOPIC_IDS_FROM or topic_id is None:
                raise InvalidRequestError("this version asks for topics by name")
            topic = door.broker.catalog.topic_with_id(topic_id)
        elif name in refused:
            raise refused[name]
        else:
            topic = door.broker.catalog.topic_asked_for(name)
        return _topic(topic, request.version)
    except StrandlogError as error:
        if name is None and request.version < TOPIC_IDS_FROM:
            name = ""  # there is no null in their answers
        return {"error_code": error.kafka_code, "name": name, "topic_id": topic_id}


def _topic(topic: Topic, version: int) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": uuid_of(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": _encoded_partitions(version, topic.partitions),
        "topic_authorized_operations": NOT_ASKED_FOR,
    }


@lru_cache(maxsize=64)
def _encoded_partitions(version: int, count: int) -> bytes:
    rows = [partition_row(number) for number in range(count)]
    return array_encoder(api.METADATA.key, version, "topics", "partitions")(rows)


def partition_row(number: int) -> dict[str, Any]:
    """What there is to say about a partition: one node leads it and has it."""
    return {
        "error_code": 0,
        "partition_index": number,
        "leader_id": NODE_ID,
        "leader_epoch": 0,
        "replica_nodes": [NODE_ID],
        "isr_nodes": [NODE_ID],
        "offline_replicas": [],
    }


# -- nodes ---------------------------------------------------------------------------------------


@kafka_api(
    api.FIND_COORDINATOR,
    versions=(0, 6),
    requires=[(DESCRIBE.on(GROUP), DESCRIBE.on(TRANSACTIONAL_ID))],
    summary="Returns this broker, which coordinates every group and transaction.",
    notes="The permission depends on the key type.",
)
def find_coordinator(door: KafkaDoor, request: Request) -> Steps[None]:
    body = yield from request.reading()
    host, port = door.advertised(request.connection)
    key_type = getattr(body, "key_type", COORDINATOR_GROUP)
    keys = getattr(body, "coordinator_keys", None)

    def reply(is_there: bool, code: int = COORDINATOR_NOT_AVAILABLE) -> None:
        answer: dict[str, Any] = {"node_id": NODE_ID, "host": host, "port": port, "error_code": 0}
        if not is_there:
            answer = {"node_id": -1, "host": "", "port": -1, "error_code": code}
        if keys is None:
            request.reply(answer)
        else:
            rows = [{**answer, "key": key} for key in dict.fromkeys(keys)]
            door.in_slices(request, request.replying({"coordinators": rows}))

    tables = {
        COORDINATOR_GROUP: door.broker.offsets_table,
        COORDINATOR_TRANSACTION: door.broker.transactions_table,
    }
    table = tables.get(key_type)
    if table is None:
        reply(False, InvalidRequestError.kafka_code)  # no use in asking again
    elif table.exists:
        reply(True)
    else:  # whoever asks is about to use it; later, making it would hold everybody up
        door.in_steps(request, _making_table(table), reply)


def _making_table(table: TableTopic) -> Steps[bool]:
    try:
        yield from table.ensuring()
    except StrandlogError as error:
        logger.warning("a table of coordinators cannot be made: %s", error)
        return False
    return True


@kafka_api(
    api.DESCRIBE_CLUSTER,
    versions=(0, 2),
    requires=[],
    summary="Returns the cluster id and the only broker.",
)
def describe_cluster(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    asked = getattr(body, "endpoint_type", ENDPOINT_BROKERS)
    if asked != ENDPOINT_BROKERS:
        is_known = asked == ENDPOINT_CONTROLLERS
        request.reply(
            {
                "error_code": MISMATCHED_ENDPOINT_TYPE if is_known else UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": f"this is a broker; ask with endpoint type {ENDPOINT_BROKERS}",
                "cluster_id": "",
            }
        )
        return
    host, port = door.advertised(request.connection)
    request.reply(
        {
            "cluster_id": door.broker.log_dir.cluster_id,
            "controller_id": NODE_ID,
            "brokers": [{"broker_id": NODE_ID, "host": host, "port": port, "rack": None}],
            "cluster_authorized_operations": ALL_OPERATIONS_ON_CLUSTER
            if body.include_cluster_authorized_operations
            else NOT_ASKED_FOR,
            "endpoint_type": ENDPOINT_BROKERS,
        }
    )
