"""Where groups stand: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Any

from strandlog.broker.group_member import CommitRequest
from strandlog.errors import StorageError, StrandlogError, TopicNotFoundError
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.server.kafka.door import KafkaDoor
from strandlog.server.kafka.request import Request

MANY_GROUPS_FROM = 8


def offset_commit(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    codes: dict[TopicPartition, int] = {}
    catalog = door.broker.catalog
    for topic in body.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            try:
                catalog.log(*tp)
            except TopicNotFoundError as error:
                codes[tp] = error.kafka_code
                continue
            epoch = getattr(part, "committed_leader_epoch", -1)
            offsets[tp] = OffsetAndMetadata(
                part.committed_offset, epoch, part.committed_metadata or ""
            )
    commit = CommitRequest(
        group_id=body.group_id,
        offsets=offsets,
        member_id=body.member_id,
        generation=body.generation_id_or_member_epoch,
        group_instance_id=getattr(body, "group_instance_id", None),
    )
    try:
        refused = door.broker.groups.try_commit_offsets(commit)
        codes |= {tp: error.kafka_code for tp, error in refused.items()}
    except StrandlogError as error:
        codes |= dict.fromkeys(offsets, error.kafka_code)

    def reply(failure: StorageError | None) -> None:
        failed = 0 if failure is None else failure.kafka_code
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": failed
                        or codes.get(TopicPartition(topic.name, part.partition_index), 0),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
        request.reply({"topics": topics})

    door.when_group_is_durable(body.group_id, reply)


def offset_fetch(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    if request.version >= MANY_GROUPS_FROM:
        groups = [_fetched(door, group.group_id, group.topics) for group in body.groups]
        request.reply({"groups": groups})
    else:
        request.reply(_fetched(door, body.group_id, body.topics))


def _fetched(door: KafkaDoor, group: str, topics: Any) -> dict[str, Any]:
    wanted = None
    if topics is not None:
        wanted = [
            TopicPartition(topic.name, number)
            for topic in topics
            for number in topic.partition_indexes
        ]
    try:
        found = door.broker.groups.fetch_offsets(group, wanted)
    except StrandlogError as error:
        return {"group_id": group, "error_code": error.kafka_code, "topics": []}
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for tp, value in found.items():
        by_topic.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": -1 if value is None else value.offset,
                "committed_leader_epoch": -1 if value is None else value.leader_epoch,
                "metadata": "" if value is None else value.metadata,
                "error_code": 0,
            }
        )
    listed = [{"name": name, "partitions": parts} for name, parts in by_topic.items()]
    return {"group_id": group, "error_code": 0, "topics": listed}


def offset_delete(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    wanted = [
        TopicPartition(topic.name, part.partition_index)
        for topic in body.topics
        for part in topic.partitions
    ]
    code = 0
    try:
        door.broker.groups.delete_offsets(body.group_id, wanted)
    except StrandlogError as error:
        code = error.kafka_code
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": part.partition_index, "error_code": code}
                for part in topic.partitions
            ],
        }
        for topic in body.topics
    ]
    request.reply({"error_code": code, "topics": topics})
