"""One life of a data folder: the same operations in the same order for the same seed.

Two topics live in it, `events` (retention, truncation) and `table` (compaction, transactions), and
a third, `extra`, comes and goes. `live` yields after each operation, so that its caller
knows between which two operations a step of the disk lies. `recorded` lives once without accidents
and keeps what a reader could see after each operation: the yardstick for every crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.support.log_builders import (
    START_MS,
    all_records,
    batch,
    create_partition,
    open_dir,
    small_settings,
)

from strandlog.config.tables.topic import LogSettings
from strandlog.errors import StorageError
from strandlog.model import TopicPartition
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch
from strandlog.storage.cleaning.compaction import compact_now, plan_due_compaction
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

EVENTS = TopicPartition("events", 0)
TABLE = TopicPartition("table", 0)
EXTRA = TopicPartition("extra", 3)

SETTINGS: dict[TopicPartition, LogSettings] = {
    EVENTS: small_settings(segment_bytes=500, retention_bytes=2500, retention_ms=60_000),
    TABLE: small_settings(
        segment_bytes=500,
        cleanup_policy=("compact",),
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=800,
    ),
    EXTRA: small_settings(segment_bytes=300),
}


class Row(NamedTuple):
    """What was handed in under an offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None


class Sent(NamedTuple):
    """A batch of an idempotent producer."""

    producer_id: int
    base_offset: int
    last_offset: int
    data: bytes


@dataclass
class History:
    """Everything that was ever appended to one partition; offsets are given out once."""

    tp: TopicPartition
    rows: dict[int, Row] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    truncated: set[int] = field(default_factory=set)


class PartitionState(NamedTuple):
    """A partition between two operations."""

    tp: TopicPartition
    offsets: frozenset[int]  # of all records, flushed or not
    flushed: int
    end: int
    start: int
    durable_start: int


State = dict[str, PartitionState]  # by topic id


class Life:
    """The folder, its owner, and what was done so far."""

    def __init__(self, files: SimulatedFiles, seed: int, *, waits_for_fsync: bool = True) -> None:
        self.files = files
        self.rng = random.Random(seed)
        self.clock = FakeClock(START_MS)
        self.waits_for_fsync = waits_for_fsync
        self.histories: dict[str, History] = {}
        self.topic_ids: dict[TopicPartition, str] = {}
        self._durable_starts: dict[str, int] = {}
        self._sequences: dict[int, int] = {}
        self._producer_of: dict[str, int] = {}
        self._next_producer = 1000
        self._open_transactions: dict[str, int] = {}  # producer id by topic id
        self._next_topic = 0
        self._serial = 0
        self.log_dir: LogDir

    # -- opening and closing -------------------------------------------------------------------

    def open(self) -> None:
        durability = "fsync" if self.waits_for_fsync else "page_cache"
        self.log_dir = open_dir(self.files, self.clock, log_durability=durability)
        for tp, _ in list(self.log_dir.partition_folders()):
            self.log_dir.open_partition(tp, SETTINGS[tp])

    def create(self, tp: TopicPartition) -> None:
        self._next_topic += 1
        topic_id = f"id-{self._next_topic}"
        self.histories[topic_id] = History(tp)
        create_partition(self.log_dir, tp, topic_id, SETTINGS[tp])
        self.log_dir.fsync_directory()
        self.topic_ids[tp] = topic_id

    def delete_extra(self) -> None:
        self.log_dir.delete_partition(EXTRA, 500)
        self.log_dir.fsync_directory()
        del self.topic_ids[EXTRA]

    def close_and_reopen(self) -> None:
        self.log_dir.close()
        self.open()

    def die_and_reopen(self) -> None:
        """As after kill -9: nothing is flushed, nothing is said."""
        self.log_dir.abandon()
        self.open()

    # -- records -------------------------------------------------------------------------------

    def _made_batch(self, log: PartitionLog, history: History, base: int, *, plain: bool) -> bytes:
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 4))
        keys: list[bytes | None] = [
            None if rng.random() < 0.1 else b"key-%d" % rng.randrange(6) for _ in range(count)
        ]
        now_ms = self.clock.now_ms()
        timestamps = [now_ms - rng.choice((0, 0, 0, 700)) for _ in range(count)]
        values: list[bytes | None] = []
        for key in keys:
            self._serial += 1
            text = b"%d " % self._serial + b"x" * rng.choice((0, 10, 60, 60, 400))
            is_tombstone = key is not None and log.settings.compacts and rng.random() < 0.3
            values.append(None if is_tombstone else text)
        for number in range(count):
            history.rows[base + number] = Row(timestamps[number], keys[number], values[number])
        producer = None if plain else self._producer(log, count)
        data = batch(
            *values,
            keys=keys,
            timestamp=now_ms,
            timestamps=timestamps,
            codec=rng.choice(list(Codec)),
            producer=producer,
        )
        if producer is not None:
            history.sent.append(Sent(producer[0], base, base + count - 1, data))
        return data

    def _producer(self, log: PartitionLog, count: int) -> tuple[int, int, int] | None:
        if self.rng.random() < 0.5:
            return None
        topic_id = self.topic_ids[log.tp]
        producer_id = self._producer_of.get(topic_id)
        if producer_id is None or self.rng.random() < 0.1:
            self._next_producer += 1
            producer_id = self._producer_of[topic_id] = self._next_producer
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + count
        return producer_id, 0, sequence

    def append(self, log: PartitionLog) -> None:
        history = self.histories[self.topic_ids[log.tp]]
        if self.rng.random() < 0.2:
            first = self._made_batch(log, history, log.log_end_offset, plain=True)
            second_base = max(history.rows) + 1
            log.append(first + self._made_batch(log, history, second_base, plain=True))
        else:
            log.append(self._made_batch(log, history, log.log_end_offset, plain=False))

    def transact(self, log: PartitionLog) -> None:
        """Begin a transaction, write on in it, or end it. Its records have no keys."""
        topic_id = self.topic_ids[log.tp]
        producer_id = self._open_transactions.get(topic_id)
        if producer_id is not None and self.rng.random() < 0.6:
            kind = self.rng.choice(list(ControlType))
            marker = control_batch(kind, producer_id, 0, self.clock.now_ms())
            log.append(marker, is_control=True)
            del self._open_transactions[topic_id]
            return
        if producer_id is None:
            self._next_producer += 1
            producer_id = self._open_transactions[topic_id] = self._next_producer
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        self._serial += 1
        row = Row(self.clock.now_ms(), None, b"%d in a transaction" % self._serial)
        producer = (producer_id, 0, sequence)
        data = batch(row.value, timestamp=row.timestamp, producer=producer, transactional=True)
        history, base = self.histories[topic_id], log.log_end_offset
        history.rows[base] = row
        history.sent.append(Sent(producer_id, base, base, data))
        log.append(data)

    # -- operations ----------------------------------------------------------------------------

    def flush_late(self, log: PartitionLog) -> None:
        """The disk is slow: more is written before the plan is executed."""
        plan = log.flush_plan()
        self.append(log)
        if self.rng.random() < 0.5:
            log.roll()
        if plan is not None:
            if self.rng.random() < 0.5:
                self.append(log)
            plan.execute()
            log.flush_completed(plan)

    def flush_out_of_order(self, log: PartitionLog) -> None:
        """Two plans at once; the newer one is through first, the older one maybe never."""
        older = log.flush_plan()
        self.append(log)
        newer = log.flush_plan()
        if newer is not None:
            newer.execute()
            log.flush_completed(newer)
        if older is not None and self.rng.random() < 0.5:
            older.execute()
            log.flush_completed(older)

    def flush_fails(self, log: PartitionLog) -> None:
        """The disk refuses once; the log mends itself."""
        self.append(log)
        self.files.fail_on("sync", "", skip=self.rng.randrange(3))
        try:
            log.flush()
        except StorageError:
            self.files.clear_faults()
            run_inline(log.rewrite_tail())
        self.files.clear_faults()

    def raise_start(self, log: PartitionLog) -> None:
        log.raise_log_start(self.rng.randint(log.log_start_offset, log.high_watermark))
        run_inline(self.log_dir.write_log_starts())

    def truncate(self, log: PartitionLog) -> None:
        offset = self.rng.randint(log.log_start_offset, log.log_end_offset)
        history = self.histories[self.topic_ids[log.tp]]
        self._producer_of.pop(self.topic_ids[log.tp], None)
        log.truncate_to(offset)
        left = {record.offset for record in all_records(log)}
        history.truncated |= {o for o in history.rows if o >= log.log_start_offset} - left

    def retain(self, log: PartitionLog) -> None:
        self.clock.advance(self.rng.choice((0, 1000, 20_000)))
        enforce_retention(log)

    def compact(self, log: PartitionLog) -> None:
        map_bytes = self.rng.choice((24, 128 * 1024))
        report = compact_now(log, map_bytes)
        self.log_dir.cleaner_offsets[log.tp] = report.next_dirty_offset

    def compact_by_plan(self, log: PartitionLog) -> None:
        """As the cleaner does: the plan is executed while the log takes appends."""
        plan = plan_due_compaction(log, self.log_dir.cleaner_offsets.get(log.tp, 0))
        if plan is None:
            return
        plan.execute()
        self.append(log)
        if self.rng.random() < 0.3:
            self.raise_start(log)
            enforce_retention(log)
        self.log_dir.cleaner_offsets[log.tp] = run_inline(plan.complete()).next_dirty_offset

    def extra(self) -> None:
        if EXTRA in self.topic_ids:
            self.delete_extra()
            if self.rng.random() < 0.3:
                self.create(EXTRA)
        else:
            self.create(EXTRA)

    def tidy(self) -> None:
        self.clock.advance(1500)
        run_inline(self.log_dir.remover.remove(self.clock.now_ms()))

    def _pick(self) -> tuple[str, Callable[[], None]]:
        tp = self.rng.choice(
            [tp for tp in (EVENTS, EVENTS, TABLE, TABLE, EXTRA) if tp in self.topic_ids]
        )
        log = self.log_dir.logs[tp]
        on_log: list[tuple[int, Callable[[PartitionLog], None]]] = [
            (30, self.append),
            (14, PartitionLog.flush),
            (4, self.flush_late),
            (4, self.flush_out_of_order),
            (3, self.flush_fails),
            (3, PartitionLog.roll),
            (3, self.raise_start),
            (3, self.truncate if tp == EVENTS else self.compact_by_plan),
            (0 if tp == EVENTS else 12, self.transact),
            (4, self.retain if tp != TABLE else self.compact),
        ]
        on_folder: list[tuple[int, Callable[[], None]]] = [
            (2, lambda: run_inline(self.log_dir.write_checkpoints())),
            (2, self.tidy),
            (3, self.extra),
            (2, self.close_and_reopen),
            (2, self.die_and_reopen),
        ]
        roll = self.rng.randrange(sum(w for w, _ in on_log) + sum(w for w, _ in on_folder))
        for weight, act in on_log:
            roll -= weight
            if roll < 0:
                return f"{act.__name__} {tp}", partial(act, log)
        for weight, do in on_folder:
            roll -= weight
            if roll < 0:
                return do.__name__, do
        raise AssertionError("the weights add up")

    def operations(self, count: int) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "open", self.open
        yield "create events", lambda: self.create(EVENTS)
        yield "create table", lambda: self.create(TABLE)
        for _ in range(count):
            self.clock.advance(self.rng.choice((0, 10, 500)))
            yield self._pick()
        yield "close", self.log_dir.close

    # -- looking at it -------------------------------------------------------------------------

    def state(self, done: str) -> State:
        """What a reader could see now, after the operation `done`."""
        found: State = {}
        for tp, topic_id in self.topic_ids.items():
            log = self.log_dir.logs[tp]
            if done.startswith(("raise_start", "compact_by_plan", "write_checkpoints", "close")):
                self._durable_starts[topic_id] = log.log_start_offset
            durable_start = max(self._durable_starts.get(topic_id, 0), log.segments.first_base)
            found[topic_id] = PartitionState(
                tp,
                frozenset(record.offset for record in all_records(log, unflushed=True)),
                log.flushed_offset,
                log.log_end_offset,
                log.log_start_offset,
                durable_start,
            )
        return found


def live(life: Life, count: int) -> Iterator[str]:
    """Do one operation after the other; yields the name of each before it is done."""
    for name, act in life.operations(count):
        yield name
        act()


@dataclass
class Recording:
    """A life without accidents: all that was written, and the state before each operation.

    Operation number i leads from `states[i]` to `states[i + 1]`.
    """

    seed: int
    names: list[str]
    states: list[State]
    histories: dict[str, History]


def recorded(seed: int, count: int, *, waits_for_fsync: bool = True) -> Recording:
    """Live once and remember."""
    life = Life(SimulatedFiles(), seed, waits_for_fsync=waits_for_fsync)
    names: list[str] = []
    states: list[State] = [{}]
    for name in live(life, count):
        if names:
            states.append(life.state(names[-1]))
        names.append(name)
    # The last operation was a clean stop: what was there stays, and all of it is on disk.
    states.append({topic: old._replace(flushed=old.end) for topic, old in states[-1].items()})
    return Recording(seed, names, states, life.histories)
