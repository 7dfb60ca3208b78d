"""Aborted records stay hidden when a transaction index is lost, cut or changed."""

from __future__ import annotations

import struct

import pytest
from tests.support.log_builders import DATA, FOLDER, TP, new_log, reopen, small_settings
from tests.unit.storage.partition.test_transactions import ABORT, COMMIT, committed, end, write

from strandlog.errors import DataError
from strandlog.record.batch_header import read_header, stamp
from strandlog.record.builder import build_single
from strandlog.storage.cleaning.compaction import compact_now
from strandlog.storage.files import MappedFile
from strandlog.storage.partition.read import aborted_in
from strandlog.storage.paths import ABORT_INDEX_SUFFIX, SEGMENT_MANIFEST
from strandlog.storage.readonly.committed import committed_view
from strandlog.storage.readonly.verify import look_at_partition
from strandlog.storage.readonly.view import FolderView
from strandlog.storage.segment.manifest import ENTRY_SIZE, read_manifest
from strandlog.storage.segment.segment import stem_of
from strandlog.storage.segment.transaction_index import ENTRY
from strandlog.storage.work import run_inline
from strandlog.testing import SimulatedFiles

pytestmark = pytest.mark.slow

MANIFEST = f"{FOLDER}/{SEGMENT_MANIFEST}"
STEPS = 40
KEPT = [b"%d.%d" % (n, part) for n in range(STEPS) if n % 3 == 0 for part in range(2)]


def filled(stop: str, *, compacted: bool = False) -> SimulatedFiles:
    """A partition of several segments in which two of three transactions were aborted."""
    files = SimulatedFiles()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=900))
    for number in range(STEPS):
        write(log, number, 0, b"%d.0" % number)
        write(log, number, 1, b"%d.1" % number)  # a second batch: a first offset may move to it
        end(log, number, COMMIT if number % 3 == 0 else ABORT)
    log.flush()
    if compacted:
        compact_now(log)
    if stop == "clean":
        log_dir.close()
        return files
    return files.after_kill()


def indexes(files: SimulatedFiles) -> list[str]:
    names = sorted(name for name in files.list_dir(FOLDER) if name.endswith(".txnindex"))
    return [f"{FOLDER}/{name}" for name in names]


def lose(files: SimulatedFiles, path: str, how: str) -> None:
    data = files.read(path)
    match how:
        case "deleted":
            files.remove(path)
        case "emptied":
            files.truncate(path, 0)
        case "one entry less":
            files.truncate(path, len(data) - ENTRY.size)
        case "later first offset":
            (first,) = struct.unpack_from(">q", data, 10)
            files.write_at(path, 10, struct.pack(">q", first + 1))


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less", "later first offset"])
def test_aborted_records_are_not_shown_after_the_loss_of_an_index(how: str, stop: str) -> None:
    files = filled(stop)
    assert len(indexes(files)) > 3
    for path in indexes(files):
        damaged = files.after_kill()
        lose(damaged, path, how)
        for attempt in range(3):
            log_dir, log = reopen(damaged, settings=small_settings(segment_bytes=900))
            assert committed(log) == KEPT, f"{path} {how}, start {attempt}"
            assert bool(log.last_report.problems) is (attempt == 0)
            if attempt == 1:
                log_dir.close()
            damaged = damaged.after_kill()


@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less", "later first offset"])
def test_verify_misses_the_transaction_index_of_a_sealed_segment(how: str) -> None:
    files = filled("clean")
    assert not look_at_partition(files, FOLDER).is_damaged
    for path in indexes(files)[:-1]:
        damaged = files.after_kill()
        lose(damaged, path, how)
        findings = look_at_partition(damaged, FOLDER).findings
        assert [found.path for found in findings if found.kind == "damage"] == [path]


@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less"])
def test_a_reader_of_the_folder_gets_an_error_instead_of_aborted_records(how: str) -> None:
    files = filled("clean")
    for path in indexes(files):
        damaged = files.after_kill()
        lose(damaged, path, how)
        with pytest.raises(DataError, match="damaged; the owner rebuilds it"):
            committed_view(damaged, FolderView(damaged, DATA).view(TP))
        reopen(damaged, settings=small_settings(segment_bytes=900))
        assert committed_view(damaged, FolderView(damaged, DATA).view(TP)).aborted


def test_compaction_keeps_the_checksum_of_the_transaction_index() -> None:
    files = filled("clean", compacted=True)
    assert not look_at_partition(files, FOLDER).is_damaged
    _, log = reopen(files.after_kill(), settings=small_settings(segment_bytes=900))
    assert not log.last_report.problems
    assert committed(log) == KEPT


def test_damage_in_the_log_does_not_keep_readers_from_what_lies_beside_it() -> None:
    files = filled("clean")
    for name in sorted(n for n in files.list_dir(FOLDER) if n.endswith(".log")):
        path = f"{FOLDER}/{name}"
        size = len(files.read(path))
        for start in range(0, size, 97):
            damaged = files.after_kill()
            damaged.write_at(path, start, bytes(min(200, size - start)))
            _, log = reopen(damaged, settings=small_settings(segment_bytes=900))
            for offset in range(0, log.log_end_offset, 7):
                aborted_in(log, offset, log.last_stable_offset)


def undecodable_marker(data: bytes, position: int) -> bytes:
    """The marker at a position of a log, intact but with an unknown type."""
    header = read_header(data, position)
    marker = build_single(
        header.base_timestamp,
        struct.pack(">hi", 0, 0),
        struct.pack(">hh", 0, 9),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    stamp(memoryview(marker), header.base_offset, 0)
    assert len(marker) == header.size_bytes
    return bytes(marker)


def test_a_marker_that_cannot_be_decoded_does_not_keep_a_partition_closed() -> None:
    files = filled("clean")
    path = f"{FOLDER}/{0:020d}.log"
    data = files.read(path)
    position = 0
    while not read_header(data, position).is_control:
        position += read_header(data, position).size_bytes
    files.write_at(path, position, undecodable_marker(data, position))
    lose(files, indexes(files)[0], "deleted")
    log_dir, log = reopen(files, settings=small_settings(segment_bytes=900))
    problems = log.last_report.problems
    offset = read_header(data, position).base_offset
    assert sum(f"control batch at offset {offset}" in problem for problem in problems) == 1
    assert committed(log) == KEPT
    run_inline(log.rebuild_aborted())  # finds it again and lists it once
    assert log.last_report.problems == problems
    log_dir.close()


def test_a_damaged_abort_marker_without_an_index_is_not_passed_over_silently() -> None:
    files = filled("clean")
    path = f"{FOLDER}/{0:020d}.log"
    data = files.read(path)
    next_position = count = 0
    while count < 2:  # the second marker is the first ABORT
        position = next_position
        header = read_header(data, position)
        count += header.is_control
        next_position += header.size_bytes
    files.write_at(path, position + header.size_bytes - 1, bytes([data[position + 60] ^ 0xFF]))
    lose(files, indexes(files)[0], "deleted")
    _, log = reopen(files, settings=small_settings(segment_bytes=900))
    [unknown] = [text for text in log.last_report.problems if "committed or aborted" in text]
    assert f"the damage at offset {header.base_offset} may include the end" in unknown
    assert f"producer {header.producer_id} from offset {header.base_offset - 2}" in unknown


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less", "later first offset"])
def test_aborted_records_are_not_shown_after_the_loss_of_an_index_and_the_manifest(
    how: str, stop: str
) -> None:
    files = filled(stop)
    for path in indexes(files)[:-1]:
        damaged = files.after_kill()
        lose(damaged, path, how)
        damaged.remove(MANIFEST)
        view = committed_view(damaged, FolderView(damaged, DATA).view(TP))
        for attempt in range(2):
            log_dir, log = reopen(damaged, settings=small_settings(segment_bytes=900))
            assert committed(log) == KEPT
            assert [entry[:3] for entry in view.aborted] == [entry[:3] for entry in log.aborted]
            problems = [text for text in log.last_report.problems if path in text]
            assert len(problems) == len(log.last_report.problems) == (attempt == 0)
            log_dir.close()


def test_every_lost_index_is_reported_if_the_manifest_is_lost_too() -> None:
    files = filled("clean")
    lost = indexes(files)[:-1]
    for path in [*lost, MANIFEST]:
        files.remove(path)
    _, log = reopen(files, settings=small_settings(segment_bytes=900))
    assert committed(log) == KEPT
    assert [text.partition(" ")[0] for text in log.last_report.problems] == lost


def test_an_index_hides_aborted_records_whose_marker_is_damaged_after_the_manifest_is_lost() -> (
    None
):
    files = filled("clean")
    path = f"{FOLDER}/{0:020d}.log"
    data = files.read(path)
    next_position = count = 0
    while count < 2:  # the second marker is the first ABORT
        position = next_position
        header = read_header(data, position)
        count += header.is_control
        next_position += header.size_bytes
    files.write_at(path, position + header.size_bytes - 1, bytes([data[position + 60] ^ 0xFF]))
    files.remove(MANIFEST)
    _, log = reopen(files, settings=small_settings(segment_bytes=900))
    assert header.base_offset in [entry.last_offset for entry in log.aborted]
    assert not any("rebuilt" in text for text in log.last_report.problems)


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less"])
def test_aborted_records_are_not_shown_after_the_loss_of_an_index_and_its_manifest_entry(
    how: str, stop: str
) -> None:
    """The manifest keeps its first entries: it does not show that the last ones are lost."""
    files = filled(stop)
    for path in indexes(files)[1:-1]:
        damaged = files.after_kill()
        lose(damaged, path, how)
        while path in claimed_indexes(damaged):
            damaged.truncate(MANIFEST, damaged.size(MANIFEST) - ENTRY_SIZE)
        assert claimed_indexes(damaged)
        view = committed_view(damaged, FolderView(damaged, DATA).view(TP))
        for attempt in range(2):
            log_dir, log = reopen(damaged, settings=small_settings(segment_bytes=900))
            assert committed(log) == KEPT
            assert [entry[:3] for entry in view.aborted] == [entry[:3] for entry in log.aborted]
            problems = [text for text in log.last_report.problems if path in text]
            assert len(problems) == len(log.last_report.problems) == (attempt == 0)
            log_dir.close()


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("how", ["deleted", "emptied", "one entry less", "later first offset"])
def test_aborted_records_are_not_shown_after_the_loss_of_an_index_and_of_its_checksum(
    how: str, stop: str
) -> None:
    """The manifest ends between the claim of a segment and the checksum of its index."""
    files = filled(stop)
    for path in indexes(files)[:-1]:
        damaged = files.after_kill()
        lose(damaged, path, how)
        cut_after_claim(damaged, path)
        assert claimed_indexes(damaged)[-1] == path
        view = committed_view(damaged, FolderView(damaged, DATA).view(TP))
        for attempt in range(2):
            log_dir, log = reopen(damaged, settings=small_settings(segment_bytes=900))
            assert committed(log) == KEPT
            assert [entry[:3] for entry in view.aborted] == [entry[:3] for entry in log.aborted]
            problems = [text for text in log.last_report.problems if path in text]
            assert len(problems) == len(log.last_report.problems) == (attempt == 0)
            log_dir.close()


def test_aborted_records_are_not_shown_after_the_loss_of_an_index_and_damage_to_its_checksum() -> (
    None
):
    files = filled("clean")
    for number, path in enumerate(indexes(files)[:-1]):
        damaged = files.after_kill()
        damaged.remove(path)
        base = int(path.rpartition("/")[2][:20])
        bases = [claim.base_offset for claim in read_manifest(files, FOLDER).claims]
        damaged.flip_bit(MANIFEST, 8 * (2 * bases.index(base) + 1) * ENTRY_SIZE)
        view = committed_view(damaged, FolderView(damaged, DATA).view(TP))
        _, log = reopen(damaged, settings=small_settings(segment_bytes=900))
        assert committed(log) == KEPT, number
        assert [entry[:3] for entry in view.aborted] == [entry[:3] for entry in log.aborted]
        assert any(path in text for text in log.last_report.problems)


def test_correct_indexes_that_have_lost_their_checksums_are_not_reported() -> None:
    """The checksums are stored again, so that the next start does not read the segments."""
    files = filled("clean")
    for kept in range(1, files.size(MANIFEST) // ENTRY_SIZE):
        cut = files.after_kill()
        cut.truncate(MANIFEST, kept * ENTRY_SIZE)
        assert committed_view(cut, FolderView(cut, DATA).view(TP)).aborted
        log_dir, log = reopen(cut, settings=small_settings(segment_bytes=900))
        assert (committed(log), log.last_report.problems) == (KEPT, [])
        log_dir.close()
        found = read_manifest(cut, FOLDER)
        assert found.claims == read_manifest(files, FOLDER).claims
        assert found.without_checksum == set()


def test_the_index_of_a_cut_segment_is_not_checked_after_other_checksums_were_lost() -> None:
    """The start rewrites a damaged manifest, with what it still has of the cut segment."""
    files = filled("clean")
    cut, other = indexes(files)[0], read_manifest(files, FOLDER).claims[2]
    path = cut.removesuffix(ABORT_INDEX_SUFFIX) + ".log"
    files.truncate(path, files.size(path) - 1)
    files.flip_bit(MANIFEST, 8 * 5 * ENTRY_SIZE)
    assert read_manifest(files, FOLDER).without_checksum == {other.base_offset}
    for attempt in range(2):
        log_dir, log = reopen(files, settings=small_settings(segment_bytes=900))
        assert not any(cut in text for text in log.last_report.problems), attempt
        log_dir.close()
    lose(files, cut, "deleted")
    _, log = reopen(files, settings=small_settings(segment_bytes=900))
    assert f"{cut} was missing and was rebuilt from the log" in log.last_report.problems


@pytest.mark.parametrize("kept", ["half of the claims", "without the last checksum"])
def test_a_start_reads_only_the_segments_whose_manifest_entries_are_lost(
    kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = filled("clean")
    claims = read_manifest(files, FOLDER).claims
    count = len(claims) // 2 if kept == "half of the claims" else len(claims) - 1
    size = count * 2 * ENTRY_SIZE if kept == "half of the claims" else files.size(MANIFEST)
    files.truncate(MANIFEST, size if kept == "half of the claims" else size - ENTRY_SIZE)
    mapped: list[str] = []
    inner = SimulatedFiles.map

    def counting(each: SimulatedFiles, path: str) -> MappedFile:
        mapped.append(path)
        return inner(each, path)

    monkeypatch.setattr(SimulatedFiles, "map", counting)
    _, log = reopen(files, settings=small_settings(segment_bytes=900))
    expected = {stem_of(FOLDER, claim.base_offset) + ".log" for claim in claims[count:]}
    logs = {path for path in mapped if path.endswith(".log")}
    assert logs - {log.segments.active.log_path} == expected


def cut_after_claim(files: SimulatedFiles, path: str) -> None:
    """Cut the manifest behind the entry that claims the segment of a transaction index."""
    base = int(path.rpartition("/")[2][:20])
    while read_manifest(files, FOLDER).last_claim != base:
        files.truncate(MANIFEST, files.size(MANIFEST) - ENTRY_SIZE)


def claimed_indexes(files: SimulatedFiles) -> list[str]:
    """The transaction indexes of the segments in the manifest."""
    return [
        stem_of(FOLDER, claim.base_offset) + ABORT_INDEX_SUFFIX
        for claim in read_manifest(files, FOLDER).claims
    ]
