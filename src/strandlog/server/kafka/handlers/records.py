"""Records in and out: Produce, Fetch, ListOffsets, DeleteRecords."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from strandlog.broker.deferred import Deferred
from strandlog.broker.fetch import (
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResult,
)
from strandlog.broker.maintenance import RETENTION
from strandlog.broker.produce import NOTHING_CHECKED, Checked, ProduceResult
from strandlog.broker.topics.topic import forbid_internal
from strandlog.errors import (
    InvalidRecordError,
    InvalidRequestError,
    PolicyViolationError,
    StorageError,
    StrandlogError,
    TopicNotFoundError,
    UnknownTopicIdError,
    UnsupportedVersionError,
)
from strandlog.model import Acks, IsolationLevel, PartitionRecords, TopicRef
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.produce_fetch_server import (
    FETCH_TOPIC_IDS_FROM,
    FetchedPartition,
    ProduceAnswer,
    ProduceRequest,
    fetch_response,
    fetch_response_steps,
    parse_produce_steps,
    parse_single_produce,
    produce_response,
    produce_response_steps,
)
from strandlog.server.kafka.api import (
    DELETE,
    DESCRIBE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    kafka_api,
)
from strandlog.server.kafka.handlers.list_offsets import check_leader_epoch, existing_logs
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.server.kafka.request import Asked, Request, answered, asked_once, breathing
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import finding_latest, finding_timestamp
from strandlog.storage.work import Work, yield_control

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
# Times that are none, and the version of ListOffsets that knows them first.
SENTINELS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
AT_THE_START = (EARLIEST, EARLIEST_LOCAL)  # what is written behind it changes nothing
EVERYTHING = -1
# A Fetch is answered after this time at the latest: a client that hung up while its connection was
# not read is noticed when it is written to. A consumer asks again.
LONGEST_POLL_MS = 60_000
FEW_PARTITIONS = 16  # of a Produce request: answered without a pause
NO_SESSION, NEW_SESSION = -1, 0
FULL_FETCHES = (NO_SESSION, NEW_SESSION)
FETCH_SESSION_NOT_FOUND = 70
NO_TOPIC_ID = UUID(int=0)


# -- produce -------------------------------------------------------------------------------------


@kafka_api(
    api.PRODUCE,
    versions=(3, 13),
    advertised_from=0,
    requires=[WRITE.on(TOPIC), WRITE.on(TRANSACTIONAL_ID)],
    summary="Appends record batches; with acks=all the response follows the fsync.",
    notes=(
        "Advertised from version 0, although 0 to 2 fail: older librdkafka looks for version "
        "0 and silently disables compression without it (KAFKA-18659). Topic ids from version"
        " 13."
    ),
)
def produce(door: KafkaDoor, request: Request) -> Work[None] | None:
    header = request.header
    body = parse_single_produce(header.version, request.frame, header.body_position)
    if body is None:
        return _produce_many(door, request)
    broker, context = door.broker, request.connection.context
    partitions = body.partitions
    if (checks := broker.record_checks(context, partitions, request.is_abandoned)) is not None:
        _check_first(door, request, body, checks)
    else:
        _reply_when_done(door, request, body, broker.produce(context, partitions, body.acks))
    return None


def _produce_many(door: KafkaDoor, request: Request) -> Work[None]:
    """A request that may name many partitions."""
    header = request.header
    body = yield from breathing(
        parse_produce_steps(
            header.version, request.frame, header.body_position, request.max_elements
        )
    )
    context = request.connection.context
    checks = door.broker.record_checks(context, body.partitions, request.is_abandoned)
    if checks is not None:
        _check_first(door, request, body, checks)
    else:
        yield from _append(door, request, body, NOTHING_CHECKED)


def _check_first(
    door: KafkaDoor, request: Request, body: ProduceRequest, checks: Work[Checked]
) -> None:
    """Decode large batches outside the event loop, then append."""
    # A later request of this client must not be appended before this one.
    request.connection.hold_line()

    def append(checked: Checked) -> None:
        request.connection.release_line()  # the next request begins after this call
        if not request.is_abandoned():
            door.in_slices(request, _append(door, request, body, checked))

    door.in_decoder(request, checks, append)


def _append(
    door: KafkaDoor, request: Request, body: ProduceRequest, checked: Checked
) -> Work[None]:
    context = request.connection.context
    result = yield from door.broker.produce_work(context, body.partitions, body.acks, checked)
    _reply_when_done(door, request, body, result)


def _reply_when_done(
    door: KafkaDoor,
    request: Request,
    body: ProduceRequest,
    result: list[ProduceResult] | Deferred[list[ProduceResult]],
) -> None:
    if isinstance(result, Deferred):
        result.on_done(lambda done: _reply_produce(door, request, body, done.result()))
    else:
        _reply_produce(door, request, body, result)


def _reply_produce(
    door: KafkaDoor, request: Request, body: ProduceRequest, results: list[ProduceResult]
) -> None:
    if body.acks != Acks.NONE:
        rows = [_row(part, each) for part, each in zip(body.partitions, results, strict=True)]
        topics = _by_topic(body.partitions, rows)
        if len(rows) <= FEW_PARTITIONS:
            request.reply_buffers([produce_response(request.header.version, topics)])
        else:
            door.in_slices(request, _reply_in_slices(request, topics))
    elif any(isinstance(each, StrandlogError) for each in results):
        request.slot.fail()  # acks=0 has no response that could carry the error
    else:
        request.slot.fill(None)


def _reply_in_slices(
    request: Request, topics: list[tuple[TopicRef, list[ProduceAnswer]]]
) -> Work[None]:
    response = yield from breathing(produce_response_steps(request.header.version, topics))
    request.reply_buffers([response])


def _row(part: PartitionRecords, result: ProduceResult) -> ProduceAnswer:
    if isinstance(result, StrandlogError):
        bad_records = result.records if isinstance(result, InvalidRecordError) else ()
        return ProduceAnswer(
            part.partition,
            result.kafka_code,
            error_message=str(result),
            bad_records=bad_records,
        )
    return ProduceAnswer(
        part.partition, 0, result.base_offset, result.append_time_ms, result.log_start_offset
    )


def _by_topic(
    parts: Sequence[PartitionRecords], answers: list[ProduceAnswer]
) -> list[tuple[TopicRef, list[ProduceAnswer]]]:
    if len(parts) == 1:
        return [(parts[0].topic, answers)]
    by_topic: dict[TopicRef, list[ProduceAnswer]] = {}
    for part, answer in zip(parts, answers, strict=True):
        by_topic.setdefault(part.topic, []).append(answer)
    return list(by_topic.items())


def _log(door: KafkaDoor, topic: TopicRef, partition: int) -> PartitionLog:
    if isinstance(topic, UUID):
        topic = door.broker.catalog.topic_with_id(topic).name
    return door.broker.catalog.log(topic, partition)


# -- fetch ---------------------------------------------------------------------------------------


FetchKey = tuple[TopicRef, int]


@kafka_api(
    api.FETCH,
    versions=(4, 18),
    requires=[READ.on(TOPIC)],
    summary="Reads record batches, with long polling and `read_committed`.",
    notes=(
        "Fetch sessions are declined (session id 0), as the protocol allows. Topic ids from "
        "version 13."
    ),
)
def fetch(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    if getattr(body, "session_epoch", NO_SESSION) not in FULL_FETCHES:
        # It goes on with a session, of another broker at this address: most partitions are unsaid.
        request.reply_buffers(fetch_response(request.version, [], FETCH_SESSION_NOT_FOUND))
        return
    asked = yield from _fetch_rows(request, body.topics)
    broker, context = door.broker, request.connection.context
    is_committed = body.isolation_level == IsolationLevel.READ_COMMITTED
    found = broker.fetch(
        context,
        FetchRequest(
            list(asked.values()),
            body.min_bytes,
            min(body.max_bytes, broker.settings.fetch_max_bytes),
            broker.clock.monotonic_ms() + min(_ms(body.max_wait), LONGEST_POLL_MS),
            IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
        ),
    )
    if not isinstance(found, Deferred):
        yield from _reply_fetch(request, found)
        return
    delayed = found
    # One fetch waits per connection, as with Kafka: its response has to be the next one anyway.
    request.connection.hold_line()
    if not delayed.is_done:
        request.slot.leave_gate()  # it may wait long; the broker bounds what waits
        request.slot.on_abandoned = lambda: broker.cancel_fetch(delayed)

    def reply(done: Deferred[FetchResult]) -> None:
        request.connection.release_line()  # the next request begins after this call
        door.in_slices(request, _reply_fetch(request, done.result()))

    delayed.on_done(reply)


def _reply_fetch(request: Request, found: FetchResult) -> Work[None]:
    topics: list[tuple[TopicRef, list[FetchedPartition]]] = []
    for data in found:
        if not topics or topics[-1][0] != data.topic:
            topics.append((data.topic, []))
        topics[-1][1].append(_fetched(data))
        yield yield_control
    buffers = yield from breathing(fetch_response_steps(request.version, topics))
    request.reply_buffers(buffers)


def _fetch_rows(request: Request, topics: Any) -> Work[dict[FetchKey, FetchPartition]]:
    """What is asked for: each partition once, by its last row, as Kafka does."""
    rows: dict[FetchKey, FetchPartition] = {}
    by_id = request.version >= FETCH_TOPIC_IDS_FROM
    for topic in topics:
        ref: TopicRef = (topic.topic_id or NO_TOPIC_ID) if by_id else topic.topic
        yield yield_control
        for row in topic.partitions:
            rows[ref, row.partition] = FetchPartition(
                ref,
                row.partition,
                row.fetch_offset,
                row.partition_max_bytes,
                getattr(row, "current_leader_epoch", -1),
            )
            yield yield_control
    return rows


def _fetched(data: FetchPartitionData) -> FetchedPartition:
    return FetchedPartition(
        data.partition,
        0 if data.error is None else _fetch_code(data.topic, data.error),
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        data.aborted,
        [data.data] if len(data.data) else [],
    )


def _fetch_code(ref: TopicRef, error: StrandlogError) -> int:
    if isinstance(ref, UUID) and isinstance(error, TopicNotFoundError) and error.partition is None:
        return UnknownTopicIdError.kafka_code  # it was deleted while the fetch waited
    return error.kafka_code


def _ms(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)


# -- offsets -------------------------------------------------------------------------------------


@kafka_api(
    api.LIST_OFFSETS,
    versions=(1, 11),
    requires=[DESCRIBE.on(TOPIC)],
    summary="Finds offsets: by time (exact to the record), earliest, latest, largest timestamp.",
    notes="The special timestamps of tiered storage are answered as by a broker without it.",
)
def list_offsets(door: KafkaDoor, request: Request) -> Work[None]:
    """Where records are; those that were acknowledged before are found, with acks=1 as well."""
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics, lambda topic: topic.partitions, lambda part: int(part.partition_index)
    )
    looked_at = {
        name: {number: part for number, part in rows.items() if part.timestamp not in AT_THE_START}
        for name, rows in asked.topics.items()
    }
    logs = yield from existing_logs(door, Asked(looked_at, set()))
    committed = getattr(body, "isolation_level", 0) == IsolationLevel.READ_COMMITTED

    def answer() -> None:
        steps = _listing_offsets(door, request, asked, committed)
        door.in_decoder(
            request,
            steps,
            lambda topics: door.in_slices(request, request.replying({"topics": topics})),
        )

    door.when_visible(request, logs, answer)


def _listing_offsets(
    door: KafkaDoor, request: Request, asked: Asked, committed: bool
) -> Work[list[dict[str, Any]]]:
    """The answers, in steps: a lookup by time may have to decode a large batch."""
    topics = []
    for name, rows in asked.topics.items():
        partitions = []
        for number, part in rows.items():
            yield yield_control
            found: dict[str, Any]
            try:
                if (name, number) in asked.repeated:
                    raise InvalidRequestError(f"{name}-{number} is named more than once")
                found = yield from _offset_at(door, request, name, part, committed)
            except StrandlogError as error:
                found = {"error_code": error.kafka_code, "timestamp": -1, "offset": -1}
            partitions.append({"partition_index": number, **found})
        topics.append({"name": name, "partitions": partitions})
    return topics


def _offset_at(
    door: KafkaDoor, request: Request, topic: str, part: Any, committed: bool
) -> Work[dict[str, Any]]:
    log = _log(door, topic, part.partition_index)
    _check_sentinel(part.timestamp, request.version)
    check_leader_epoch(getattr(part, "current_leader_epoch", -1))
    end = log.last_stable_offset if committed else log.high_watermark
    timestamp, offset = yield from _looking_up(log, part.timestamp, end)
    return {
        "error_code": 0,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": 0 if offset >= 0 else -1,
    }


def _check_sentinel(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < SENTINELS.get(timestamp, version + 1):
        raise UnsupportedVersionError(f"v{version} of ListOffsets has no special time {timestamp}")


def _looking_up(log: PartitionLog, timestamp: int, end: int) -> Work[tuple[int, int]]:
    """(timestamp, offset) of a time, for a reader that may read up to `end`."""
    if timestamp == LATEST:
        return -1, end
    if timestamp in (EARLIEST, EARLIEST_LOCAL):  # all there is lies here
        return -1, log.log_start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # nothing lies elsewhere
        return -1, -1
    is_latest = timestamp == MAX_TIMESTAMP
    found = yield from finding_latest(log) if is_latest else finding_timestamp(log, timestamp)
    if found is None or found.offset >= end:
        return -1, -1
    return found.timestamp, found.offset


@kafka_api(
    api.DELETE_RECORDS,
    versions=(0, 2),
    requires=[DELETE.on(TOPIC)],
    summary="Deletes the records before an offset.",
)
def delete_records(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics, lambda topic: topic.partitions, lambda part: int(part.partition_index)
    )
    logs = yield from existing_logs(door, asked)
    answer = partial(_delete_records, door, request, asked)
    door.when_visible(request, logs, lambda: door.in_slices(request, answer()))


def _delete_records(door: KafkaDoor, request: Request, asked: Asked) -> Work[None]:
    def answer(topic: str, number: int, part: Any) -> dict[str, Any]:
        try:
            log = _log(door, topic, number)
            forbid_internal(topic)
            if log.settings.compacts and not log.settings.deletes:
                raise PolicyViolationError(f"{log.tp} is compacted only; nothing is deleted")
            log.raise_log_start(log.high_watermark if part.offset == EVERYTHING else part.offset)
        except StrandlogError as error:
            return {"low_watermark": -1, "error_code": error.kafka_code}
        return {"low_watermark": log.log_start_offset, "error_code": 0}

    topics = yield from answered(asked, answer, "partition_index", "name")
    door.broker.maintenance.schedule_soon(RETENTION)  # removes the files
    saving = _saving_log_starts(door, topics)
    replying = partial(request.replying, {"topics": topics})
    door.in_steps(request, saving, lambda _: door.in_slices(request, replying()))


def _saving_log_starts(door: KafkaDoor, topics: list[dict[str, Any]]) -> Work[None]:
    """Make the new log start offsets durable; rows whose deletion could be undone say so."""
    try:
        yield from door.broker.log_dir.writing_log_starts()
    except StorageError as error:
        for row in [row for topic in topics for row in topic["partitions"]]:
            if not row["error_code"]:
                row |= {"low_watermark": -1, "error_code": error.kafka_code}
