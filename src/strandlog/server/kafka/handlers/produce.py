"""Handler for Produce.

A request for one partition, the usual case, is decoded and appended without a pause. If records
have to be decoded and checked first, this happens outside the event loop. In the meantime, the
connection starts no other request, because later records must not be appended first.

The bytes of a request are charged to the producer's quota before anything else (`throttle.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strandlog.broker.access.permission import TOPIC, TRANSACTIONAL_ID, WRITE
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred
from strandlog.broker.produce import NOTHING_CHECKED, AppendResult, Checked, ProduceResult
from strandlog.broker.runtime import Work
from strandlog.errors import (
    InvalidRecordError,
    StrandlogError,
)
from strandlog.model import Acks, PartitionRecords, TopicRef
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.produce_fetch_server import (
    ProduceAnswer,
    ProduceRequest,
    parse_produce_steps,
    parse_single_produce,
    produce_response,
    produce_response_steps,
    single_produce_response,
)
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request, breathing

logger = logging.getLogger(__name__)

FEW_PARTITIONS = 16  # the response for up to this many is encoded without a pause


@kafka_api(
    api.PRODUCE,
    versions=(3, 13),
    advertised_from=0,
    requires=[WRITE.on(TOPIC), WRITE.on(TRANSACTIONAL_ID)],
    summary="Appends record batches; with acks=all the response follows the fsync.",
    notes=(
        "Advertised from version 0, although 0 to 2 fail: older librdkafka looks for version "
        "0 and silently disables compression without it (KAFKA-18659). Topics are identified by id "
        "from version 13."
    ),
)
def produce(broker: Broker, request: Request) -> Work[None] | None:
    header = request.header
    if request.meter is not None:
        request.pause_client(broker.charge_produce(request.context, len(request.frame)))
    body = parse_single_produce(header.version, request.frame, header.body_position)
    if body is None:
        return _produce_many(broker, request)
    context = request.context
    partitions = body.partitions
    if (checks := broker.record_checks(context, partitions, request.is_abandoned)) is not None:
        _check_first(broker, request, body, checks)
    else:
        transactional_id = body.transactional_id
        result = broker.produce(context, partitions, body.acks, transactional_id=transactional_id)
        _reply_when_done(request, body, result)
    return None


def _produce_many(broker: Broker, request: Request) -> Work[None]:
    """Handle a request that may have many partitions."""
    header = request.header
    body = yield from breathing(
        parse_produce_steps(
            header.version, request.frame, header.body_position, request.max_elements
        )
    )
    context = request.context
    checks = broker.record_checks(context, body.partitions, request.is_abandoned)
    if checks is not None:
        _check_first(broker, request, body, checks)
    else:
        yield from _append(broker, request, body, NOTHING_CHECKED)


def _check_first(
    broker: Broker, request: Request, body: ProduceRequest, checks: Work[Checked]
) -> None:
    """Decode and check the records outside the event loop, then append."""
    # A later request of this client must not be appended before this one.
    request.connection.hold_line()

    def append(checked: Checked) -> None:
        request.connection.release_line()  # the next request starts after `append` returns
        if not request.is_abandoned():
            request.in_slices(_append(broker, request, body, checked))

    request.in_decoder(checks, append)


def _append(broker: Broker, request: Request, body: ProduceRequest, checked: Checked) -> Work[None]:
    context = request.context
    result = yield from broker.produce_work(
        context, body.partitions, body.acks, checked, body.transactional_id
    )
    _reply_when_done(request, body, result)


def _reply_when_done(
    request: Request,
    body: ProduceRequest,
    result: list[ProduceResult] | Deferred[list[ProduceResult]],
) -> None:
    if not isinstance(result, Deferred):
        _reply_produce(request, body, result)
        return

    def reply(done: Deferred[list[ProduceResult]]) -> None:
        try:
            _reply_produce(request, body, done.result())
        except Exception as error:  # noqa: BLE001 - it closes the connection
            request.fail(error)

    result.on_done(reply)


def _reply_produce(request: Request, body: ProduceRequest, results: list[ProduceResult]) -> None:
    if body.acks != Acks.NONE:
        if (response := _single_response(request, body, results)) is not None:
            request.reply_buffers([response])
            return
        rows = [_row(part, each) for part, each in zip(body.partitions, results, strict=True)]
        topics = _by_topic(body.partitions, rows)
        if len(rows) <= FEW_PARTITIONS:
            throttle_ms = request.throttle_ms() if request.meter is not None else 0
            version = request.header.version
            request.reply_buffers([produce_response(version, topics, throttle_ms)])
        else:
            request.in_slices(_reply_in_slices(request, topics))
    elif errors := [each for each in results if isinstance(each, StrandlogError)]:
        host = request.connection.peer_host
        text = "closing the connection from %s: Produce with acks=0 failed: %s"
        logger.warning(text, host, errors[0])  # no response could carry the error
        request.pending.fail()
    else:
        request.count_throttled()
        request.pending.fill(None)


def _single_response(
    request: Request, body: ProduceRequest, results: list[ProduceResult]
) -> bytes | None:
    """Encode the response if a single partition was requested by name and written, and if no client
    has a quota; otherwise, return None."""
    if len(results) != 1 or request.meter is not None:
        return None
    topic, partition, _ = body.partitions[0]
    result = results[0]
    if not isinstance(result, AppendResult) or not isinstance(topic, str):
        return None
    base_offset, _, append_time_ms, _, log_start_offset = result
    return single_produce_response(
        request.header.version, topic, partition, base_offset, append_time_ms, log_start_offset
    )


def _reply_in_slices(
    request: Request, topics: list[tuple[TopicRef, list[ProduceAnswer]]]
) -> Work[None]:
    throttle_ms = request.throttle_ms()
    steps = produce_response_steps(request.header.version, topics, throttle_ms)
    response = yield from breathing(steps)
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
