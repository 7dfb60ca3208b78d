"""Handlers for OffsetCommit, OffsetFetch and OffsetDelete.

From version 10 on, OffsetCommit and OffsetFetch identify topics by id. A commit for an unknown id
fails with UNKNOWN_TOPIC_ID, so a consumer of a deleted topic cannot commit for a new topic of the
same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from strandlog.broker.access.permission import DELETE, DESCRIBE, GROUP, READ, TOPIC, Permission
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred, gather
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.limits.kafka import OFFSET_FETCH_MAX_ROWS
from strandlog.errors import (
    GroupAuthorizationError,
    GroupMetadataTooLargeError,
    StrandlogError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request

MANY_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10
COMMITTED_TOGETHER = 500
NO_TOPIC_ID = UUID(int=0)
NO_OFFSET = OffsetAndMetadata(-1, -1, "")


Found = Mapping[TopicPartition, OffsetAndMetadata | StrandlogError | None]


def _named(topic: Any) -> dict[str, Any]:
    """Return the topic's name and id as given in the request."""
    return {"name": getattr(topic, "name", ""), "topic_id": getattr(topic, "topic_id", None)}


def _name_of(broker: Broker, request: Request, topic: Any, needs: Permission) -> str:
    """Return the name of a topic that a request identifies by name or id."""
    name: str | None = getattr(topic, "name", None)
    if name is not None:
        return name
    return broker.topic(request.context, topic.topic_id or NO_TOPIC_ID, needs).name


# -- commit --------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_COMMIT,
    versions=(2, 10),
    requires=[READ.on(GROUP), READ.on(TOPIC)],
    summary="Commits the offsets of a group, each with a metadata string.",
    notes=(
        "`offset.metadata.max.bytes` limits the metadata. Topics are identified by id from version "
        "10."
    ),
)
def offset_commit(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading(broker.settings.group_request_max_items)
    needs = READ.on(TOPIC)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    rows: list[tuple[Any, list[dict[str, Any]]]] = []
    rows_of: dict[TopicPartition, list[dict[str, Any]]] = {}
    for topic in body.topics:
        found = [{"partition_index": part.partition_index} for part in topic.partitions]
        rows.append((topic, found))
        for part, row in zip(topic.partitions, found, strict=True):
            yield yield_control
            try:
                broker.check_access(request.context, READ.on(GROUP), body.group_id)
                name = _name_of(broker, request, topic, needs)
                tp = TopicPartition(name, part.partition_index)
            except StrandlogError as error:
                row["error_code"] = error.kafka_code
                continue
            rows_of.setdefault(tp, []).append(row)
            epoch = getattr(part, "committed_leader_epoch", -1)
            offsets[tp] = OffsetAndMetadata(
                part.committed_offset, epoch, part.committed_metadata or ""
            )
    commits = []
    for piece in pieces(offsets):
        commits.append(_commit(broker, request, body, piece))
        yield yield_control

    def reply(_: None) -> None:
        codes = _codes(commits, offsets)
        for tp, found in rows_of.items():
            for row in found:
                row["error_code"] = codes.get(tp, 0)
        listed = [{**_named(topic), "partitions": found} for topic, found in rows]
        request.reply_in_slices({"topics": listed})

    request.when_done(gather(commits), reply)


def _codes(
    commits: list[Deferred[dict[TopicPartition, StrandlogError]]],
    offsets: dict[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    """Return the code of each offset that failed; if a whole chunk failed, as with a disk error,
    all offsets get its code."""
    codes: dict[TopicPartition, int] = {}
    for commit in commits:
        if isinstance(error := commit.error, StrandlogError):
            return dict.fromkeys(offsets, error.kafka_code)
        codes |= {tp: each.kafka_code for tp, each in commit.result().items()}
    return codes


def pieces(
    offsets: dict[TopicPartition, OffsetAndMetadata],
) -> Iterator[dict[TopicPartition, OffsetAndMetadata]]:
    """Split offsets into chunks; each chunk is committed without a pause.

    Without offsets there is one empty chunk, so that the group is still checked.
    """
    items = list(offsets.items())
    for start in range(0, max(1, len(items)), COMMITTED_TOGETHER):
        yield dict(items[start : start + COMMITTED_TOGETHER])


def _commit(
    broker: Broker, request: Request, body: Any, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> Deferred[dict[TopicPartition, StrandlogError]]:
    """Commit offsets; the result maps each partition whose offset failed to its error."""
    commit = CommitRequest(
        group_id=body.group_id,
        offsets=offsets,
        member_id=body.member_id,
        generation=body.generation_id_or_member_epoch,
        group_instance_id=getattr(body, "group_instance_id", None),
    )
    return broker.commit_offsets(request.context, commit)


# -- fetch ---------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_FETCH,
    versions=(1, 10),
    requires=[DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)],
    summary="Returns the committed offsets of a group; from version 8, of several groups.",
    notes="Topics are identified by id from version 10.",
)
def offset_fetch(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading(broker.settings.group_request_max_items)
    require_stable = getattr(body, "require_stable", False)

    def fetched(group: str, topics: Any) -> Work[dict[str, Any]]:
        return _fetched(broker, request, group, topics, require_stable=require_stable)

    if request.version >= MANY_GROUPS_FROM:
        # Duplicate groups are dropped: repeating a group's offsets could make the response huge.
        rows: list[dict[str, Any]] = []
        left_rows = OFFSET_FETCH_MAX_ROWS
        for group in {group.group_id: group for group in body.groups}.values():
            if left_rows <= 0:
                code = GroupMetadataTooLargeError.kafka_code
                rows.append({"group_id": group.group_id, "error_code": code, "topics": []})
            else:
                rows.append((yield from fetched(group.group_id, group.topics)))
                left_rows -= sum(len(topic["partitions"]) for topic in rows[-1]["topics"])
            yield yield_control
        yield from request.replying({"groups": rows})
    else:
        found = yield from fetched(body.group_id, body.topics)
        yield from request.replying(found)


def _fetched(
    broker: Broker, request: Request, group: str, topics: Any, *, require_stable: bool
) -> Work[dict[str, Any]]:
    fetch = partial(broker.fetch_offsets, request.context, group, require_stable=require_stable)
    listed: list[dict[str, Any]] = []
    try:
        broker.check_access(request.context, DESCRIBE.on(GROUP), group)
        if topics is None:
            listed = yield from _all_offsets(broker, request, fetch())
        else:
            for topic in topics:
                listed.append((yield from _offsets_in(broker, request, topic, fetch)))
    except StrandlogError as error:
        return {"group_id": group, "error_code": error.kafka_code, "topics": []}
    return {"group_id": group, "error_code": 0, "topics": listed}


def _all_offsets(broker: Broker, request: Request, found: Found) -> Work[list[dict[str, Any]]]:
    """Build the rows of all offsets of a group; from version 10 on, without topics that do not
    exist, because they have no id."""
    context, by_id = request.context, request.version >= TOPIC_IDS_FROM
    rows: dict[str, list[dict[str, Any]]] = {}
    topics: list[dict[str, Any]] = []
    for tp, value in found.items():
        partitions = rows.get(tp.topic)
        if partitions is None:
            partitions = rows[tp.topic] = []
            if not by_id:
                topics.append({"name": tp.topic, "topic_id": None, "partitions": partitions})
            elif broker.has_topic(context, tp.topic):
                topic_id = broker.topic(context, tp.topic).uuid
                topics.append({"name": tp.topic, "topic_id": topic_id, "partitions": partitions})
        partitions.append(_offset_row(tp.partition, value))
        yield yield_control
    return topics


def _offsets_in(
    broker: Broker, request: Request, topic: Any, fetch: Callable[[list[TopicPartition]], Found]
) -> Work[dict[str, Any]]:
    error: StrandlogError | None = None
    found: Found = {}
    name = ""
    try:
        name = _name_of(broker, request, topic, DESCRIBE.on(TOPIC))
    except StrandlogError as raised:
        error = raised
    else:
        found = fetch([TopicPartition(name, number) for number in topic.partition_indexes])
    rows = []
    for number in topic.partition_indexes:
        rows.append(_offset_row(number, error or found.get(TopicPartition(name, number))))
        yield yield_control
    return {**_named(topic), "partitions": rows}


def _offset_row(number: int, value: OffsetAndMetadata | StrandlogError | None) -> dict[str, Any]:
    found = value if isinstance(value, OffsetAndMetadata) else NO_OFFSET
    return {
        "partition_index": number,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": value.kafka_code if isinstance(value, StrandlogError) else 0,
    }


# -- delete --------------------------------------------------------------------------------------


@kafka_api(
    api.OFFSET_DELETE,
    versions=(0, 0),
    requires=[DELETE.on(GROUP), READ.on(TOPIC)],
    summary="Deletes committed offsets of a group, except for topics that it is subscribed to.",
)
def offset_delete(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading(broker.settings.group_request_max_items)
    codes: dict[tuple[str, int], int] = {}
    wanted: list[TopicPartition] = []
    if not broker.has_access(request.context, DELETE.on(GROUP), body.group_id):
        request.reply({"error_code": GroupAuthorizationError.kafka_code, "topics": []})
        return
    for topic in body.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            yield yield_control
            try:
                broker.partition_state(request.context, *tp, READ.on(TOPIC))
                wanted.append(tp)
            except StrandlogError as error:
                codes[tp] = error.kafka_code

    def reply(errors: dict[TopicPartition, StrandlogError]) -> None:
        found = codes | {tp: error.kafka_code for tp, error in errors.items()}
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "error_code": found.get((topic.name, number), 0)}
                    for number in (part.partition_index for part in topic.partitions)
                ],
            }
            for topic in body.topics
        ]
        request.reply_in_slices({"error_code": 0, "topics": topics})

    request.when_done(
        broker.delete_offsets(request.context, body.group_id, wanted),
        reply,
        lambda error: request.reply({"error_code": error.kafka_code, "topics": []}),
    )
