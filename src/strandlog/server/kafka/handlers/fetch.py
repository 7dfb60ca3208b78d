"""Handler for Fetch.

A fetch waits in the broker until enough bytes are available or its wait time has elapsed. As in
Kafka, at most one fetch per connection waits: later responses have to wait for its response anyway.

A consumer that exceeds its quota gets an empty response, and asks again after the throttle time.

In Kafka, a request with a replica id comes from a broker that copies the log, so it requires
CLUSTER_ACTION. Here there is no other broker, but Kafka's tools can send such requests.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from strandlog.broker.access.permission import CLUSTER, CLUSTER_ACTION, READ, TOPIC
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred
from strandlog.broker.reads.fetch import (
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResult,
)
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.limits.kafka import FETCH_MAX_WAIT_MS
from strandlog.errors import (
    StrandlogError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from strandlog.model import Buffer, IsolationLevel, TopicRef
from strandlog.protocol.kafka import api
from strandlog.protocol.kafka.produce_fetch_server import (
    FETCH_TOPIC_IDS_FROM,
    FetchedPartition,
    fetch_response,
    fetch_response_steps,
    set_fetch_throttle,
)
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request, breathing
from strandlog.server.kafka.throttle import Meter

NO_SESSION, NEW_SESSION = -1, 0
FULL_FETCHES = (NO_SESSION, NEW_SESSION)
FETCH_SESSION_NOT_FOUND = 70
NO_TOPIC_ID = UUID(int=0)
FetchKey = tuple[TopicRef, int]


@kafka_api(
    api.FETCH,
    versions=(4, 18),
    requires=[READ.on(TOPIC), CLUSTER_ACTION.on(CLUSTER)],
    summary="Reads record batches, with long polling and `read_committed`.",
    notes=(
        "Fetch sessions are declined (session id 0), as the protocol allows. Topics are identified "
        "by id from version 13. A request with a replica id requires CLUSTER_ACTION instead of "
        "READ."
    ),
)
def fetch(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    if getattr(body, "session_epoch", NO_SESSION) not in FULL_FETCHES:
        # The request continues a session with another broker that had this address, and therefore
        # omits most partitions.
        buffers = fetch_response(request.version, [], FETCH_SESSION_NOT_FOUND)
        set_fetch_throttle(buffers, request.throttle_ms())
        request.reply_buffers(buffers)
        return
    asked = yield from _fetch_rows(request, body.topics)
    context = request.context
    is_committed = body.isolation_level == IsolationLevel.READ_COMMITTED
    max_bytes = min(body.max_bytes, broker.settings.fetch_max_bytes)
    if request.meter is not None and (limit := broker.max_fetch_bytes(context)) is not None:
        max_bytes = min(max_bytes, limit)
    wanted = FetchRequest(
        list(asked.values()),
        min(body.min_bytes, max(max_bytes, 1)) if request.meter is not None else body.min_bytes,
        max_bytes,
        broker.clock.monotonic_ms() + min(_ms(body.max_wait), FETCH_MAX_WAIT_MS),
        IsolationLevel.of(committed=is_committed),
        is_from_broker=_replica_id(body) >= 0,
    )
    found = yield from broker.fetch_work(context, wanted)
    if not isinstance(found, Deferred):
        request.pending.hold([each.data for each in found])
        yield from _reply_fetch(broker, request, found)
        return
    delayed = found
    # Later requests wait: their responses could not be sent before this one anyway.
    request.connection.hold_line()
    if not delayed.is_done:
        request.pending.leave_gate()  # while the fetch waits, the broker's own limits apply
        request.pending.on_abandoned = lambda: broker.cancel_fetch(delayed)

    def reply(done: Deferred[FetchResult]) -> None:
        request.connection.release_line()  # the next request starts after `reply` returns
        try:
            request.pending.hold([each.data for each in done.result()])
            request.in_slices(_reply_fetch(broker, request, done.result()))
        except Exception as error:  # noqa: BLE001 - it closes the connection
            request.fail(error)

    delayed.on_done(reply)


def _replica_id(body: Any) -> int:
    """Return the id of the broker that sends the request, or -1 for a consumer."""
    if hasattr(body, "replica_id"):
        return int(body.replica_id)
    return int(body.replica_state.replica_id)


def _reply_fetch(broker: Broker, request: Request, found: FetchResult) -> Work[None]:
    topics: list[tuple[TopicRef, list[FetchedPartition]]] = []
    for data in found:
        if not topics or topics[-1][0] != data.topic:
            topics.append((data.topic, []))
        topics[-1][1].append(_fetched(data))
        yield yield_control
    buffers = yield from breathing(fetch_response_steps(request.version, topics))
    if request.meter is not None:
        buffers = _charged(broker, request, request.meter, buffers)
    request.reply_buffers(buffers)


def _charged(broker: Broker, request: Request, meter: Meter, buffers: list[Buffer]) -> list[Buffer]:
    """Charge a response to the consumer's quota; return an empty one if it exceeds the quota."""
    delay_ms, is_admitted = broker.admit_fetch(request.context, sum(map(len, buffers)))
    meter.add(delay_ms)
    if not is_admitted:
        buffers = fetch_response(request.version, [])
    set_fetch_throttle(buffers, request.throttle_ms())
    return buffers


def _fetch_rows(request: Request, topics: Any) -> Work[dict[FetchKey, FetchPartition]]:
    """Return each partition of a request once; its last entry wins, as in Kafka."""
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
        return UnknownTopicIdError.kafka_code  # the topic was deleted while the fetch waited
    return error.kafka_code


def _ms(value: timedelta) -> int:
    return int(value.total_seconds() * 1000)
