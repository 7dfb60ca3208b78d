"""Looks up offsets by time and by leader epoch, for ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from strandlog.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from strandlog.model import IsolationLevel, TimestampOffset
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import find_latest, find_timestamp
from strandlog.storage.work import Work

# Kafka's special timestamps.
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6

LEADER_EPOCH = 0  # the epoch of every partition, because a single broker always leads all of them
NO_EPOCH, NO_OFFSET = -1, -1
NOT_FOUND = TimestampOffset(-1, NO_OFFSET)


def offset_at(
    log: PartitionLog, timestamp: int, isolation: IsolationLevel
) -> Work[TimestampOffset]:
    """Return the offset of the first record at or after a time, or for a special timestamp;
    `NOT_FOUND` if there is none that readers can see."""
    committed = isolation is IsolationLevel.READ_COMMITTED
    end_offset = log.last_stable_offset if committed else log.high_watermark
    if timestamp == LATEST:
        return TimestampOffset(-1, end_offset)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):  # all segments are local
        return TimestampOffset(-1, log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # there is no tiered storage
        return NOT_FOUND
    is_latest = timestamp == MAX_TIMESTAMP
    found = yield from find_latest(log) if is_latest else find_timestamp(log, timestamp)
    if found is None or found.offset >= end_offset:
        return NOT_FOUND
    return found


def check_leader_epoch(epoch: int) -> None:
    """Raise if the leader epoch that a client knows is not the current one."""
    if epoch in (NO_EPOCH, LEADER_EPOCH):
        return
    if epoch < LEADER_EPOCH:
        raise FencedLeaderEpochError(f"leader epoch {epoch} has ended; refresh the metadata")
    raise UnknownLeaderEpochError(f"leader epoch {epoch} has not started; refresh the metadata")


def end_of_epoch(log: PartitionLog, epoch: int) -> tuple[int, int]:
    """Return a leader epoch and its end offset; (-1, -1) for -1 and for later epochs than the
    current one."""
    if epoch == LEADER_EPOCH:
        return epoch, log.high_watermark
    if epoch == NO_EPOCH or epoch > LEADER_EPOCH:
        return NO_EPOCH, NO_OFFSET
    return epoch, log.log_start_offset
