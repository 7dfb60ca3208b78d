"""Small logs for tests: settings that make many segments, folders that open, reads that check."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from uuid import UUID

from strandlog.clock import Clock
from strandlog.config.tables.broker import broker_settings
from strandlog.config.tables.topic import LogSettings, log_settings
from strandlog.model import Record, TopicPartition
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec
from strandlog.storage.files import Files
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.paths import SEGMENT_MANIFEST
from strandlog.storage.segment.manifest import NOTHING, SegmentManifest, read_manifest
from strandlog.storage.segment.scan import batches_of_read
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock

TP = TopicPartition("events", 0)
DATA = "data"
FOLDER = "data/events-0"
START_MS = 1_700_000_000_000


def small_settings(**changes: object) -> LogSettings:
    """Segments of a few batches and an index entry for nearly each; `changes` as attributes."""
    small: dict[str, object] = {
        "segment_bytes": 600,
        "index_interval_bytes": 100,
        "file_delete_delay_ms": 1000,
        "delete_retention_ms": 1000,
    }
    return dataclasses.replace(log_settings(), **(small | changes))  # type: ignore[arg-type]


def uuids(start: int = 1) -> Callable[[], UUID]:
    """Ids that are the same in every run."""
    numbers = count(start)
    return lambda: UUID(int=next(numbers))


class CountingFiles:
    """A disk that counts what is asked of it."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._files, name)


def open_dir(files: Files, clock: Clock | None = None, **options: object) -> LogDir:
    """Own the folder `data` of a disk."""
    return LogDir(
        DATA,
        files,
        clock or FakeClock(START_MS),
        uuids(),
        dataclasses.replace(broker_settings(), **options),  # type: ignore[arg-type]
    )


def create_partition(
    log_dir: LogDir, tp: TopicPartition, topic_id: str, settings: LogSettings
) -> None:
    """Create an empty partition, as a topic change does."""
    log_dir.clear_checkpoints([tp])
    logs = log_dir.create_files([tp], topic_id, settings)
    run_inline(log_dir.fsync_new(logs))
    log_dir.register(logs[0])


def new_log(
    files: Files, clock: Clock | None = None, settings: LogSettings | None = None, **options: object
) -> tuple[LogDir, PartitionLog]:
    """A folder with one empty partition in it, durable."""
    log_dir = open_dir(files, clock, **options)
    create_partition(log_dir, TP, "topic-id", settings or small_settings())
    log_dir.fsync_directory()
    return log_dir, log_dir.logs[TP]


def reopen(
    files: Files, clock: Clock | None = None, settings: LogSettings | None = None, **options: object
) -> tuple[LogDir, PartitionLog]:
    """The folder and its partition, opened again."""
    log_dir = open_dir(files, clock, **options)
    return log_dir, log_dir.open_partition(TP, settings or small_settings())


def remove_index_checksums(files: Files, folder: str) -> None:
    """Rewrite the manifest of a partition as older versions wrote it, without checksums of the
    transaction indexes."""
    claims = read_manifest(files, folder).claims
    files.remove(f"{folder}/{SEGMENT_MANIFEST}")
    manifest = SegmentManifest(files, folder, NOTHING)
    manifest.claim([claim._replace(aborted_crc=None) for claim in claims])
    manifest.withdraw(0, 0)  # the last entry is no claim, so no checksum after it can be lost


def batch(
    *values: bytes | None,
    keys: list[bytes | None] | None = None,
    timestamp: int = START_MS,
    timestamps: list[int] | None = None,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
) -> bytes:
    """A batch of these values; `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return bytes(
        build_batch(
            timestamp,
            list(values),
            keys,
            codec=codec,
            timestamps=timestamps,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )


def fill(log: PartitionLog, count_: int, *, prefix: bytes = b"v", advance_ms: int = 0) -> None:
    """Append that many single-record batches with values v0, v1, ... by offset."""
    for _ in range(count_):
        offset = log.log_end_offset
        log.append(batch(b"%s%d" % (prefix, offset), timestamp=log.context.clock.now_ms()))
        if advance_ms:
            clock = log.context.clock
            assert isinstance(clock, FakeClock)
            clock.advance(advance_ms)


def iter_records(
    log: PartitionLog, start: int | None = None, *, max_bytes: int = 400, unflushed: bool = False
) -> Iterator[Record]:
    """Everything from `start` on, in reads of about `max_bytes`, every batch checked."""
    offset = log.log_start_offset if start is None else start
    end_offset = log.log_end_offset if unflushed else log.high_watermark
    while offset < end_offset:
        data = read(log, offset, max_bytes, unflushed=unflushed)
        if not data:
            return
        before = offset
        for view in batches_of_read(data, path=log.folder, offset=offset, end_offset=end_offset):
            if not view.header.is_control and view.header.record_count:
                yield from view.records(*log.tp, max(offset, log.log_start_offset))
            offset = view.header.next_offset
        assert offset > before, f"a read at {before} did not get on"


def all_records(
    log: PartitionLog, *, unflushed: bool = False, max_bytes: int = 400
) -> list[Record]:
    """Every record that a reader sees."""
    return list(iter_records(log, max_bytes=max_bytes, unflushed=unflushed))


def values(log: PartitionLog, *, unflushed: bool = False) -> list[bytes | None]:
    """The values that a reader sees."""
    return [record.value for record in all_records(log, unflushed=unflushed)]


def offsets(log: PartitionLog, *, unflushed: bool = False) -> list[int]:
    """The offsets that a reader sees."""
    return [record.offset for record in all_records(log, unflushed=unflushed)]
