"""Handlers for OffsetForLeaderEpoch.

One node has led every partition since its first record, so the only leader epoch is 0 (KIP-320). It
ends at the high watermark. For the epoch in the request:

    -1              unknown: -1, -1
    below 0         what came before the first epoch ends at the log start offset
    0               0, high watermark, once all that was written before the request is durable
    above 0         unknown: -1, -1

A request with another current leader epoch fails first: FENCED_LEADER_EPOCH for an older one,
UNKNOWN_LEADER_EPOCH for a newer one.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from strandlog.errors import FencedLeaderEpochError, StrandlogError, UnknownLeaderEpochError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import CLUSTER, CLUSTER_ACTION, DESCRIBE, TOPIC, kafka_api
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.server.kafka.request import Asked, Request, answered, asked_once
from strandlog.storage.partition.log import LEADER_EPOCH, PartitionLog
from strandlog.storage.work import Work, yield_control

NO_EPOCH = -1
NO_OFFSET = -1


@kafka_api(
    api.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=[(CLUSTER_ACTION.on(CLUSTER), DESCRIBE.on(TOPIC))],
    summary="Returns the end offset of a leader epoch; the only epoch is 0.",
)
def offset_for_leader_epoch(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    asked = yield from asked_once(
        body.topics,
        lambda topic: topic.partitions,
        lambda part: int(part.partition),
        lambda topic: str(topic.topic),
    )
    logs = yield from existing_logs(door, asked)
    answer = partial(_ends_of_epochs, door, request, asked)
    door.when_visible(request, logs, lambda: door.in_slices(request, answer()))


def _ends_of_epochs(door: KafkaDoor, request: Request, asked: Asked) -> Work[None]:
    def answer(topic: str, number: int, part: Any) -> dict[str, Any]:
        log = door.broker.catalog.log(topic, number)
        check_leader_epoch(part.current_leader_epoch)
        epoch, end_offset = _end_of_epoch(log, part.leader_epoch)
        return {"leader_epoch": epoch, "end_offset": end_offset}

    topics = yield from answered(asked, answer, "partition", "topic")
    yield from request.replying({"topics": topics})


def check_leader_epoch(believed: int) -> None:
    """Raise when a client believes in another leader than there is."""
    if believed in (NO_EPOCH, LEADER_EPOCH):
        return
    if believed < LEADER_EPOCH:
        raise FencedLeaderEpochError(f"leader epoch {believed} is over; ask for Metadata again")
    raise UnknownLeaderEpochError(f"leader epoch {believed} has not begun; ask for Metadata again")


def _end_of_epoch(log: PartitionLog, epoch: int) -> tuple[int, int]:
    if epoch == LEADER_EPOCH:
        return epoch, log.high_watermark
    if epoch == NO_EPOCH or epoch > LEADER_EPOCH:
        return NO_EPOCH, NO_OFFSET
    return epoch, log.log_start_offset


def existing_logs(door: KafkaDoor, asked: Asked) -> Work[list[PartitionLog]]:
    """The partitions that exist; the others are left out."""
    found = []
    for topic, rows in asked.topics.items():
        for number in rows:
            with contextlib.suppress(StrandlogError):
                found.append(door.broker.catalog.log(topic, number))
            yield yield_control
    return found
