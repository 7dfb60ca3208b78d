"""A data folder with everything in it, and what is true about it.

Several topics (all codecs, several segments, compacted, transactional, idempotent, with deleted
records), groups with committed offsets, the table of transactions, and producer ids; stopped
cleanly or killed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.transactions.markers import Marker
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import CorruptSegmentError
from strandlog.model import OffsetAndMetadata, ProducerIdentity, Record, TopicPartition
from strandlog.protocol.transaction_records import encode_key
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.files import DiskFiles
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import aborted_in, read
from strandlog.storage.segment.scan import batches_of_read
from strandlog.storage.segment.transaction_index import AbortedRanges
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock

CONTEXT = embedded_context()

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.segment.bytes": 4096,
    "transaction.state.log.num.partitions": 2,
    "log.segment.bytes": 3000,
    "log.index.interval.bytes": 300,
    "log.reserve.bytes": 0,
}
GROUPS = 12
CODECS = tuple(Codec)

Contents = dict[int, Record]


@dataclass
class Truth:
    """What the folder holds."""

    contents: dict[TopicPartition, Contents] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    # The offsets that readers of committed records get.
    visible: dict[TopicPartition, set[int]] = field(default_factory=dict)
    committed: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    last_producer_id: int = -1
    # The last batch of each idempotent producer, with the offset of its first record.
    retries: list[tuple[TopicPartition, int, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Specimen:
    """A folder and the truth about it."""

    name: str
    folder: Path
    truth: Truth


def open_broker(folder: Path) -> Broker:
    """A broker on the real disk, with a clock that does not advance."""
    settings = broker_settings(BROKER_SETTINGS.parse(SETTINGS))
    return Broker(str(folder), DiskFiles(), FakeClock(START_MS + 1000), uuids(10_000), settings)


def readable(log: PartitionLog) -> Iterator[Record | CorruptSegmentError]:
    """Every record that can be read from the start of a log, and the damage on the way."""
    offset = log.log_start_offset
    while offset < log.high_watermark:
        began_at = offset
        try:
            data = read(log, offset, 1 << 20)
            if not data:
                return
            for each in batches_of_read(
                data, path=str(log.tp), offset=offset, end_offset=log.high_watermark
            ):
                if not each.header.is_control:
                    yield from each.records(*log.tp, from_offset=offset)
                offset = each.header.next_offset
        except CorruptSegmentError as damage:
            if offset > began_at:
                continue  # only a read that begins with the damage knows where it ends
            yield damage
            if damage.resume_offset is None or damage.resume_offset <= offset:
                return
            offset = damage.resume_offset


def visible(log: PartitionLog) -> set[int]:
    """The offsets of the records that a reader of committed records gets, damage left out."""
    found: set[int] = set()
    offset, end_offset = log.log_start_offset, log.last_stable_offset
    aborted = AbortedRanges(aborted_in(log, offset, end_offset))
    while offset < end_offset:
        began_at = offset
        try:
            data = read(log, offset, 1 << 20, committed=True)
            if not data:
                break
            for each in batches_of_read(
                data, path=str(log.tp), offset=offset, end_offset=end_offset
            ):
                header = each.header
                if not header.is_control and not (
                    header.is_transactional
                    and aborted.covers(header.producer_id, header.base_offset)
                ):
                    found |= {record.offset for record in each.records(*log.tp, offset)}
                offset = header.next_offset
        except CorruptSegmentError as damage:
            if offset > began_at:
                continue
            if damage.resume_offset is None or damage.resume_offset <= offset:
                break
            offset = damage.resume_offset
    return found


def build(folder: Path, *, is_clean: bool, seed: int) -> Specimen:
    """Fill a new folder and stop."""
    maker = _Maker(folder, random.Random(seed))
    maker.fill()
    truth = maker.truth()
    if is_clean:
        maker.broker.close()
    else:
        maker.broker._log_dir.abandon()
    return Specimen("clean stop" if is_clean else "killed", folder, truth)


class _Maker:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.broker = open_broker(folder)
        self._rng = rng
        self._ids = ProducerIds(self.broker._log_dir)
        self._truth = Truth()
        self._moment = START_MS

    def fill(self) -> None:
        broker = self.broker
        broker.create_topic(CONTEXT, "plain", 3).result()
        broker.create_topic(CONTEXT, "compacted", 2, {"cleanup.policy": "compact"}).result()
        broker.create_topic(CONTEXT, "transactions", 1).result()
        broker.create_topic(CONTEXT, "idempotent", 2).result()
        broker.create_topic(CONTEXT, "trimmed", 1).result()
        broker.create_topic(CONTEXT, "small", 1).result()
        for number in range(70):
            self._append(TopicPartition("plain", number % 3))
            self._append(TopicPartition("trimmed", 0))
            self._append(TopicPartition("compacted", number % 2), keys=9)
            self._transaction(is_committed=number % 3 > 0)
        self._append(TopicPartition("small", 0))
        self._produce_idempotently()
        self._commit()
        key = encode_key("a transactional id")
        for number in range(3):
            broker._transactions_table.append([(key, b"state %d" % number)], self._moment)
        self._flush()
        for log in broker._catalog.logs("compacted"):
            compact_now(log)
            for number in range(3):
                log.append(self._batch(number, keys=9))
        trimmed = broker._catalog.log("trimmed", 0)
        run_inline(drop_oldest(trimmed, 2))
        trimmed.raise_log_start(trimmed.log_start_offset + 5)
        run_inline(broker._log_dir.write_checkpoints())
        self._flush()

    def _flush(self) -> None:
        for log in self.broker._log_dir.logs.values():
            log.flush()

    def _batch(self, number: int, keys: int = 0, **parts: object) -> bytes:
        rng = self._rng
        self._moment += rng.choice((0, 0, 5, 20))
        count = rng.choice((1, 1, 2, 6))
        chosen = [b"k%d" % rng.randrange(keys) if keys else None for _ in range(count)]
        values: list[bytes | None] = [
            rng.randbytes(rng.choice((0, 4, 60, 120))) + b" value %d.%d" % (number, n)
            for n in range(count)
        ]
        codec = rng.choice(CODECS)
        made = batch(*values, keys=chosen, timestamp=self._moment, codec=codec, **parts)  # type: ignore[arg-type]
        return bytes(made)

    def _append(self, tp: TopicPartition, keys: int = 0) -> None:
        log = self.broker._catalog.log(*tp)
        self.broker._appender.append(log, self._batch(log.log_end_offset, keys))

    def _transaction(self, *, is_committed: bool) -> None:
        log = self.broker._catalog.log("transactions", 0)
        producer = ProducerIdentity(self._ids.next(), 0)
        data = batch(b"in a transaction", producer=(*producer, 0), transactional=True)
        self.broker._appender.append(log, bytearray(data))
        kind = ControlType.COMMIT if is_committed else ControlType.ABORT
        self.broker._markers.write(Marker(log.tp, producer), kind)

    def _produce_idempotently(self) -> None:
        for partition in range(2):
            log = self.broker._catalog.log("idempotent", partition)
            for _ in range(4):
                producer_id, data, base = self._ids.next(), b"", -1
                for sequence in range(12):
                    value = b"%d of %d" % (sequence, producer_id)
                    data = batch(value, producer=(producer_id, 0, sequence), timestamp=self._moment)
                    base = self.broker._appender.append(log, bytearray(data)).base_offset
                self._truth.retries.append((log.tp, base, data))

    def _commit(self) -> None:
        for turn in range(15):
            for number in range(GROUPS):
                tp, offset = TopicPartition("plain", number % 3), turn + number
                request = CommitRequest(
                    group_id=f"group-{number}",
                    offsets={tp: OffsetAndMetadata(offset, metadata="m" * 20)},
                )
                self.broker._group_coordinator.commit_offsets(request)
                self._truth.committed[request.group_id, tp] = offset

    def truth(self) -> Truth:
        truth = self._truth
        for tp, log in self.broker._log_dir.logs.items():
            records = list(readable(log))
            assert not any(isinstance(each, CorruptSegmentError) for each in records)
            truth.contents[tp] = {r.offset: r for r in records if isinstance(r, Record)}
            truth.ends[tp] = log.log_end_offset
            truth.visible[tp] = visible(log)
        truth.last_producer_id = self._ids.next()
        return truth
