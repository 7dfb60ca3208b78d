"""Records in and out: Produce, Fetch, ListOffsets, DeleteRecords."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID

from strandlog.broker.deferred import Deferred
from strandlog.broker.durability import BULK_PARTITIONS
from strandlog.broker.fetch import FetchAnswer, FetchPart, FetchWish, refused_fetch
from strandlog.broker.maintenance import RETENTION
from strandlog.broker.topics.topic import forbid_internal
from strandlog.errors import (
    InvalidAcksError,
    InvalidRecordError,
    InvalidRequestError,
    PolicyViolationError,
    StorageError,
    StrandlogError,
    TopicNotFoundError,
    UnknownTopicIdError,
    UnsupportedVersionError,
)
from strandlog.model import IsolationLevel, ProducerIdentity, TopicPartition
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.produce_fetch_server import (
    FETCH_TOPIC_IDS_FROM,
    FetchedPartition,
    ProduceAnswer,
    ProducedRecords,
    ProduceRequest,
    TopicRef,
    fetch_response,
    fetch_response_steps,
    parse_produce_steps,
    parse_single_produce,
    produce_response,
    produce_response_steps,
)
from strandlog.record.batch_header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    read_header,
)
from strandlog.server.decoding import SlowPart, Verdict, Verdicts, checking, parts_to_decode
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
from strandlog.storage.files import Buffer
from strandlog.storage.partition.append_checks import check_crc, split_batches
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import finding_latest, finding_timestamp
from strandlog.storage.work import Work, yield_control

ATTRIBUTES_LOW_BYTE = ATTRIBUTES_POSITION + 1
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
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
        return _producing(door, request)
    slow_parts = parts_to_decode([_target(door, part) for part in body.partitions])
    if slow_parts:
        _check_first(door, request, body, slow_parts)
    else:
        for _ in _appending(door, request, body, {}):
            pass
    return None


def _producing(door: KafkaDoor, request: Request) -> Work[None]:
    """A request that may name many partitions."""
    header = request.header
    body = yield from breathing(
        parse_produce_steps(
            header.version, request.frame, header.body_position, request.max_elements
        )
    )
    targets = []
    for part in body.partitions:
        targets.append(_target(door, part))
        yield yield_control
    slow_parts = parts_to_decode(targets)
    if slow_parts:
        _check_first(door, request, body, slow_parts)
    else:
        yield from _appending(door, request, body, {})


def _check_first(
    door: KafkaDoor, request: Request, body: ProduceRequest, slow_parts: list[SlowPart]
) -> None:
    """Decode large batches outside the event loop, then append."""
    # A later request of this client must not be appended before this one.
    request.connection.hold_line()
    abandoned = Event()
    request.slot.on_abandoned = abandoned.set

    def checked(verdicts: Verdicts) -> None:
        request.connection.release_line()  # the next one begins after this call
        if not abandoned.is_set():
            door.in_slices(request, _appending(door, request, body, verdicts))

    door.in_decoder(request, checking(door.broker, slow_parts, abandoned.is_set), checked)


def _target(door: KafkaDoor, part: ProducedRecords) -> tuple[PartitionLog, Buffer] | None:
    """Where the records of a partition go, if that can be said."""
    records = part.records or b""
    if _has_several_batches(records):
        return None  # the append refuses them
    try:
        return _log(door, part.topic, part.partition), records
    except StrandlogError:
        return None


def _appending(
    door: KafkaDoor, request: Request, body: ProduceRequest, verdicts: Verdicts
) -> Work[None]:
    if body.acks == ACKS_ALL and door.broker.settings.fsyncs:
        yield from _DurableProduction(door, request, body).appending(verdicts)
        return
    answers = []
    for number, part in enumerate(body.partitions):
        answers.append(_append_or_refuse(door, body, part, verdicts.get(number)))
        yield yield_control
    _answer(door, request, body, answers)


class _DurableProduction:
    """A Produce request with acks=all: answered when every partition of it is on disk."""

    __slots__ = ("_answers", "_body", "_door", "_request", "_waiting")

    def __init__(self, door: KafkaDoor, request: Request, body: ProduceRequest) -> None:
        self._door = door
        self._request = request
        self._body = body
        self._answers: list[ProduceAnswer] = []
        self._waiting = 1  # for `appending`: there is no answer before all were appended

    def appending(self, verdicts: Verdicts) -> Work[None]:
        door = self._door
        is_bulk = len(self._body.partitions) > BULK_PARTITIONS
        for number, part in enumerate(self._body.partitions):
            answer = _append_or_refuse(door, self._body, part, verdicts.get(number))
            self._answers.append(answer)
            if not answer.error_code:
                self._waiting += 1
                log = _log(door, part.topic, part.partition)
                told = partial(self._told, number)
                end_offset = log.log_end_offset
                door.core.durability.when_durable(log, end_offset, told, is_bulk=is_bulk)
            yield yield_control
        self._told(0, None)

    def _told(self, number: int, error: StorageError | None) -> None:
        """One of those that were waited for is done."""
        self._waiting -= 1
        if error is not None:
            self._answers[number] = _refusal(self._body.partitions[number], error)
        if not self._waiting:
            _answer(self._door, self._request, self._body, self._answers)


def _append_or_refuse(
    door: KafkaDoor, body: ProduceRequest, part: ProducedRecords, verdict: Verdict | None
) -> ProduceAnswer:
    try:
        if body.acks not in (ACKS_LEADER, ACKS_ALL, ACKS_NONE):
            raise InvalidAcksError(f"acks must be 0, 1 or -1, got {body.acks}")
        if verdict is not None and verdict.error is not None:
            raise verdict.error
        log = _log(door, part.topic, part.partition)
        return _append(door, log, part, records_checked=verdict is not None)
    except StrandlogError as error:
        return _refusal(part, error)


def _append(
    door: KafkaDoor, log: PartitionLog, part: ProducedRecords, *, records_checked: bool
) -> ProduceAnswer:
    if part.records is None or not len(part.records):
        raise InvalidRecordError("a Produce request without records")
    if _has_several_batches(part.records):
        raise InvalidRecordError("a Produce request carries exactly one batch for a partition")
    _check_transaction(door, log, part.records)
    result = door.core.append(log, part.records, records_checked=records_checked)
    return ProduceAnswer(
        part.partition, 0, result.base_offset, result.append_time_ms, log.log_start_offset
    )


def _has_several_batches(records: Buffer) -> bool:
    """Whether more follows behind the first batch. Kafka refuses that, too: millions of batches
    that are nearly empty fit into one request."""
    if len(records) <= HEADER_SIZE or records[MAGIC_POSITION] != MAGIC:
        return False
    length = int.from_bytes(records[BATCH_LENGTH_POSITION:LOG_OVERHEAD])
    return HEADER_SIZE <= LOG_OVERHEAD + length < len(records)


def _answer(
    door: KafkaDoor, request: Request, body: ProduceRequest, answers: list[ProduceAnswer]
) -> None:
    if body.acks != ACKS_NONE:
        topics = _by_topic(body.partitions, answers)
        if len(answers) <= FEW_PARTITIONS:
            request.reply_buffers([produce_response(request.header.version, topics)])
        else:
            door.in_slices(request, _answering(request, topics))
    elif any(answer.error_code for answer in answers):
        request.slot.fail()  # there is no reply that could say so
    else:
        request.slot.fill(None)


def _answering(request: Request, topics: list[tuple[TopicRef, list[ProduceAnswer]]]) -> Work[None]:
    response = yield from breathing(produce_response_steps(request.header.version, topics))
    request.reply_buffers([response])


def _check_transaction(door: KafkaDoor, log: PartitionLog, records: Buffer) -> None:
    """A transactional batch needs an open transaction that its partition belongs to."""
    if len(records) >= HEADER_SIZE and records[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL_BIT:
        header = read_header(records)
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        try:
            door.core.transactions.check_write(producer, log.tp)
        except StrandlogError:
            # Of damaged bytes nothing can be believed, and the producer had better send them again.
            for each, batch in split_batches(records):
                check_crc(each, batch)
            raise


def _refusal(part: ProducedRecords, error: StrandlogError) -> ProduceAnswer:
    bad_records = error.records if isinstance(error, InvalidRecordError) else ()
    return ProduceAnswer(
        part.partition, error.kafka_code, error_message=str(error), bad_records=bad_records
    )


def _by_topic(
    parts: list[ProducedRecords], answers: list[ProduceAnswer]
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
    asked = yield from _fetch_parts(door, request, body.topics)
    parts = [part for part in asked.values() if part.error is None]
    _count_fetched(door, request, parts)
    now_ms = door.broker.clock.monotonic_ms()
    wish = FetchWish(
        parts,
        body.min_bytes if len(parts) == len(asked) else 0,  # an error is answered at once
        min(body.max_bytes, door.broker.settings.fetch_max_bytes),
        now_ms + min(_ms(body.max_wait), LONGEST_POLL_MS),
        body.isolation_level == IsolationLevel.READ_COMMITTED,
    )
    pending = door.core.fetches.fetch(wish, now_ms)
    # One fetch waits per connection, as with Kafka: its reply has to be the next one anyway.
    request.connection.hold_line()
    if not pending.is_done:
        request.slot.leave_gate()  # it may wait long; `Fetches` bounds what waits
        request.slot.on_abandoned = lambda: door.core.fetches.cancel(pending)

    def reply(done: Deferred[list[FetchAnswer]]) -> None:
        request.connection.release_line()  # the next request begins after this call
        door.in_slices(request, _answer_fetch(request, asked, done.result()))

    pending.on_done(reply)


def _count_fetched(door: KafkaDoor, request: Request, parts: list[FetchPart]) -> None:
    """To count the records of an answer each of its batches had to be looked at; the next fetch
    shows how far the consumer got."""
    answered_at = request.connection.answered_at
    for part in parts:
        if part.log is not None and part.log in answered_at:
            moved = min(part.offset, part.log.high_watermark) - answered_at.pop(part.log)
            door.core.metrics.fetched_records += max(0, moved)


def _answer_fetch(
    request: Request, asked: dict[FetchKey, FetchPart], answers: list[FetchAnswer]
) -> Work[None]:
    answered_at = request.connection.answered_at
    following = iter(answers)
    topics: list[tuple[TopicRef, list[FetchedPartition]]] = []
    for (ref, _), part in asked.items():
        answer = next(following) if part.error is None else refused_fetch(part)
        if len(answer.data) and part.log is not None:
            answered_at[part.log] = part.offset
        if not topics or topics[-1][0] != ref:
            topics.append((ref, []))
        topics[-1][1].append(_fetched(ref, answer))
        yield yield_control
    buffers = yield from breathing(fetch_response_steps(request.version, topics))
    request.reply_buffers(buffers)


def _fetch_parts(door: KafkaDoor, request: Request, topics: Any) -> Work[dict[FetchKey, FetchPart]]:
    """What is asked for: each partition once, by its last row, as Kafka does."""
    parts: dict[FetchKey, FetchPart] = {}
    by_id = request.version >= FETCH_TOPIC_IDS_FROM
    for topic in topics:
        ref: TopicRef = (topic.topic_id or NO_TOPIC_ID) if by_id else topic.topic
        yield yield_control
        for partition in topic.partitions:
            parts[ref, partition.partition] = _fetch_part(door, ref, partition)
            yield yield_control
    return parts


def _fetch_part(door: KafkaDoor, ref: TopicRef, partition: Any) -> FetchPart:
    number = partition.partition
    tp = TopicPartition("" if isinstance(ref, UUID) else ref, number)
    try:
        log = _log(door, ref, number)
        check_leader_epoch(getattr(partition, "current_leader_epoch", -1))
    except StrandlogError as error:
        return FetchPart(tp, None, 0, 0, error)
    return FetchPart(tp, log, partition.fetch_offset, partition.partition_max_bytes)


def _fetched(ref: TopicRef, answer: FetchAnswer) -> FetchedPartition:
    return FetchedPartition(
        answer.tp.partition,
        0 if answer.error is None else _fetch_code(ref, answer.error),
        answer.high_watermark,
        answer.last_stable_offset,
        answer.log_start_offset,
        answer.aborted,
        [answer.data] if len(answer.data) else [],
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
    door.broker.upkeep.hurry(RETENTION)  # which drops the files; the records are gone now
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
