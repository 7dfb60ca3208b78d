"""Tracks each idempotent producer's last batches to detect duplicates; encodes snapshot files.

Each producer id has an epoch, its last five batches (sequence and offset ranges), the time of its
last append and, if a transaction is open, the first offset of that transaction. A batch is accepted
if

    its epoch is newer and its sequence starts at 0, or
    its epoch is the same and its sequence follows the last one (int32, wrapping to 0), or
    its epoch is the same and no sequence of this epoch is known (only a marker was written), or
    its epoch is not older and it has no sequence (a coordinator wrote it), or
    the producer is unknown (it is new, or its state expired or was truncated with the records).

A batch whose sequences equal those of one of the last five is a duplicate. It is acknowledged with
the original offset, because the producer may not have received the first response (KIP-98). The
offset of an older duplicate is no longer known, so it is rejected with `DuplicateSequenceError`.
Producers treat that error as success, so it must never be returned for a batch that was not
written. If the first batch seen from a producer did not start at sequence 0, earlier sequences are
therefore not treated as duplicates.

The file `<offset>.snapshot` holds the state before that offset, in version 1 of Kafka's format:

    i16 version | u32 CRC-32C of what follows | i32 count | count x
        i64 producer id | i16 epoch | i32 last sequence | i64 last offset | i32 offset delta |
        i64 timestamp | i32 coordinator epoch | i64 first offset of the open transaction or -1
    u32 seal: CRC-32C of "<folder>/<offset>"
    i64 base offset of the active segment | u32 CRC-32C of its transaction index below <offset>

The last two lines are strandlog's own; Kafka reads `count` entries and ignores the rest.

The seal detects a snapshot that was copied from another partition or offset; the checksum of such a
copy is valid. The last line detects a transaction index that was lost or truncated
(transaction_index.py). Files of older versions lack one or both lines and are accepted.

A snapshot contains only the last batch of each producer, and assumes that the producer's sequence
started at 0. If a snapshot is damaged or missing, recovery starts from an earlier one and replays
the log from there.

A producer's state expires producer.id.expiration.ms after its last append or retry, regardless of
the timestamps in its records, because an active producer may replay old events. The timestamp field
of the snapshot holds that time. State with an open transaction does not expire. Batches that
recovery reads from the log count as appended at the restart, and nothing expires for an hour after
a restart (`RESTART_GRACE_MS`), or for producer.id.expiration.ms if that is shorter: a producer had
to wait while the broker was down, and may be about to retry a batch that is already in the log.

The number of producers in all partitions of a folder is limited (producer.ids.max.count), because
a client can use any number of ids. At the limit, producers that have been idle for an hour
(`EARLY_EXPIRATION_MS`) are forgotten. If there are none, a batch of a new producer is rejected,
which loses nothing; forgetting an active producer could write a retried batch twice.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from strandlog.config.setting import MAX_INT
from strandlog.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    TooManyProducersError,
)
from strandlog.record.batch_header import BatchHeader
from strandlog.record.checksum import crc32c
from strandlog.storage.segment.transaction_index import IndexMark

BATCHES_KEPT = 5
SNAPSHOT_VERSION = 1
NO_OPEN_TRANSACTION = -1
UNKNOWN_TIME = 0  # the append time of a batch that was read back from the log
RESTART_GRACE_MS = 3_600_000
EARLY_EXPIRATION_MS = 3_600_000
# The broker never assigns ids this high, so such an id was made up by a client. It is ignored when
# the next id to assign is determined; otherwise it would exhaust the range of ids.
IMPLAUSIBLE_ID = 2**53
_PREFIX = struct.Struct(">hIi")
_CRC_END = 6  # the checksum covers everything from here on
_ENTRY = struct.Struct(">qhiqiqiq")
_SEAL = struct.Struct(">I")
_INDEX_MARK = struct.Struct(">qI")
_SEQUENCE_LIMIT = 2**31


class WrittenBatch(NamedTuple):
    """One of the last batches of a producer."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class ProducerIdsSeen:
    """The highest plausible producer id seen in a data folder since it was opened, and the number
    of producers in its partitions. `count` still includes the producers of deleted partitions; at
    the limit, `recount` forgets long-idle producers and returns the exact number."""

    __slots__ = ("_recount", "count", "highest", "limit")

    def __init__(self, limit: int = MAX_INT, recount: Callable[[], int] | None = None) -> None:
        self.highest = -1
        self.count = 0
        self.limit = limit
        self._recount = recount

    def check_room(self) -> None:
        """Raise `TooManyProducersError` if there is no room for another producer."""
        if self.count >= self.limit and self._recount is not None:
            self.count = self._recount()
        if self.count >= self.limit:
            raise TooManyProducersError(
                f"{self.count} producers write to the partitions of this broker; use fewer or "
                f"raise producer.ids.max.count (now {self.limit})"
            )

    def note(self, producer_id: int) -> None:
        if self.highest < producer_id < IMPLAUSIBLE_ID:
            self.highest = producer_id


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "first_sequence",
        "last_timestamp",
        "open_transaction",
        "updated_ms",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.first_sequence = 0  # all sequences from here to the last one were written
        self.batches: deque[WrittenBatch] = deque(maxlen=BATCHES_KEPT)
        self.coordinator_epoch = -1
        # The timestamp of the last batch. A snapshot has only `updated_ms`, which is used instead.
        self.last_timestamp = -1
        self.updated_ms = UNKNOWN_TIME  # the time of its last append or retry
        self.open_transaction = NO_OPEN_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_ids_seen", "_open", "_opened_ms", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self._ids_seen = ProducerIdsSeen()
        self._opened_ms = 0
        # First offsets of open transactions by producer id, in ascending order.
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def opened(self, ids_seen: ProducerIdsSeen, now_ms: int) -> None:
        """Record that the partition was opened at `now_ms`. Add its highest id and its number of
        producers to `ids_seen`."""
        ids_seen.note(self._ids_seen.highest)
        ids_seen.count += len(self._producers)
        self._ids_seen = ids_seen
        self._opened_ms = now_ms
        for entry in self._producers.values():
            if entry.updated_ms == UNKNOWN_TIME or entry.updated_ms > now_ms:
                entry.updated_ms = now_ms  # a future time means that the clock was set back

    def check(self, header: BatchHeader, *, is_limited: bool = True) -> WrittenBatch | None:
        """Return None if the batch may be written, or the original batch if it is a duplicate.
        Raise an error if its epoch or sequence is wrong. With `is_limited`, also reject a new
        producer at the limit on the number of producers."""
        entry = self._producers.get(header.producer_id)
        if entry is None:
            if is_limited and self._ids_seen.count >= self._ids_seen.limit:
                self._ids_seen.check_room()
            return None
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} now has epoch {entry.epoch}; "
                f"epoch {header.producer_epoch} of the batch is too old"
            )
        if header.producer_epoch > entry.epoch:
            if header.base_sequence > 0:
                raise OutOfOrderSequenceError(
                    f"producer {header.producer_id} must start epoch {header.producer_epoch} with "
                    f"sequence 0, got {header.base_sequence}"
                )
            return None
        return self._check_sequence(header, entry)

    def _check_sequence(self, header: BatchHeader, entry: ProducerEntry) -> WrittenBatch | None:
        if not entry.batches or header.base_sequence < 0:
            return None
        for batch in entry.batches:
            if (
                batch.first_sequence == header.base_sequence
                and batch.last_sequence == header.last_sequence
            ):
                return batch
        expected = (entry.last_sequence + 1) % _SEQUENCE_LIMIT
        if header.base_sequence == expected:
            return None
        first, last = header.base_sequence, header.last_sequence
        if entry.first_sequence <= first <= last <= entry.last_sequence:
            raise DuplicateSequenceError(
                f"producer {header.producer_id} sent sequence {header.base_sequence} again; "
                f"its last sequence in this partition is {entry.last_sequence}"
            )
        raise OutOfOrderSequenceError(
            f"producer {header.producer_id} sent sequence {header.base_sequence}; "
            f"expected {expected}"
        )

    def touch(self, producer_id: int, now_ms: int) -> None:
        """Record that the producer is still active, because it resent a batch."""
        self._producers[producer_id].updated_ms = now_ms

    def update(self, header: BatchHeader, base_offset: int, now_ms: int = UNKNOWN_TIME) -> None:
        """Record a batch of an idempotent producer, written at offset `base_offset`."""
        entry = self._entry(header.producer_id, header.producer_epoch)
        last_offset = base_offset + header.last_offset_delta
        if header.base_sequence >= 0:  # batches written by a coordinator have no sequence
            if not entry.batches:
                entry.first_sequence = header.base_sequence
            if header.last_sequence < header.base_sequence or header.base_sequence == 0:
                entry.first_sequence = 0  # the sequence wrapped or was reset
            entry.batches.append(
                WrittenBatch(
                    header.base_sequence,
                    header.last_sequence,
                    base_offset,
                    last_offset,
                )
            )
        entry.last_timestamp = header.max_timestamp
        entry.updated_ms = now_ms
        if header.is_transactional and entry.open_transaction == NO_OPEN_TRANSACTION:
            self._open[header.producer_id] = entry.open_transaction = base_offset

    def end_transaction(
        self, header: BatchHeader, coordinator_epoch: int, now_ms: int = UNKNOWN_TIME
    ) -> int | None:
        """Record a commit or abort marker. Return the first offset of the transaction, or None if
        none was open."""
        entry = self._entry(header.producer_id, header.producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = header.max_timestamp
        entry.updated_ms = now_ms
        entry.open_transaction = NO_OPEN_TRANSACTION
        return self._open.pop(header.producer_id, None)

    def _entry(self, producer_id: int, epoch: int) -> ProducerEntry:
        entry = self._producers.get(producer_id)
        if entry is None or entry.epoch != epoch:
            self._ids_seen.count += entry is None
            open_transaction = entry.open_transaction if entry else NO_OPEN_TRANSACTION
            entry = self._producers[producer_id] = ProducerEntry(epoch)
            entry.open_transaction = open_transaction
            self._ids_seen.note(producer_id)
        return entry

    def first_open_transaction(self) -> int | None:
        """Return the first offset of the oldest open transaction, or None. read_committed readers
        see no records from there on."""
        for first_offset in self._open.values():
            return first_offset
        return None

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction, by producer id."""
        return dict(self._open)

    def truncate_to(self, offset: int) -> None:
        """Remove the state of all batches that end at or after `offset`, where the log was
        truncated."""
        for producer_id, entry in list(self._producers.items()):
            kept = [batch for batch in entry.batches if batch.last_offset < offset]
            if not kept and not 0 <= entry.open_transaction < offset:
                del self._producers[producer_id]
                self._ids_seen.count -= 1
                continue
            entry.batches.clear()
            entry.batches.extend(kept)
            if entry.open_transaction >= offset:
                entry.open_transaction = NO_OPEN_TRANSACTION
        self._open = {
            producer_id: first
            for producer_id, first in self._open.items()
            if first < offset and producer_id in self._producers
        }

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers that have not appended or resent a batch for `expiration_ms`, and return
        their number. Keep producers with an open transaction, and keep all of them for up to
        `RESTART_GRACE_MS` after a restart."""
        if now_ms - self._opened_ms < min(expiration_ms, RESTART_GRACE_MS):
            return 0
        gone = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.open_transaction == NO_OPEN_TRANSACTION
            and now_ms - entry.updated_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        self._ids_seen.count -= len(gone)
        return len(gone)

    def clear(self) -> None:
        self._ids_seen.count -= len(self._producers)
        self._producers.clear()
        self._open.clear()

    def last_offsets(self) -> set[int]:
        """Return the last offset of each producer. Compaction keeps the batches at these offsets,
        even if they become empty."""
        return {entry.last_offset for entry in self._producers.values() if entry.batches}

    def snapshot(self, name: str = "", mark: IndexMark | None = None) -> bytes:
        """Encode the state for the snapshot file with this name (`snapshot_name`)."""
        entries = b"".join(
            _ENTRY.pack(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_offset,
                _last_offset_delta(entry),
                entry.updated_ms,
                entry.coordinator_epoch,
                entry.open_transaction,
            )
            for producer_id, entry in self._producers.items()
        )
        seal = _seal(name) if name else b""
        if name and mark is not None:
            seal += _INDEX_MARK.pack(*mark)
        body = struct.pack(">i", len(self._producers)) + entries + seal
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes, name: str = "") -> ProducerState | None:
        """Decode the state from a snapshot file, or return None if the file is not valid. If a name
        is given, a file with the seal of another name is not valid."""
        if len(data) < _PREFIX.size:
            return None
        version, crc, count = _PREFIX.unpack_from(data)
        end = _PREFIX.size + count * _ENTRY.size
        if version != SNAPSHOT_VERSION or count < 0 or crc32c(data[_CRC_END:]) != crc:
            return None
        if not _is_sealed_for(data[end:], name) or len(data) < end:
            return None
        state = cls()
        for fields in _ENTRY.iter_unpack(data[_PREFIX.size : end]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator, open_at = fields
            entry = state._producers[producer_id] = ProducerEntry(epoch)
            state._ids_seen.note(producer_id)
            entry.coordinator_epoch = coordinator
            entry.last_timestamp = entry.updated_ms = timestamp
            entry.open_transaction = open_at
            if sequence >= 0:
                first = (sequence - delta) % _SEQUENCE_LIMIT
                entry.batches.append(WrittenBatch(first, sequence, offset - delta, offset))
        began = [(e.open_transaction, producer_id) for producer_id, e in state]
        state._open = {producer_id: first for first, producer_id in sorted(began) if first >= 0}
        return state


def snapshot_name(stem: str) -> str:
    """Return the name that a snapshot's seal covers: its folder and its offset."""
    return "/".join(stem.rsplit("/", 2)[-2:])


def _is_sealed_for(seal: bytes, name: str) -> bool:
    """Return whether the seal matches a file name, or is missing as in files of older versions."""
    if not seal:
        return True
    if len(seal) not in (_SEAL.size, _SEAL.size + _INDEX_MARK.size):
        return False
    return not name or seal[: _SEAL.size] == _seal(name)


def _seal(name: str) -> bytes:
    return _SEAL.pack(crc32c(name.encode()))


def index_mark(data: bytes) -> IndexMark | None:
    """Return the index mark of a valid snapshot, or None for a file of an older version."""
    count = _PREFIX.unpack_from(data)[2]
    start = _PREFIX.size + count * _ENTRY.size + _SEAL.size
    return IndexMark(*_INDEX_MARK.unpack_from(data, start)) if len(data) > start else None


def _last_offset_delta(entry: ProducerEntry) -> int:
    if not entry.batches:
        return 0
    return entry.batches[-1].last_offset - entry.batches[-1].first_offset
