"""Verification of files: damage is found and reported, and intact files have no findings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.examples import thinned

import strandlog
from strandlog.errors import UnknownLayoutError
from strandlog.model import TopicPartition
from strandlog.record.batch_header import LEADER_EPOCH_POSITION, MAGIC_POSITION
from strandlog.storage.files import DiskFiles
from strandlog.storage.readonly.dump import batch_records, read_index, read_time_index, scan_file
from strandlog.storage.readonly.verify import look_at_partition, partition_folders, verify_state
from strandlog.storage.segment.manifest import SegmentManifest, read_manifest
from strandlog.storage.segment.scan import Batch, Damage

FILES = DiskFiles()


def _fill(path: Path, *, batches: int = 12, partitions: int = 1, acks: str = "all") -> None:
    """A folder with a topic `t` of several segments and index entries."""
    config = {"segment.bytes": 2048, "index.interval.bytes": 100}
    with strandlog.open(path) as log:
        log.create_topic("t", partitions, config)
        with log.producer("all") as producer:
            for number in range(batches):
                values = [b"value %d.%d" % (number, step) for step in range(20)]
                producer.send_batch("t", values)


def _folder(path: Path, partition: int = 0) -> str:
    return str(path / f"t-{partition}")


def _logs(path: Path, partition: int = 0) -> list[Path]:
    return sorted((path / f"t-{partition}").glob("*.log"))


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_an_intact_folder_has_no_findings_and_is_counted(tmp_path: Path) -> None:
    _fill(tmp_path, batches=24, partitions=2)
    assert partition_folders(FILES, str(tmp_path)) == [_folder(tmp_path, 0), _folder(tmp_path, 1)]
    seen: list[int] = []
    reports = [
        look_at_partition(FILES, folder, on_bytes=seen.append)
        for folder in partition_folders(FILES, str(tmp_path))
    ]
    assert [report.findings for report in reports] == [[], []]
    assert sum(report.records for report in reports) == 24 * 20
    assert all(report.segments > 1 and report.codecs["none"] > 1 for report in reports)
    assert sum(report.size_bytes for report in reports) == sum(seen)
    assert reports[0].name == "t-0"
    assert (reports[0].start_offset, reports[0].end_offset) == (0, 240)
    assert 0 < reports[0].first_timestamp <= reports[0].last_timestamp
    assert verify_state(FILES, str(tmp_path), ["topics.json"]) == []


class _BusyOwner(DiskFiles):
    """A disk on which the owner replaces the producer snapshot after every listing."""

    def list_dir(self, path: str) -> dict[str, int]:
        names = super().list_dir(path)
        snapshots = [name for name in names if name.endswith(".snapshot")]
        for name in snapshots:
            newer = f"{int(name.partition('.')[0]) + 1:020d}.snapshot"
            Path(path, name).rename(Path(path, newer))
        return names


def test_a_look_succeeds_beside_an_owner_that_keeps_replacing_its_snapshot(tmp_path: Path) -> None:
    """It raised FileNotFoundError after five attempts."""
    _fill(tmp_path)
    assert list(Path(_folder(tmp_path)).glob("*.snapshot"))
    assert look_at_partition(_BusyOwner(), _folder(tmp_path)).findings == []


def test_a_look_without_checksums_counts_the_same(tmp_path: Path) -> None:
    _fill(tmp_path)
    thorough = look_at_partition(FILES, _folder(tmp_path))
    assert look_at_partition(FILES, _folder(tmp_path), verifies=False) == thorough


def test_a_partition_folder_is_accepted_as_the_path(tmp_path: Path) -> None:
    _fill(tmp_path)
    assert partition_folders(FILES, _folder(tmp_path)) == [_folder(tmp_path)]


@pytest.mark.parametrize("name", ["nothing", "file", "other"])
def test_paths_that_are_no_log_folder_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "readme").write_text("x")
    with pytest.raises(UnknownLayoutError):
        partition_folders(FILES, str(tmp_path / name))


def test_an_empty_log_has_no_partitions(tmp_path: Path) -> None:
    strandlog.open(tmp_path).close()
    assert partition_folders(FILES, str(tmp_path)) == []


def test_a_flipped_bit_is_found_wherever_a_checksum_or_the_next_batch_shows_it(
    tmp_path: Path,
) -> None:
    _fill(tmp_path, batches=3)
    (path,) = _logs(tmp_path)
    intact = path.read_bytes()
    batches = [item for item in scan_file(FILES, str(path)) if isinstance(item, Batch)]
    # No checksum covers offset and epoch, and nothing follows the last batch to contradict them.
    blind = {*range(8), *range(LEADER_EPOCH_POSITION, MAGIC_POSITION)}
    blind = {batches[-1].position + byte for byte in blind}
    missed = []
    for position in thinned(range(len(intact))):
        if position not in blind:
            _flip(path, position)
            if not look_at_partition(FILES, _folder(tmp_path)).is_damaged:
                missed.append(position)
            path.write_bytes(intact)
    assert not missed


def test_damage_is_named_by_position_and_offset_and_the_rest_is_still_counted(
    tmp_path: Path,
) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0]
    batches = [item for item in scan_file(FILES, str(path)) if isinstance(item, Batch)]
    hurt = batches[1]
    _flip(path, hurt.position + 80)
    report = look_at_partition(FILES, _folder(tmp_path))
    assert [finding.kind for finding in report.findings] == ["damage"]
    finding = report.findings[0]
    assert (finding.path, finding.position, finding.offset) == (str(path), hurt.position, 20)
    assert "offsets 20 to 39" in finding.text
    assert report.records == 11 * 20
    assert report.missing_offsets == 20


def test_damage_at_the_end_of_a_sealed_segment_is_reported(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0]
    _flip(path, path.stat().st_size - 3)
    assert look_at_partition(FILES, _folder(tmp_path)).is_damaged


def test_segments_that_overlap_are_damage(tmp_path: Path) -> None:
    _fill(tmp_path)
    first, second, *_ = _logs(tmp_path)
    shutil.copy(second, first.with_name(f"{int(second.stem) - 5:020d}.log"))
    findings = look_at_partition(FILES, _folder(tmp_path)).findings
    assert any("the previous segment ends at" in finding.text for finding in findings)


def test_an_unfinished_last_batch_is_no_damage_at_any_cut(tmp_path: Path) -> None:
    """As a kill -9 in the middle of a write leaves it: nothing was promised."""
    with strandlog.open(tmp_path / "live") as log:
        log.create_topic("t")
        producer = log.producer(acks=1)
        for value in (b"first", b"second", b"third"):
            producer.send("t", value)
        shutil.copytree(tmp_path / "live", tmp_path / "dead")
    (path,) = _logs(tmp_path / "dead")
    data = path.read_bytes()
    folder = _folder(tmp_path / "dead")
    ends = {
        item.position + item.header.size_bytes
        for item in scan_file(FILES, str(path))
        if isinstance(item, Batch)
    }
    assert look_at_partition(FILES, folder).findings == []
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        kinds = [finding.kind for finding in look_at_partition(FILES, folder).findings]
        assert kinds == ([] if size in ends else ["tail"]), size


def test_truncation_below_the_recovery_point_is_damage(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[-1]
    data = path.read_bytes()
    batches = [item for item in scan_file(FILES, str(path)) if isinstance(item, Batch)]
    for size in (batches[-1].position, batches[-1].position + 10):
        path.write_bytes(data[:size])
        report = look_at_partition(FILES, _folder(tmp_path))
        assert report.is_damaged


def test_damage_before_intact_batches_is_reported_without_a_recovery_point(
    tmp_path: Path,
) -> None:
    _fill(tmp_path, batches=3)
    (tmp_path / "t-0" / "recovery-point").unlink()
    (path,) = _logs(tmp_path)
    _flip(path, 70)
    assert look_at_partition(FILES, _folder(tmp_path)).is_damaged


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_contradicts_its_log_is_damage_and_a_missing_one_is_not(
    tmp_path: Path, suffix: str
) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0].with_suffix(suffix)
    assert path.stat().st_size
    _flip(path, path.stat().st_size - 1)
    (finding,) = look_at_partition(FILES, _folder(tmp_path)).findings
    assert (finding.kind, finding.path) == ("damage", str(path))
    assert "contradict the log" in finding.text
    path.unlink()
    assert look_at_partition(FILES, _folder(tmp_path)).findings == []


def test_an_index_entry_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0].with_suffix(".index")
    path.write_bytes(path.read_bytes() + b"\0\0\0")
    assert look_at_partition(FILES, _folder(tmp_path)).findings == []


def test_snapshots_and_the_recovery_point_are_checked(tmp_path: Path) -> None:
    _fill(tmp_path)
    snapshot = max((tmp_path / "t-0").glob("*.snapshot"))
    _flip(snapshot, 3)
    point = tmp_path / "t-0" / "recovery-point"
    point.write_bytes(b"x" * point.stat().st_size)
    found = {finding.path for finding in look_at_partition(FILES, _folder(tmp_path)).findings}
    assert found == {str(snapshot), str(point)}


def test_a_file_set_aside_by_recovery_is_a_note(tmp_path: Path) -> None:
    _fill(tmp_path)
    (tmp_path / "t-0" / "00000000000000000000-7.log.damaged").write_bytes(b"1234")
    (finding,) = look_at_partition(FILES, _folder(tmp_path)).findings
    assert finding.kind == "note"
    assert "4 bytes" in finding.text


@pytest.mark.parametrize("name", ["topics.json", "replication-offset-checkpoint"])
def test_state_files_that_fail_their_checksum_are_found(tmp_path: Path, name: str) -> None:
    _fill(tmp_path)
    _flip(tmp_path / name, 1)
    (finding,) = verify_state(FILES, str(tmp_path), ["topics.json"])
    assert (finding.kind, finding.path) == ("damage", str(tmp_path / name))


def test_a_folder_that_retention_changes_during_the_check_is_checked_again(tmp_path: Path) -> None:
    _fill(tmp_path)
    oldest = str(_logs(tmp_path)[0])

    class Retiring(DiskFiles):
        """Retention removes the oldest segment after it was listed."""

        def size(self, path: str) -> int:
            if path == oldest and Path(path).exists():
                found = read_manifest(FILES, _folder(tmp_path))
                manifest = SegmentManifest(FILES, _folder(tmp_path), found)
                manifest.withdraw(0, found.claims[0].end_offset)
                Path(path).unlink()
            return super().size(path)

    report = look_at_partition(Retiring(), _folder(tmp_path))
    assert report.findings == []
    assert report.start_offset > 0


def test_damage_in_a_segment_that_compaction_replaces_is_not_reported(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0]
    good = path.read_bytes()
    path.write_bytes(good[:-1])

    class Swapping(DiskFiles):
        """A compaction ends after the damage was seen."""

        is_done = False

        def read_at(self, name: str, position: int, length: int) -> bytes:
            data = super().read_at(name, position, length)
            if not Swapping.is_done:
                Swapping.is_done = True
                path.write_bytes(good)
            return data

    assert not look_at_partition(Swapping(), _folder(tmp_path)).is_damaged


def test_a_file_truncated_during_the_scan_ends_with_damage(tmp_path: Path) -> None:
    _fill(tmp_path, batches=3)
    (path,) = _logs(tmp_path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100])

    class Shrinking(DiskFiles):
        def size(self, path: str) -> int:
            return size

    last = list(scan_file(Shrinking(), str(path)))[-1]
    assert isinstance(last, Damage)
    assert last.end_offset is None


def test_records_and_entries_can_be_dumped(tmp_path: Path) -> None:
    _fill(tmp_path)
    path = _logs(tmp_path)[0]
    items = list(scan_file(FILES, str(path)))
    assert all(isinstance(item, Batch) for item in items)
    batch = items[1]
    assert isinstance(batch, Batch)
    records = batch_records(FILES, str(path), batch, TopicPartition("t", 0))
    assert [record.offset for record in records] == list(range(20, 40))
    positions = {item.position for item in items}
    entries = read_index(FILES, str(path.with_suffix(".index")))
    assert entries
    assert {entry.position for entry in entries} <= positions
    assert read_time_index(FILES, str(path.with_suffix(".timeindex")))


def test_every_codec_is_counted(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            log.producer(compression=codec).send("t", b"x" * 100)
    report = look_at_partition(FILES, _folder(tmp_path))
    assert report.codecs == dict.fromkeys(["none", "gzip", "snappy", "lz4", "zstd"], 1)
    assert report.findings == []


def test_compaction_leaves_gaps_and_no_damage(tmp_path: Path) -> None:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", 1, {"segment.bytes": 1024, "cleanup.policy": "compact"})
        with log.producer() as producer:
            for number in range(60):
                producer.send("t", b"v%d" % number, key=b"k%d" % (number % 3))
        log.compact("t")
    report = look_at_partition(FILES, _folder(tmp_path))
    assert report.findings == []
    assert report.records < 60 == report.end_offset
    assert report.missing_offsets > 0
