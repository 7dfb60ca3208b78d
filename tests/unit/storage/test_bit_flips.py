"""Bit rot: after one flipped bit no wrong record is served, and no other record is lost.

A small log of several segments is built with everything in it (all codecs, keys, nulls, headers of
producers, equal and falling timestamps), then every file is damaged at many places, once after a
clean stop and once after kill -9. Everything read afterwards is compared with what was
written. Errors have a type of the project, and reports name the damage.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from tests.support.examples import thinned
from tests.support.log_builders import (
    FOLDER,
    START_MS,
    TP,
    all_records,
    batch,
    new_log,
    open_dir,
    small_settings,
)

from strandlog.errors import CorruptSegmentError, StrandlogError
from strandlog.model import Record
from strandlog.record.batch_header import HEADER_SIZE, read_header
from strandlog.record.codecs import Codec
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.read import read
from strandlog.storage.partition.time_lookup import find_timestamp
from strandlog.storage.segment.scan import batches_of_read
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

pytestmark = pytest.mark.slow

SETTINGS = small_settings(segment_bytes=700, index_interval_bytes=120)
# Every n-th bit is tried. A damaged recovery point costs a recovery of everything.
RATIO = {".index": 3, ".timeindex": 5, ".snapshot": 7, "recovery-point": 7}


@dataclass(frozen=True)
class Specimen:
    """A folder, what was written to it, and which records share a batch."""

    disk: SimulatedFiles
    records: tuple[Record, ...]
    batches: tuple[tuple[str, int, int, int, int], ...]  # path, position, size, first, last offset

    def damaged_offsets(self, path: str, position: int) -> set[int]:
        """The offsets of the batch that a byte belongs to."""
        for name, start, size, first, last in self.batches:
            if name == path and start <= position < start + size:
                return set(range(first, last + 1))
        return set()


def build(how: str, *, compacted: bool = False) -> Specimen:
    """A log with all that there is, stopped in one of two ways."""
    rng = random.Random(7)
    files, clock = SimulatedFiles(), FakeClock(START_MS)
    log_dir, log = new_log(files, clock, SETTINGS)
    sequence = 0
    for number in range(44):
        count = rng.choice((1, 1, 2, 5))
        keys = [rng.choice((None, b"", b"k%d" % rng.randrange(5))) for _ in range(count)]
        contents = [
            rng.choice((None, b"", b"value %d.%d " % (number, n) * 3)) for n in range(count)
        ]
        if number % 3 == 0:  # many batches have the same time, some an earlier one
            clock.advance(rng.choice((0, 0, 50)))
        times = [clock.now_ms() - rng.choice((0, 0, 30)) for _ in range(count)]
        producer = (77, 0, sequence) if number % 2 else None
        sequence += count if producer else 0
        log.append(
            batch(
                *contents,
                keys=keys,
                timestamp=times[0],
                timestamps=times,
                codec=list(Codec)[number % 5],
                producer=producer,
            )
        )
        if number in (12, 30):
            log.flush()
    if compacted:
        compact_now(log)
        log.append(batch(b"after", b"compaction", timestamp=clock.now_ms()))
    log.flush()
    records = tuple(all_records(log))
    run_inline(log_dir.write_checkpoints())
    if how == "clean":
        log_dir.close()
    return Specimen(files.after_kill(), records, tuple(_batches(files)))


def _batches(files: SimulatedFiles) -> list[tuple[str, int, int, int, int]]:
    found = []
    for path, data in files.contents().items():
        position = 0
        while path.endswith(".log") and position + HEADER_SIZE <= len(data):
            header = read_header(data, position)
            size = header.size_bytes
            found.append((path, position, size, header.base_offset, header.last_offset))
            position += size
    return found


SPECIMENS = {how: build(how) for how in ("clean", "kill")}


def opened(disk: SimulatedFiles) -> tuple[LogDir, PartitionLog]:
    log_dir = open_dir(disk, FakeClock(START_MS + 10_000))
    return log_dir, log_dir.open_partition(TP, SETTINGS)


def read_by_following(log: PartitionLog) -> tuple[list[Record], list[CorruptSegmentError]]:
    """As a consumer that continues after damage at the resume offset of the error."""
    found: list[Record] = []
    errors: list[CorruptSegmentError] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        start = offset
        try:
            data = read(log, offset, 300)
            if not data:
                break
            for view in batches_of_read(
                data, path=log.folder, offset=offset, end_offset=log.high_watermark
            ):
                found += view.records(*TP, offset)
                offset = view.header.next_offset
        except CorruptSegmentError as error:
            if offset == start:
                errors.append(error)
                assert error.resume_offset is not None
                assert error.resume_offset > offset, "the error sends the reader back"
                offset = error.resume_offset
        assert offset > start
    return found, errors


def read_directly(log: PartitionLog, offset: int) -> list[Record]:
    """The batch of one offset; nothing when it is damaged."""
    try:
        data = read(log, offset, 1)
        views = batches_of_read(data, path="", offset=offset, end_offset=log.high_watermark)
        return [record for view in views for record in view.records(*TP)]
    except CorruptSegmentError:
        return []


def check_log(log: PartitionLog, specimen: Specimen, hidden: set[int], rng: random.Random) -> None:
    """All records but the hidden ones can be read, by following and directly and by time."""
    written = {record.offset: record for record in specimen.records}
    assert log.log_start_offset == 0
    assert log.high_watermark == log.log_end_offset == specimen.records[-1].offset + 1
    found, errors = read_by_following(log)
    for record in found:
        assert record == written[record.offset]
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    lost = set(written) - set(offsets)
    assert lost <= hidden, f"{sorted(lost - hidden)} are gone as well"
    if lost:
        assert errors or log.last_report.problems, "records are gone without a report"
    for offset in rng.sample(sorted(written), 4):
        direct = read_directly(log, offset)
        for record in direct:
            assert record == written[record.offset]
        assert offset in hidden or any(record.offset == offset for record in direct)
    readable = [record for record in specimen.records if record.offset not in hidden]
    for wanted in rng.sample(specimen.records, 4):
        answer = run_inline(find_timestamp(log, wanted.timestamp))
        expected = next((r for r in readable if r.timestamp >= wanted.timestamp), None)
        within_damage = answer is not None and answer.offset in hidden
        if within_damage and answer is not None:
            assert written[answer.offset].timestamp == answer.timestamp
        else:
            assert answer == (expected and (expected.timestamp, expected.offset))


def check_going_on(disk: SimulatedFiles, log_dir: LogDir, log: PartitionLog) -> None:
    """The damaged log takes records and keeps them."""
    end = log.log_end_offset
    assert log.append(batch(b"more", timestamp=START_MS + 10_000)).base_offset == end
    log.flush()
    assert read_directly(log, end)[-1].value == b"more"
    log_dir.close()
    _, log = opened(disk)
    assert log.log_end_offset == end + 1
    assert read_directly(log, end)[-1].value == b"more"


def paths_of(suffix: str) -> list[str]:
    return sorted(path for path in SPECIMENS["clean"].disk.contents() if path.endswith(suffix))


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("path", paths_of(".log"))
def test_a_flipped_bit_in_a_segment_hides_only_its_batch(path: str, how: str) -> None:
    specimen = SPECIMENS[how]
    rng = random.Random(path + how)
    size = specimen.disk.size(path)
    headers = [
        8 * start + bit
        for name, start, _, _, _ in specimen.batches
        if name == path
        for bit in range(8 * HEADER_SIZE)
    ]
    bits = rng.sample(headers, len(headers) // 14) + rng.sample(range(8 * size), size // 16)
    for number, bit in enumerate(thinned(bits)):
        disk = specimen.disk.after_kill()
        disk.flip_bit(path, bit)
        log_dir, log = opened(disk)
        hidden = specimen.damaged_offsets(path, bit // 8)
        check_log(log, specimen, hidden, rng)
        if number % 8 == 0:
            check_going_on(disk, log_dir, log)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "recovery-point"])
def test_a_flipped_bit_in_a_rebuildable_file_hides_no_record(suffix: str, how: str) -> None:
    specimen = SPECIMENS[how]
    rng = random.Random(suffix + how)
    paths = sorted(path for path in specimen.disk.contents() if path.endswith(suffix))
    assert paths
    for path in paths:
        for bit in thinned(range(0, 8 * specimen.disk.size(path), RATIO[suffix])):
            disk = specimen.disk.after_kill()
            disk.flip_bit(path, bit)
            log_dir, log = opened(disk)
            check_log(log, specimen, set(), rng)
            retry = batch(*[r.value for r in specimen.records[-1:]], producer=(77, 0, 0))
            with pytest.raises(StrandlogError):
                log.append(retry)  # the producer is known: its first batch is long gone
            if bit % 16 == 0:
                check_going_on(disk, log_dir, log)


def test_a_damaged_snapshot_or_recovery_point_is_reported() -> None:
    specimen = SPECIMENS["clean"]
    snapshots = [path for path in specimen.disk.contents() if path.endswith(".snapshot")]
    for path in (max(snapshots), f"{FOLDER}/recovery-point"):
        disk = specimen.disk.after_kill()
        disk.flip_bit(path, 8 * disk.size(path) - 1)
        _, log = opened(disk)
        assert any(path in problem for problem in log.last_report.problems)


@pytest.mark.parametrize("how", ["clean", "kill"])
@pytest.mark.parametrize("name", ["log-start", "cleaner", "replication", "recovery-point"])
def test_a_flipped_bit_in_a_checkpoint_hides_no_record(name: str, how: str) -> None:
    specimen = SPECIMENS[how]
    for path in (f"data/{name}-offset-checkpoint", f"data/{name}-offset-checkpoint.previous"):
        if not specimen.disk.exists(path):
            continue
        for bit in thinned(range(0, 8 * specimen.disk.size(path), 5)):
            disk = specimen.disk.after_kill()
            disk.flip_bit(path, bit)
            log_dir, log = opened(disk)
            assert all_records(log) == list(specimen.records)
            if name in ("log-start", "cleaner") and not path.endswith("previous"):
                assert any(path in problem for problem in log_dir.problems)


@pytest.mark.parametrize(
    "name", ["meta.properties", ".kafka_cleanshutdown", "events-0/partition.metadata"]
)
def test_a_flipped_bit_in_a_file_about_the_folder_hides_no_record(name: str) -> None:
    specimen = SPECIMENS["clean"]
    for bit in range(0, 8 * specimen.disk.size(f"data/{name}"), 7):
        disk = specimen.disk.after_kill()
        disk.flip_bit(f"data/{name}", bit)
        log_dir, log = opened(disk)
        assert [tp for tp, _ in log_dir.partition_folders()] == [TP]
        assert all_records(log) == list(specimen.records)


def test_a_log_opens_and_reports_that_a_checkpoint_and_its_copy_are_damaged() -> None:
    disk = SPECIMENS["clean"].disk.after_kill()
    log_dir, log = opened(disk)
    log.raise_log_start(9)
    run_inline(log_dir.write_log_starts())
    log.raise_log_start(20)
    log_dir.close()
    for name in ("log-start-offset-checkpoint", "log-start-offset-checkpoint.previous"):
        disk.flip_bit(f"data/{name}", 2)
    log_dir, log = opened(disk)
    assert len(log_dir.problems) == 2
    assert all_records(log) == list(SPECIMENS["clean"].records)


def neighbours(specimen: Specimen, path: str, position: int) -> set[int]:
    """The offsets of the batches before and after one."""
    places = [found[:2] for found in specimen.batches]
    number = places.index((path, position))
    close = specimen.batches[max(0, number - 1) : number + 2]
    return {offset for _, _, _, first, last in close for offset in range(first, last + 1)}


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_a_flipped_bit_in_a_compacted_log_never_gives_a_wrong_value(how: str) -> None:
    """The documented limit: next to a gap a base offset may move within the gap. Nothing else of a
    record may change, and no other record may go."""
    specimen = build(how, compacted=True)
    rng = random.Random(how)
    written = {record.offset: record for record in specimen.records}
    moved = 0
    for path, start, size, first, last in specimen.batches:
        header_bits = [8 * start + bit for bit in range(8 * HEADER_SIZE)]
        body_bits = range(8 * (start + HEADER_SIZE), 8 * (start + size), 11)
        bits = rng.sample(header_bits, 20) + rng.sample(body_bits, min(3, len(body_bits)))
        for bit in thinned(bits):
            disk = specimen.disk.after_kill()
            disk.flip_bit(path, bit)
            _, log = opened(disk)
            hidden = specimen.damaged_offsets(path, bit // 8)
            found, _ = read_by_following(log)
            is_base_offset = bit // 8 - start < 8
            wrong = [record for record in found if record != written.get(record.offset)]
            if wrong:
                assert is_base_offset, f"bit {bit} of {path}"
                moved += 1
            right = {record.offset for record in found} - {record.offset for record in wrong}
            if is_base_offset:  # with gaps on both sides either of two neighbours may be blamed
                hidden |= neighbours(specimen, path, start)
            assert set(written) - right <= hidden, "another record is gone"
            assert len(wrong) <= last - first + 1
    assert moved < 12 * len(specimen.batches), "the gaps leave little room"


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_compaction_and_retention_of_a_damaged_log_lose_no_intact_record(how: str) -> None:
    specimen = SPECIMENS[how]
    rng = random.Random(how)
    for path, start, size, first, last in specimen.batches[::5]:
        disk = specimen.disk.after_kill()
        disk.flip_bit(path, 8 * start + rng.randrange(8 * 12, 8 * size))
        _, log = opened(disk)
        assert enforce_retention(log) == 0
        before, _ = read_by_following(log)
        try:
            compact_now(log)
        except CorruptSegmentError as error:
            assert error.path == path
            after, _ = read_by_following(log)
            assert after == before, "a compaction that gave up must not change anything"
        else:
            after, _ = read_by_following(log)
            assert set(after) <= set(before)
            keyless = {r.offset for r in before if r.key is None} - set(range(first, last + 1))
            assert keyless <= {r.offset for r in after}


def test_batches_inside_a_value_are_not_read_as_records_after_damage() -> None:
    """A log of logs: its values are batches. Damage must not let them pass for records."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=10**6))
    inner = b"".join(batch(b"not", b"a", b"record", timestamp=START_MS) for _ in range(3))
    for number in range(6):
        log.append(batch(b"%d " % number + inner + b"!", timestamp=START_MS))
    log.flush()
    records = all_records(log)
    log_dir.close()
    path = f"{FOLDER}/{0:020d}.log"
    size = files.size(path) // 6
    for number in range(6):
        for bit in range(number % 4, 8 * HEADER_SIZE, 4):
            disk = files.after_kill()
            disk.flip_bit(path, 8 * number * size + bit)
            _, log = opened(disk)
            found, _ = read_by_following(log)
            assert set(found) <= set(records)
            assert {r.offset for r in records} - {r.offset for r in found} <= {number}
