"""Segment files are Kafka's: kafka-python and aiokafka read ours, and we read theirs.

Whole `.log` files on a real disk, not single batches (those are in tests/unit/record).
kafka-python is lent aiokafka's snappy, lz4 and zstd, whose packages it would need otherwise.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import codec as aiokafka_codec
from aiokafka.record import default_records as aiokafka_batches
from aiokafka.record import memory_records as aiokafka_memory
from tests.support.log_builders import (
    START_MS,
    TP,
    all_records,
    create_partition,
    small_settings,
    uuids,
)

from strandlog.model import Headers
from strandlog.record.batch_header import stamp
from strandlog.record.builder import build_batch
from strandlog.record.codecs import Codec
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.files import DiskFiles
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a dated way
    import kafka.codec
    import kafka.record.default_records as kafka_batches
    import kafka.record.memory_records as kafka_memory

Row = tuple[int, int, bytes | None, bytes | None, Headers]

SETTINGS = small_settings(segment_bytes=1500, cleanup_policy=("compact",))
READERS: dict[str, Any] = {
    "kafka-python": kafka_memory.MemoryRecords,
    "aiokafka": aiokafka_memory.MemoryRecords,
    "aiokafka without C": aiokafka_memory._MemoryRecordsPy,
}
WRITERS: dict[str, Any] = {
    "kafka-python": kafka_batches.DefaultRecordBatchBuilder,
    "aiokafka": aiokafka_batches.DefaultRecordBatchBuilder,
    "aiokafka without C": aiokafka_batches._DefaultRecordBatchBuilderPy,
}


@pytest.fixture(scope="module", autouse=True)
def _kafka_python_knows_every_codec() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("snappy", "lz4", "zstd"):
            patch.setattr(kafka.codec, f"has_{name}", lambda: True)
            for verb in ("encode", "decode"):
                function = getattr(aiokafka_codec, f"{name}_{verb}")
                patch.setattr(kafka_batches, f"{name}_{verb}", function)
        yield


def rows(start: int, count: int) -> list[Row]:
    """Records of every shape: null, empty and long keys and values, none to three headers."""
    extras: list[Headers] = [(), (("a", b"1"),), (("a", None), ("a", b""), ("\N{SNOWMAN}", b"x"))]
    return [
        (
            offset,
            START_MS + offset * 10 - offset % 3 * 4,
            (None, b"", b"key %d" % (offset % 7))[offset % 3],
            (b"value %d" % offset, None, b"", b"long " * 40)[offset % 4],
            extras[offset % 5 % 3],
        )
        for offset in range(start, start + count)
    ]


def open_log(tmp_path: Path, *, create: bool = False) -> tuple[LogDir, PartitionLog]:
    log_dir = LogDir(str(tmp_path / "data"), DiskFiles(), FakeClock(START_MS), uuids())
    if create:
        create_partition(log_dir, TP, "topic-id", SETTINGS)
        return log_dir, log_dir.logs[TP]
    return log_dir, log_dir.open_partition(TP, SETTINGS)


def append_rows(log: PartitionLog, written: list[Row], codec: Codec) -> None:
    _, times, keys, values, extras = (list(column) for column in zip(*written, strict=True))
    log.append(build_batch(0, values, keys, extras, codec=codec, timestamps=times))


def log_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / "events-0").glob("*.log"))


def read_by(reader: str, file: Path) -> list[Row]:
    """What the other library sees in a segment file."""
    found: list[Row] = []
    records = READERS[reader](file.read_bytes())
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += [
            (r.offset, r.timestamp, r.key, r.value, tuple(map(tuple, r.headers))) for r in one
        ]
    return found


def ours(log: PartitionLog) -> list[Row]:
    return [record[2:] for record in all_records(log)]


@pytest.mark.parametrize("codec", list(Codec))
def test_they_read_our_segment_files(tmp_path: Path, codec: Codec) -> None:
    log_dir, log = open_log(tmp_path, create=True)
    for start in range(0, 120, 6):
        append_rows(log, rows(start, 6), codec)
    log_dir.close()
    files = log_files(tmp_path)
    assert len(files) >= 2
    for reader in READERS:
        found = [read_by(reader, file) for file in files]
        assert [row for part in found for row in part] == rows(0, 120)
        assert [f"{part[0][0]:020d}.log" for part in found] == [file.name for file in files]


def test_they_read_a_file_with_a_mix_of_all_codecs(tmp_path: Path) -> None:
    log_dir, log = open_log(tmp_path, create=True)
    for number in range(30):
        append_rows(log, rows(number * 3, 3), list(Codec)[number % 5])
    log_dir.close()
    for reader in READERS:
        found = [row for file in log_files(tmp_path) for row in read_by(reader, file)]
        assert found == rows(0, 90)


@pytest.mark.parametrize("codec", list(Codec))
def test_they_read_what_compaction_leaves(tmp_path: Path, codec: Codec) -> None:
    log_dir, log = open_log(tmp_path, create=True)
    for start in range(0, 120, 6):
        append_rows(log, rows(start, 6), codec)
    report = compact_now(log)
    assert report.records_removed > 20
    kept = ours(log)
    log_dir.close()
    last = {key: offset for offset, _, key, _, _ in rows(0, 120) if key is not None}
    assert kept == [row for row in rows(0, 120) if row[2] is None or last[row[2]] == row[0]]
    for reader in READERS:
        found = [row for file in log_files(tmp_path) for row in read_by(reader, file)]
        assert found == kept


def their_batch(writer: str, written: list[Row], codec: Codec) -> bytearray:
    builder = WRITERS[writer](2, int(codec), 0, -1, -1, -1, 1 << 20)
    for index, (_, timestamp, key, value, extra) in enumerate(written):
        builder.append(index, timestamp, key, value, list(extra))
    built = bytearray(builder.build())
    stamp(built, written[0][0], 0)
    return built


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_segment_files_of_their_batches(tmp_path: Path, writer: str, codec: Codec) -> None:
    open_log(tmp_path, create=True)[0].close()
    folder = tmp_path / "data" / "events-0"
    for file in folder.glob("0*"):
        file.unlink()
    (folder / "recovery-point").unlink(missing_ok=True)
    for base in (0, 40, 80):
        pieces = [their_batch(writer, rows(base + n, 8), codec) for n in range(0, 40, 8)]
        (folder / f"{base:020d}.log").write_bytes(b"".join(pieces))
    log_dir, log = open_log(tmp_path)
    [problem] = log.last_report.problems
    assert "recovery-point is missing" in problem
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (0, 120, 3)
    assert ours(log) == rows(0, 120)
    append_rows(log, rows(120, 4), codec)
    log.flush()
    assert ours(log) == rows(0, 124)
    log_dir.close()
    for reader in READERS:
        found = [row for file in log_files(tmp_path) for row in read_by(reader, file)]
        assert found == rows(0, 124)


@pytest.mark.parametrize("writer", WRITERS)
def test_their_files_get_indexes_in_kafkas_format(tmp_path: Path, writer: str) -> None:
    open_log(tmp_path, create=True)[0].close()
    folder = tmp_path / "data" / "events-0"
    (folder / "recovery-point").unlink(missing_ok=True)
    pieces = [their_batch(writer, rows(n, 8), Codec.NONE) for n in range(0, 80, 8)]
    (folder / f"{0:020d}.log").write_bytes(b"".join(pieces[:5]))
    (folder / f"{40:020d}.log").write_bytes(b"".join(pieces[5:]))
    log_dir, log = open_log(tmp_path)
    for offset, timestamp, *_ in rows(0, 80):
        first = min((o, t) for o, t, *_ in rows(0, 80) if t >= timestamp)
        found = run_inline(find_timestamp(log, timestamp))
        assert found is not None, offset
        assert (found.offset, found.timestamp) == first
    log_dir.close()
    ends = {sum(map(len, pieces[:n])): n * 8 + 7 for n in range(1, 5)}
    index = struct.iter_unpack(">ii", (folder / f"{0:020d}.index").read_bytes())
    assert {position: offset for offset, position in index} == ends
    times = list(struct.iter_unpack(">qi", (folder / f"{0:020d}.timeindex").read_bytes()))
    assert times[-1] == (max(row[1] for row in rows(32, 8)), 39)
    assert times == sorted(set(times))
