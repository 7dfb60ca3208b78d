"""Handlers for InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit,
DescribeProducers, DescribeTransactions and ListTransactions.

A change is on disk before its response is sent. A disk error is reported as
COORDINATOR_NOT_AVAILABLE, which clients retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from strandlog.broker.access.permission import (
    CLUSTER,
    DESCRIBE,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred, gather
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.runtime import Work, yield_control
from strandlog.broker.topics.topic import ActiveProducer
from strandlog.broker.transactions.transaction import Transaction
from strandlog.errors import (
    ProducerFencedError,
    StorageError,
    StrandlogError,
)
from strandlog.model import OffsetAndMetadata, ProducerIdentity, TopicPartition
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.encoder import array_encoder
from strandlog.protocol.transaction_records import TransactionState
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.handlers.group_offsets import pieces
from strandlog.server.kafka.request import Request, asked_once

COORDINATOR_NOT_AVAILABLE = 15
INVALID_PRODUCER_EPOCH = 47
OPERATION_NOT_ATTEMPTED = 55
ENCODED_TOGETHER = 1000  # up to this many producers of a partition are encoded without a pause
# PRODUCER_FENCED is used from these versions on; older ones get INVALID_PRODUCER_EPOCH.
FENCED_FROM = {
    api.INIT_PRODUCER_ID.key: 4,
    api.ADD_PARTITIONS_TO_TXN.key: 2,
    api.ADD_OFFSETS_TO_TXN.key: 2,
    api.END_TXN.key: 2,
    api.TXN_OFFSET_COMMIT.key: 4,
}
STATE_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}


def _code(request: Request, error: StrandlogError) -> int:
    header = request.header
    if isinstance(error, ProducerFencedError) and header.version < FENCED_FROM[header.api_key]:
        return INVALID_PRODUCER_EPOCH
    if isinstance(error, StorageError):
        return COORDINATOR_NOT_AVAILABLE
    return error.kafka_code


def _identity(body: Any) -> ProducerIdentity:
    return ProducerIdentity(getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1))


def _reply_when_done(
    request: Request, result: Deferred[Any], reply: Callable[[int, Any], None]
) -> None:
    """Call `reply` with (error code, result) when the result is available."""
    request.when_done(
        result,
        lambda value: reply(0, value),
        lambda error: reply(_code(request, error), None),
    )


# -- producers -----------------------------------------------------------------------------------


@kafka_api(
    api.INIT_PRODUCER_ID,
    versions=(0, 5),
    requires=[(WRITE.on(TRANSACTIONAL_ID), IDEMPOTENT_WRITE.on(CLUSTER), WRITE.on(TOPIC))],
    summary="Allocates a producer id for an idempotent or transactional producer.",
    notes=(
        "With a transactional id, WRITE on that id is required; without one, either of the other "
        "permissions is enough."
    ),
)
def init_producer_id(broker: Broker, request: Request) -> None:
    body = request.body()
    timeout_ms = body.transaction_timeout // timedelta(milliseconds=1)

    def reply(code: int, identity: ProducerIdentity | None) -> None:
        producer_id, epoch = identity or (-1, -1)
        request.reply({"error_code": code, "producer_id": producer_id, "producer_epoch": epoch})

    result = broker.init_producer_id(
        request.context, body.transactional_id, timeout_ms, _identity(body)
    )
    _reply_when_done(request, result, reply)


@kafka_api(
    api.ADD_PARTITIONS_TO_TXN,
    versions=(0, 3),
    requires=[WRITE.on(TRANSACTIONAL_ID), WRITE.on(TOPIC)],
    summary="Adds partitions to a transaction.",
    notes="Versions 4 and later are only used between brokers.",
)
def add_partitions_to_txn(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(body.v3_and_below_topics, lambda topic: topic.partitions)
    wanted: list[TopicPartition] = []
    invalid: dict[TopicPartition, int] = {}
    transactional_id = body.v3_and_below_transactional_id
    is_allowed = broker.has_access(request.context, WRITE.on(TRANSACTIONAL_ID), transactional_id)
    for name, numbers in asked.topics.items() if is_allowed else ():
        for number in numbers:
            tp = TopicPartition(name, number)
            wanted.append(tp)
            try:
                broker.check_transaction_partition(request.context, tp)
            except StrandlogError as error:
                invalid[tp] = error.kafka_code
            yield yield_control
    identity = ProducerIdentity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)

    def reply(code: int, _: object) -> None:
        # All or nothing: if one partition has an error, none is added.
        default = code or (OPERATION_NOT_ATTEMPTED if invalid else 0)
        results = [
            {
                "name": name,
                "results_by_partition": [
                    {
                        "partition_index": number,
                        "partition_error_code": invalid.get(TopicPartition(name, number), default),
                    }
                    for number in numbers
                ],
            }
            for name, numbers in asked.topics.items()
        ]
        request.in_slices(request.replying({"results_by_topic_v3_and_below": results}))

    result = (
        Deferred.done(None)
        if invalid
        else broker.add_partitions_to_transaction(
            request.context, transactional_id, identity, wanted
        )
    )
    _reply_when_done(request, result, reply)


@kafka_api(
    api.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    requires=[WRITE.on(TRANSACTIONAL_ID), READ.on(GROUP)],
    summary="Adds a group's offsets to a transaction.",
)
def add_offsets_to_txn(broker: Broker, request: Request) -> None:
    body = request.body()

    result = broker.add_offsets_to_transaction(
        request.context, body.transactional_id, _identity(body), body.group_id
    )
    _reply_when_done(request, result, lambda code, _: request.reply({"error_code": code}))


@kafka_api(
    api.END_TXN,
    versions=(0, 4),
    requires=[WRITE.on(TRANSACTIONAL_ID)],
    summary="Commits or aborts a transaction.",
    notes="Version 5 belongs to `transaction.version` 2, which is not offered.",
)
def end_txn(broker: Broker, request: Request) -> None:
    body = request.body()
    result = broker.end_transaction(
        request.context, body.transactional_id, _identity(body), commit=body.committed
    )
    _reply_when_done(request, result, lambda code, _: request.reply({"error_code": code}))


@kafka_api(
    api.TXN_OFFSET_COMMIT,
    versions=(0, 4),
    requires=[WRITE.on(TRANSACTIONAL_ID), READ.on(GROUP), READ.on(TOPIC)],
    summary="Commits offsets that take effect when the transaction commits.",
    notes="Version 5 belongs to `transaction.version` 2, which is not offered.",
)
def txn_offset_commit(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading(broker.settings.group_request_max_items)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in body.topics:
        for part in topic.partitions:
            yield yield_control
            offsets[TopicPartition(topic.name, part.partition_index)] = OffsetAndMetadata(
                part.committed_offset,
                getattr(part, "committed_leader_epoch", -1),
                part.committed_metadata or "",
            )
    commits = []
    for piece in pieces(offsets):
        commits.append(_commit(broker, request, body, piece))
        yield yield_control

    def reply(_: None) -> None:
        codes: dict[TopicPartition, int] = {}
        for commit in commits:
            if isinstance(failure := commit.error, StrandlogError):
                codes = dict.fromkeys(offsets, _code(request, failure))
                break
            # `result` raises an unexpected exception, which closes the connection.
            codes |= {tp: _code(request, error) for tp, error in commit.result().items()}
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": codes.get(
                            TopicPartition(topic.name, part.partition_index), 0
                        ),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
        request.reply_in_slices({"topics": topics})

    request.when_done(gather(commits), reply)


def _commit(
    broker: Broker, request: Request, body: Any, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> Deferred[dict[TopicPartition, StrandlogError]]:
    """Commit offsets; the result maps each partition whose offset failed to its error."""
    commit = CommitRequest(
        group_id=body.group_id,
        offsets=offsets,
        member_id=getattr(body, "member_id", ""),
        generation=getattr(body, "generation_id", -1),
        group_instance_id=getattr(body, "group_instance_id", None),
    )
    name = body.transactional_id
    return broker.commit_transaction_offsets(request.context, name, commit, _identity(body))


# -- describing ------------------------------------------------------------------------------------


@kafka_api(
    api.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    requires=[READ.on(TOPIC)],
    summary="Lists the producers of partitions and where their open transactions start.",
)
def describe_producers(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(body.topics, lambda topic: topic.partition_indexes)
    encode = array_encoder(
        api.DESCRIBE_PRODUCERS.key, request.version, "topics", "partitions", "active_producers"
    )
    topics = []
    for name, numbers in asked.topics.items():
        partitions = []
        for number in numbers:
            row: dict[str, Any] = {"partition_index": number, "error_code": 0}
            try:
                producers = yield from _producers(broker.producers(request.context, name, number))
                # Few producers are encoded now, to save memory; many in slices, with the response.
                is_few = len(producers) <= ENCODED_TOGETHER
                row["active_producers"] = encode(producers) if is_few else producers
            except StrandlogError as error:
                row |= {"error_code": error.kafka_code, "error_message": str(error)}
            partitions.append(row)
            yield yield_control
        topics.append({"name": name, "partitions": partitions})
    yield from request.replying({"topics": topics})


def _producers(producers: Iterator[ActiveProducer]) -> Work[list[dict[str, Any]]]:
    rows = []
    for each in producers:
        rows.append(
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "coordinator_epoch": each.coordinator_epoch,
                "current_txn_start_offset": each.open_transaction,
            }
        )
        yield yield_control
    return rows


@kafka_api(
    api.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    requires=[DESCRIBE.on(TRANSACTIONAL_ID), DESCRIBE.on(TOPIC)],
    summary="Returns the state and partitions of transactions.",
)
def describe_transactions(broker: Broker, request: Request) -> Work[None]:
    states = []
    body = yield from request.reading()
    for name in dict.fromkeys(body.transactional_ids):
        yield yield_control
        try:
            states.append(_described(broker.describe_transaction(request.context, name)))
        except StrandlogError as error:
            states.append(
                {
                    "error_code": error.kafka_code,
                    "transactional_id": name,
                    "transaction_start_time": 0,
                }
            )
    yield from request.replying({"transaction_states": states})


def _described(transaction: Transaction) -> dict[str, Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return {
        "error_code": 0,
        "transactional_id": transaction.transactional_id,
        "transaction_state": STATE_NAMES[transaction.state],
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [{"topic": name, "partitions": part} for name, part in by_topic.items()],
    }


@kafka_api(
    api.LIST_TRANSACTIONS,
    versions=(0, 1),
    requires=[DESCRIBE.on(TRANSACTIONAL_ID)],
    summary="Lists transactions, filtered by state, producer id and age.",
)
def list_transactions(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    known = set(STATE_NAMES.values())
    wanted_states = set(body.state_filters)
    wanted_ids = set(body.producer_id_filters)
    at_least_ms = getattr(body, "duration_filter", -1)
    now_ms = broker.clock.now_ms()

    def is_wanted(transaction: Transaction) -> bool:
        if wanted_states and STATE_NAMES[transaction.state] not in wanted_states:
            return False
        if wanted_ids and transaction.producer_id not in wanted_ids:
            return False
        return at_least_ms < 0 or 0 <= transaction.started_ms <= now_ms - at_least_ms

    rows = []
    for transaction in list(broker.transactions(request.context)):
        yield yield_control
        if is_wanted(transaction):
            rows.append(
                {
                    "transactional_id": transaction.transactional_id,
                    "producer_id": transaction.producer_id,
                    "transaction_state": STATE_NAMES[transaction.state],
                }
            )
    unknown = sorted(wanted_states - known)
    yield from request.replying(
        {"error_code": 0, "unknown_state_filters": unknown, "transaction_states": rows}
    )
