"""Where groups stand: OffsetCommit, OffsetFetch, OffsetDelete.

From version 10 on topics are named by their ids; a commit for an id that no topic has is refused
(UNKNOWN_TOPIC_ID), so a consumer of a deleted topic cannot move the offsets of its namesake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandlog.broker.groups.requests import CommitRequest
from strandlog.errors import (
    GroupMetadataTooLargeError,
    StorageError,
    StrandlogError,
    UnstableOffsetError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import DELETE, DESCRIBE, GROUP, READ, TOPIC, kafka_api
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.server.kafka.request import Request
from strandlog.storage.folder.identity import uuid_of
from strandlog.storage.work import Work, yield_control

MANY_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10
COMMITTED_TOGETHER = 500
FETCHED_MAX_ROWS = 100_000  # then further groups of the same OffsetFetch are refused


def _named(topic: Any) -> dict[str, Any]:
    """A topic as it was named, for the answer."""
    return {"name": getattr(topic, "name", ""), "topic_id": getattr(topic, "topic_id", None)}


def _name_of(door: KafkaDoor, topic: Any) -> str:
    """The name of a topic that may have been named by its id."""
    name: str | None = getattr(topic, "name", None)
    return door.broker.catalog.topic_with_id(topic.topic_id).name if name is None else name


# -- commit --------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_COMMIT,
    versions=(2, 10),
    requires=[READ.on(GROUP), READ.on(TOPIC)],
    summary="Commits the offsets of a group, each with a metadata string.",
    notes="`offset.metadata.max.bytes` limits the metadata. Topic ids from version 10.",
)
def offset_commit(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading(door.broker.settings.group_request_max_items)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    rows: list[tuple[Any, list[dict[str, Any]]]] = []
    places: dict[TopicPartition, list[dict[str, Any]]] = {}
    for topic in body.topics:
        answers = [{"partition_index": part.partition_index} for part in topic.partitions]
        rows.append((topic, answers))
        for part, row in zip(topic.partitions, answers, strict=True):
            yield yield_control
            try:
                tp = TopicPartition(_name_of(door, topic), part.partition_index)
                door.broker.catalog.log(*tp)
            except StrandlogError as error:
                row["error_code"] = error.kafka_code
                continue
            places.setdefault(tp, []).append(row)
            epoch = getattr(part, "committed_leader_epoch", -1)
            offsets[tp] = OffsetAndMetadata(
                part.committed_offset, epoch, part.committed_metadata or ""
            )
    for piece in pieces(offsets):
        _commit(door, body, piece, places)
        yield yield_control

    def reply(failure: StorageError | None) -> None:
        for _, answers in rows:
            for row in answers:
                row["error_code"] = failure.kafka_code if failure else row.get("error_code", 0)
        listed = [{**_named(topic), "partitions": answers} for topic, answers in rows]
        door.in_slices(request, request.replying({"topics": listed}))

    door.core.when_group_is_durable(body.group_id, reply)


def pieces(
    offsets: dict[TopicPartition, OffsetAndMetadata],
) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """Offsets that are committed without a pause; one piece if there are none, for the errors."""
    items = list(offsets.items())
    for start in range(0, max(1, len(items)), COMMITTED_TOGETHER):
        yield dict(items[start : start + COMMITTED_TOGETHER])


def _commit(
    door: KafkaDoor,
    body: Any,
    offsets: dict[TopicPartition, OffsetAndMetadata],
    places: dict[TopicPartition, list[dict[str, Any]]],
) -> None:
    """Commit what may be; write the codes of what may not into its rows."""
    commit = CommitRequest(
        group_id=body.group_id,
        offsets=offsets,
        member_id=body.member_id,
        generation=body.generation_id_or_member_epoch,
        group_instance_id=getattr(body, "group_instance_id", None),
    )
    try:
        refused = door.broker.group_coordinator.try_commit_offsets(commit)
    except StrandlogError as error:
        refused = dict.fromkeys(offsets, error)
    for tp, reason in refused.items():
        for row in places[tp]:
            row["error_code"] = reason.kafka_code


# -- fetch ---------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_FETCH,
    versions=(1, 10),
    requires=[DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)],
    summary="Returns the committed offsets of a group, or of several groups from version 8.",
    notes="Topic ids from version 10.",
)
def offset_fetch(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading(door.broker.settings.group_request_max_items)
    by_id = request.version >= TOPIC_IDS_FROM
    must_be_stable = getattr(body, "require_stable", False)

    def fetched(group: str, topics: Any) -> dict[str, Any]:
        found = _fetched(door, group, topics, by_id)
        if must_be_stable:
            _hide_unstable(door, group, found["topics"])
        return found

    if request.version >= MANY_GROUPS_FROM:
        # Each group once: all offsets of one group, asked for many times, would be a huge reply.
        rows: list[dict[str, Any]] = []
        left_rows = FETCHED_MAX_ROWS
        for group in {group.group_id: group for group in body.groups}.values():
            if left_rows <= 0:
                code = GroupMetadataTooLargeError.kafka_code
                rows.append({"group_id": group.group_id, "error_code": code, "topics": []})
            else:
                rows.append(fetched(group.group_id, group.topics))
                left_rows -= sum(len(topic["partitions"]) for topic in rows[-1]["topics"])
            yield yield_control
        yield from request.replying({"groups": rows})
    else:
        yield from request.replying(fetched(body.group_id, body.topics))


def _fetched(door: KafkaDoor, group: str, topics: Any, by_id: bool) -> dict[str, Any]:
    try:
        listed = (
            _all_offsets(door, group, by_id)
            if topics is None
            else [_offsets_in(door, group, topic) for topic in topics]
        )
    except StrandlogError as error:
        return {"group_id": group, "error_code": error.kafka_code, "topics": []}
    return {"group_id": group, "error_code": 0, "topics": listed}


def _hide_unstable(door: KafkaDoor, group: str, topics: list[dict[str, Any]]) -> None:
    """An offset that an open transaction is about to move is asked for again later."""
    for topic in topics:
        name = topic["name"] or _name_by_id(door, topic["topic_id"])
        for row in topic["partitions"]:
            tp = TopicPartition(name, row["partition_index"])
            if door.broker.group_coordinator.has_pending_commit(group, tp):
                row.update(_offset_row(tp.partition, None, UnstableOffsetError.kafka_code))


def _name_by_id(door: KafkaDoor, topic_id: Any) -> str:
    try:
        return door.broker.catalog.topic_with_id(topic_id).name
    except StrandlogError:
        return ""


def _all_offsets(door: KafkaDoor, group: str, by_id: bool) -> list[dict[str, Any]]:
    catalog = door.broker.catalog
    rows: dict[str, list[dict[str, Any]]] = {}
    for tp, value in door.broker.group_coordinator.fetch_offsets(group).items():
        if not by_id or tp.topic in catalog:
            rows.setdefault(tp.topic, []).append(_offset_row(tp.partition, value))
    return [
        {
            "name": name,
            "topic_id": uuid_of(catalog.topic(name).topic_id) if by_id else None,
            "partitions": partitions,
        }
        for name, partitions in rows.items()
    ]


def _offsets_in(door: KafkaDoor, group: str, topic: Any) -> dict[str, Any]:
    code = 0
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    name = ""
    try:
        name = _name_of(door, topic)
    except StrandlogError as error:
        code = error.kafka_code
    else:
        wanted = [TopicPartition(name, number) for number in topic.partition_indexes]
        found = door.broker.group_coordinator.fetch_offsets(group, wanted)
    rows = [
        _offset_row(number, found.get(TopicPartition(name, number)), code)
        for number in topic.partition_indexes
    ]
    return {**_named(topic), "partitions": rows}


def _offset_row(number: int, value: OffsetAndMetadata | None, code: int = 0) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": -1 if value is None else value.offset,
        "committed_leader_epoch": -1 if value is None else value.leader_epoch,
        "metadata": "" if value is None else value.metadata,
        "error_code": code,
    }


# -- delete --------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_DELETE,
    versions=(0, 0),
    requires=[DELETE.on(GROUP), READ.on(TOPIC)],
    summary="Deletes committed offsets of a group, except in topics that it is subscribed to.",
)
def offset_delete(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading(door.broker.settings.group_request_max_items)
    codes: dict[tuple[str, int], int] = {}
    wanted: list[TopicPartition] = []
    for topic in body.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            yield yield_control
            try:
                door.broker.catalog.log(*tp)
                wanted.append(tp)
            except StrandlogError as error:
                codes[tp] = error.kafka_code
    try:
        refused = door.broker.group_coordinator.delete_offsets(body.group_id, wanted)
    except StrandlogError as error:
        request.reply({"error_code": error.kafka_code, "topics": []})
        return
    codes |= {tp: error.kafka_code for tp, error in refused.items()}

    def reply(failure: StorageError | None) -> None:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "error_code": codes.get((topic.name, number), 0)}
                    for number in (part.partition_index for part in topic.partitions)
                ],
            }
            for topic in body.topics
        ]
        code = failure.kafka_code if failure else 0
        door.in_slices(request, request.replying({"error_code": code, "topics": topics}))

    door.core.when_group_is_durable(body.group_id, reply)
