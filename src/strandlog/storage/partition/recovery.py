"""Recovers a partition after a clean stop or a crash: truncates torn tails and reports damage.

What recovery reads of the log (see the diagram in recovery_point.py):

    below the snapshot point      a few headers, to check the indexes; more if an index or a
                                  snapshot is damaged; the segments whose manifest entries are
                                  lost
    above the snapshot point      everything, verifying checksums and rebuilding the indexes and
                                  the producer state

What can be wrong, and how recovery handles it:

    torn tail    The first bad batch is at or above the recovery point, where nothing was guaranteed
                 to be on disk, or a segment there ends before the next one starts. The log is
                 truncated at that point. Intact batches after it (the disk wrote out of order) are
                 kept in `.damaged` files, and their offsets are not reused.
    damage       The bad batch is below the recovery point. Its bytes stay in place and are copied
                 to a `.damaged` file, the log continues at the next intact batch, and the range is
                 reported. If transactions were open there, the damage may contain their markers,
                 so they are reported too.
    missing end  The log ends below the recovery point. This is reported, and the lost offsets are
                 not reused. If the recovery point is lost after a crash, recovery cannot tell
                 whether the end of the log is missing. The log then continues after all offsets
                 that may have been assigned (`KnownEnd`), which is reported.
    missing or   A sealed segment is missing or shorter or longer than the manifest says
    changed      (manifest.py), or only its indexes are left. This is reported.
    segment
    failed sync  The recovery point is marked `fsync_failed`. Everything above it is rewritten,
                 because otherwise the next sync would prove nothing.
    other files  The recovery point, the manifest, a snapshot or a transaction index is damaged.
                 This is reported, and the file is repaired or rebuilt from the log. A wrong offset
                 or time index is rebuilt without a report.

After a clean stop both points are at the log end, so a start reads almost nothing. `needs_flush` is
set if recovery read or changed anything that a power failure could still undo; the partition then
syncs before it serves requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from strandlog.config.tables.topic import LogSettings
from strandlog.record.batch_header import HEADER_SIZE, BatchHeader, read_header
from strandlog.storage.files import Files
from strandlog.storage.partition.producer_state import ProducerState, index_mark, snapshot_name
from strandlog.storage.partition.recovery_point import START, RecoveryPoint, mended_recovery_point
from strandlog.storage.partition.recovery_start import ScanStart, trusted_start
from strandlog.storage.partition.replay import (
    AbortedReplay,
    rebuild_aborted,
    replay_or_report,
    report_unknown_outcomes,
)
from strandlog.storage.paths import (
    ABORT_INDEX_SUFFIX,
    DAMAGED_SUFFIX,
    LOG_SUFFIX,
    RECOVERY_POINT,
    SEGMENT_MANIFEST,
    SIDE_SUFFIXES,
    SNAPSHOT_SUFFIX,
    join,
    segment_offsets,
    segment_stem,
)
from strandlog.storage.problem_list import ProblemList
from strandlog.storage.segment.index_check import IndexCheck
from strandlog.storage.segment.manifest import (
    NOTHING,
    Claim,
    Loss,
    SegmentManifest,
    losses,
    read_manifest,
    unchecked_runs,
)
from strandlog.storage.segment.scan import NEVER, Batch, Damage, scan, view_source
from strandlog.storage.segment.segment import ActiveSegment, Segment, SegmentList, stem_of
from strandlog.storage.segment.swap import needs_tidying, tidy_after_crash
from strandlog.storage.segment.transaction_index import (
    AbortedTransactions,
    IndexMark,
    is_whole,
    packed,
)


class KnownEnd(NamedTuple):
    """The end of a partition according to a checkpoint of the data folder."""

    offset: int  # everything below was on disk
    unseen_offsets: int = 0  # how many offsets may have been assigned since


NOT_KNOWN = KnownEnd(0)


@dataclass(slots=True)
class RecoveryReport:
    """The problems found in a partition when it was opened and since. `is_clean` is true if there
    are none and recovery truncated nothing."""

    partition: str
    scanned_bytes: int = 0
    torn_bytes: int = 0
    problems: ProblemList = field(default_factory=ProblemList)

    @property
    def is_clean(self) -> bool:
        return not self.problems and not self.torn_bytes


@dataclass(slots=True)
class Recovered:
    """The state of a partition after recovery."""

    segments: SegmentList
    log_end_offset: int
    producers: ProducerState
    aborted: AbortedTransactions
    point: RecoveryPoint
    report: RecoveryReport
    needs_flush: bool
    snapshots: set[int]  # the offsets of the existing snapshot files
    manifest: SegmentManifest
    unclaimed: list[Segment]  # sealed segments that the manifest does not list
    lost_checksum: list[Segment]  # sealed segments that it lists without an index checksum
    aborted_was_rebuilt: bool


@dataclass(slots=True)
class SegmentScan:
    """Where the scan of a segment ended, and the damage that it found."""

    next_offset: int
    scanned_bytes: int = 0
    torn_position: int | None = None
    damage: list[Damage] = field(default_factory=list)


def _bases(names: dict[str, int]) -> list[int]:
    return segment_offsets(names, LOG_SUFFIX)


class Recovery:
    """A single recovery run over a partition's folder."""

    def __init__(self, files: Files, folder: str, settings: LogSettings, now_ms: int) -> None:
        self._files = files
        self._folder = folder
        self._settings = settings
        self._now_ms = now_ms
        self._report = RecoveryReport(folder.rpartition("/")[2])
        self._point = START
        self._producers = ProducerState()
        self._producers_from = 0
        self._aborted = AbortedTransactions()
        self._aborted_in_doubt = False
        self._index_check: IndexCheck | None = None  # checks indexes without checksums
        self._wrong_indexes: set[str] = set()  # paths that are already in the report
        self._index_mark: IndexMark | None = None
        self._snapshots: set[int] = set()
        self._needs_flush = False
        self._log_start_offset = 0
        self._unseen_offsets = 0  # offsets that may have been assigned after the known end
        self._loss_from = NEVER  # a gap at or above this offset is a loss
        self._found = NOTHING  # the manifest
        self._claims: list[Claim] = []
        self._indexed: dict[int, Claim] = {}  # claims with an index checksum, by base offset
        self._manifest = SegmentManifest(files, folder, NOTHING)

    def run(self, log_start_offset: int = 0, known_end: KnownEnd = NOT_KNOWN) -> Recovered:
        """Recover the partition. If it has no segments, it continues at `log_start_offset` or, if
        higher offsets may have been assigned, after them."""
        names, lonely = self._files.list_dir(self._folder), []
        if needs_tidying(names):
            lonely = tidy_after_crash(self._files, self._folder)
            names = self._files.list_dir(self._folder)
        self._load_manifest(names)
        self._load_point(names, known_end)
        self._note_lonely(lonely, names)
        self._load_snapshot(segment_offsets(names, SNAPSHOT_SUFFIX))
        segments = [
            Segment(stem_of(self._folder, base), base, names[f"{base:020d}{LOG_SUFFIX}"])
            for base in segment_offsets(names, LOG_SUFFIX)
        ]
        if not segments:
            if self._point.offset > log_start_offset:
                self._say_gone(log_start_offset, "no segment is left: ")
            base = self._after_unseen(max(log_start_offset, self._point.offset))
            return self._recovered(SegmentList([], self._new_active(base)), base)
        self._log_start_offset = log_start_offset
        self._begin_active(segments)
        self._load_aborted(segments, names)
        return self._scan_all(segments)

    def begin(self) -> Recovered:
        """Return the state of a partition whose folder was just created."""
        return self._recovered(SegmentList([], self._new_active(0, is_new=True)), 0)

    def _load_manifest(self, names: dict[str, int]) -> None:
        if SEGMENT_MANIFEST not in names:
            return
        found = read_manifest(self._files, self._folder)
        lost = losses(found.claims, names)
        self._found, self._claims = found, found.claims
        self._indexed = {c.base_offset: c for c in found.claims if c.aborted_crc is not None}
        self._manifest = SegmentManifest(self._files, self._folder, found, lost)
        problems = [loss.describe(self._folder) for loss in lost]
        if found.damaged:
            path = join(self._folder, SEGMENT_MANIFEST)
            problems.append(f"entries in {path} that fail their checksum: {found.damaged}")
        self._report.problems += problems

    def _load_point(self, names: dict[str, int], known: KnownEnd) -> None:
        """Load the recovery point, and raise it to the highest offset that the checkpoint or the
        manifest records as durable."""
        path = join(self._folder, RECOVERY_POINT)
        found, problems = mended_recovery_point(self._files, path)
        self._report.problems += problems
        point = found or START
        is_lost = point.is_provisional
        if is_lost and any(names.get(f"{o:020d}{LOG_SUFFIX}") for o in _bases(names)):
            self._report.problems.append(f"{path} is missing or empty; the whole log was read")
        if is_lost:
            self._unseen_offsets = known.unseen_offsets
        known_end = max([known.offset, *(claim.end_offset for claim in self._claims)])
        self._point = point._replace(offset=max(point.offset, known_end))
        self._loss_from = NEVER if is_lost else self._point.offset

    def _note_lonely(self, lonely: list[int], names: dict[str, int]) -> None:
        """Report segments below the recovery point that have indexes but no log, unless the
        manifest lists them."""
        claimed = {claim.base_offset for claim in self._claims}
        bases = [*_bases(names), self._point.offset]
        for base in lonely:
            if base < self._point.offset and base not in claimed:
                end = min(other for other in bases if other > base)
                loss = Loss(Claim(base, end, 0), None)
                self._report.problems.append(loss.describe(self._folder))

    def _begin_active(self, segments: list[Segment]) -> None:
        """Create the active segment if the last one found is sealed, because the active segment had
        no file yet or lost it. A sealed segment may have gaps and must not become active again."""
        last = next((c for c in self._claims if c.base_offset == segments[-1].base_offset), None)
        if last is None:
            return
        if last.end_offset < self._point.offset:
            self._say_gone(last.end_offset)
        base = max(last.end_offset, self._point.offset, self._log_start_offset)
        base = self._after_unseen(base)
        active = Segment(stem_of(self._folder, base), base, 0)
        self._files.open_log(active.log_path).close()
        self._needs_flush = True
        segments.append(active)

    def _say_gone(self, start: int, why: str = "") -> None:
        self._report.problems.append(
            f"{why}offsets {start} to {self._point.offset - 1} were durable and are lost"
        )

    def _after_unseen(self, end_offset: int) -> int:
        """Return the offset at which the log continues: `end_offset` or, if higher offsets may have
        been assigned without any trace, one above them, which is reported."""
        if not self._unseen_offsets:
            return end_offset
        base = end_offset + self._unseen_offsets
        self._unseen_offsets = 0  # skipped only once
        self._report.problems.append(
            f"{join(self._folder, RECOVERY_POINT)} was lost after a crash, so records from offset "
            f"{end_offset} on may be lost too; the log continues at offset {base}"
        )
        return base

    def _load_snapshot(self, offsets: list[int]) -> None:
        """Load the newest intact snapshot that is not above the snapshot point, and remove all
        newer ones."""
        self._snapshots = set(offsets)
        for offset in reversed(offsets):
            stem = stem_of(self._folder, offset)
            path = stem + SNAPSHOT_SUFFIX
            if offset <= self._point.snapshot_offset:
                data = self._files.read(path)
                state = ProducerState.from_snapshot(data, snapshot_name(stem))
                if state is not None:
                    self._producers, self._producers_from = state, offset
                    self._index_mark = index_mark(data)
                    return
                self._report.problems.append(
                    f"{path} fails its checksum; the producer state was rebuilt from the log"
                )
            self._files.remove(path)
            self._snapshots.discard(offset)

    def _load_aborted(self, segments: list[Segment], names: dict[str, int]) -> None:
        """Load the transaction indexes up to the offset of the snapshot; the scan adds the rest. If
        one of them is wrong, stop and let `_recovered` rebuild all of them. If checksums in the
        manifest are lost, load all indexes, and if the log contradicts one of them, let
        `_recovered` compare them with the whole log."""
        bases = [segment.base_offset for segment in segments]
        unchecked = unchecked_runs(self._found, bases, self._producers_from)
        ends = [*(segment.base_offset for segment in segments[1:]), NEVER]
        for segment, end_offset in zip(segments, ends, strict=True):
            name = segment_stem(segment.base_offset) + ABORT_INDEX_SUFFIX
            if name not in names and self._index_is_whole(segment.base_offset):
                continue
            path = join(self._folder, name)
            data = self._files.read(path) if name in names else b""
            is_right = self._aborted.load(
                data, segment.base_offset, end_offset, self._producers_from
            )
            if not is_right or not self._index_is_whole(segment.base_offset):
                what = "was wrong" if name in names else "was missing"
                self._report.problems.append(f"{path} {what} and was rebuilt from the log")
                self._aborted_in_doubt = True
                if unchecked:
                    self._wrong_indexes.add(path)
                    continue
                return
            kept = self._aborted.ending_in(segment.base_offset, end_offset)
            if len(data) > len(packed(kept)):
                self._files.truncate(path, len(packed(kept)))
        if not unchecked:
            return
        if self._aborted_in_doubt or any(self._is_in_doubt(segments, run) for run in unchecked):
            self._aborted_in_doubt = True
            self._index_check = IndexCheck(self._aborted)

    def _is_in_doubt(self, segments: list[Segment], run: range) -> bool:
        """Return whether the logs of adjacent sealed segments contradict their transaction indexes,
        or may do so."""
        first, end = segments[run.start].base_offset, segments[run.stop].base_offset
        check = IndexCheck(self._aborted.ending_in(first, end))
        replay = AbortedReplay(self._files, check)
        for segment in segments[run.start : run.stop]:
            replay.read(segment, segment.size_bytes)
        return check.is_in_doubt

    def _index_is_whole(self, base_offset: int) -> bool:
        """Return whether the loaded part of a segment's transaction index matches the checksum in
        the manifest or the snapshot. Without a checksum, return True."""
        claim = self._indexed.get(base_offset)
        end_offset = self._producers_from if claim is None else claim.end_offset
        loaded = self._aborted.ending_in(base_offset, min(end_offset, self._producers_from))
        return is_whole(loaded, base_offset, self._producers_from, claim, self._index_mark)

    def _new_active(self, base: int, *, is_new: bool = False) -> ActiveSegment:
        stem = stem_of(self._folder, base)
        interval_bytes = self._settings.index_interval_bytes
        return ActiveSegment(self._files, stem, base, interval_bytes, self._now_ms, is_new=is_new)

    def _scan_all(self, segments: list[Segment]) -> Recovered:
        # If a snapshot was damaged, rebuild the producer state from further back than the indexes.
        trusted_offset = min(self._point.snapshot_offset, self._producers_from)
        first = max(0, sum(s.base_offset <= trusted_offset for s in segments) - 1)
        sealed, untrusted = segments[:first], segments[first:]
        next_offset = untrusted[0].base_offset
        for number, segment in enumerate(untrusted):
            active = self._new_active(segment.base_offset)
            active.size_bytes = segment.size_bytes
            is_last = number + 1 == len(untrusted)
            end_offset = None if is_last else untrusted[number + 1].base_offset
            found = self._scan_one(segment, active, (trusted_offset, next_offset), end_offset)
            next_offset = found.next_offset
            if found.torn_position is not None:
                next_offset = self._cut(segment, untrusted[number + 1 :], found)
                active.size_bytes = segment.size_bytes
                break
            if end_offset is not None:
                sealed.append(self._seal(active, end_offset))
        ends_here = not found.damage and next_offset == found.next_offset
        return self._finish(SegmentList(sealed, active), next_offset, ends_here=ends_here)

    def _scan_one(
        self,
        segment: Segment,
        active: ActiveSegment,
        offsets: tuple[int, int],
        end_offset: int | None,
    ) -> SegmentScan:
        """Scan the untrusted part of one segment, and update its indexes and the producer state.
        Copy damaged ranges aside, and rewrite the file if its last sync failed."""
        trusted_offset, next_offset = offsets
        mapped = self._files.map(segment.log_path)
        view = mapped.view
        try:
            start = trusted_start(
                view, segment, active.indexes, trusted_offset, is_last=end_offset is None
            )
            start = start._replace(next_offset=max(start.next_offset, next_offset))
            if len(view) >= HEADER_SIZE:
                active.first_timestamp = read_header(view).max_timestamp
            found = self._scan_from(start, view, active, end_offset)
            if (
                found.torn_position is None
                and end_offset is not None
                and self._loss_from <= found.next_offset < end_offset
            ):
                found.torn_position = len(view)  # the end of this segment is lost
            self._report.scanned_bytes += found.scanned_bytes
            self._needs_flush |= found.scanned_bytes > 0
            self._keep_damage_aside(segment, found, view)
            if self._point.fsync_failed and found.next_offset > self._point.offset:
                # Use a new file: parts of the old one may be durable and must not be overwritten.
                self._files.replace(segment.log_path, view)
        finally:
            mapped.close()
        return found

    def _scan_from(
        self, start: ScanStart, view: memoryview, active: ActiveSegment, end_offset: int | None
    ) -> SegmentScan:
        """Scan to the end of a segment or to its torn tail. `end_offset` is the base offset of the
        next segment. It is None for the last segment, which has no gaps."""
        found = SegmentScan(start.next_offset)
        for item in scan(
            view_source(view),
            start.position,
            len(view),
            next_offset=start.next_offset,
            crc_from_offset=0,
            end_offset=NEVER if end_offset is None else end_offset,
            has_gaps=end_offset is not None,
        ):
            if isinstance(item, Batch):
                self._note_batch(item, view, active)
                found.scanned_bytes += item.header.size_bytes
                found.next_offset = item.header.next_offset
            elif found.next_offset >= self._point.offset:
                found.torn_position = item.position
                break
            else:
                found.damage.append(item)
                problems = self._report.problems
                report_unknown_outcomes(self._producers, self._folder, item, problems)
                if item.end_offset is not None:
                    found.next_offset = item.end_offset
        return found

    def _note_batch(self, batch: Batch, view: memoryview, active: ActiveSegment) -> None:
        position, header = batch
        active.indexes.note_header(position, header)
        if header.producer_id >= 0 and header.base_offset >= self._producers_from:
            self._note_producer(header, view, position)

    def _note_producer(self, header: BatchHeader, view: memoryview, position: int) -> None:
        data = view[position : position + header.size_bytes]
        aborted = replay_or_report(self._producers, header, data, self._report.problems)
        if aborted is not None:
            self._aborted.add(aborted)

    def _keep_damage_aside(self, segment: Segment, found: SegmentScan, view: memoryview) -> None:
        for damage in found.damage:
            data = view[damage.position : damage.end_position]
            path = self._keep_aside(segment, damage.position, data)
            until = f"to {damage.end_offset - 1}" if damage.end_offset is not None else "on"
            self._report.problems.append(
                f"{segment.log_path} is damaged at byte {damage.position} ({damage.reason}): "
                f"offsets {damage.start_offset} {until} are unreadable; the bytes are in {path}"
            )

    def _keep_aside(self, segment: Segment, position: int, data: memoryview) -> str:
        path = f"{segment.stem}-{position}{LOG_SUFFIX}{DAMAGED_SUFFIX}"
        self._files.replace(path, data)
        return path

    def _seal(self, active: ActiveSegment, end_offset: int) -> Segment:
        """Seal a scanned segment and make its files durable, because they are final."""
        self._aborted.save(self._files, active.stem, active.base_offset, end_offset)
        sealed = active.seal()
        for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
            if self._files.exists(sealed.stem + suffix):
                self._files.sync_file(sealed.stem + suffix)
        self._files.sync_dir(self._folder)
        return sealed

    def _cut(self, segment: Segment, later: list[Segment], found: SegmentScan) -> int:
        """Truncate a segment at its torn position, remove the later ones from the log, and set
        intact batches aside. Return the next offset."""
        torn_position = found.torn_position
        assert torn_position is not None
        next_offset = found.next_offset
        mapped = self._files.map(segment.log_path)
        try:
            self._report.torn_bytes += len(mapped.view) - torn_position
            end = _end_of_intact(mapped.view, torn_position, next_offset)
            if end is not None:
                path = self._keep_aside(segment, torn_position, mapped.view[torn_position:])
                self._say_set_aside(next_offset, end, path)
                next_offset = end
        finally:
            mapped.close()
        for late in later:
            next_offset = max(next_offset, self._set_aside(late))
        self._files.truncate(segment.log_path, torn_position)
        segment.size_bytes = torn_position
        self._files.sync_file(segment.log_path)
        self._files.sync_dir(self._folder)
        self._needs_flush = True
        return next_offset

    def _set_aside(self, segment: Segment) -> int:
        """Remove from the log a segment that follows a torn write. Return the offset after its last
        intact batch, or 0 if there is none."""
        self._report.torn_bytes += segment.size_bytes
        mapped = self._files.map(segment.log_path)
        try:
            end = _end_of_intact(mapped.view, 0, segment.base_offset)
        finally:
            mapped.close()
        for suffix in SIDE_SUFFIXES:
            self._files.remove(segment.stem + suffix)
        if end is None:
            self._files.remove(segment.log_path)
            return 0
        self._files.rename(segment.log_path, segment.log_path + DAMAGED_SUFFIX)
        self._say_set_aside(segment.base_offset, end, segment.log_path + DAMAGED_SUFFIX)
        return end

    def _say_set_aside(self, start: int, end: int, path: str) -> None:
        self._report.problems.append(
            f"offsets {start} to {end - 1} follow a torn write and were never confirmed to be "
            f"durable; their remaining bytes were set aside in {path}"
        )

    def _finish(self, segments: SegmentList, next_offset: int, *, ends_here: bool) -> Recovered:
        if next_offset < self._point.offset:
            self._say_gone(next_offset)
            next_offset, ends_here = self._point.offset, False
        if next_offset < self._log_start_offset:
            # With durability "page_cache", deleted records may never have reached the disk.
            next_offset, ends_here = self._log_start_offset, False
        if self._unseen_offsets:
            next_offset, ends_here = self._after_unseen(next_offset), False
        if not ends_here and next_offset > segments.active.base_offset:
            # A gap precedes the next offset, so the name of a new segment must record that offset.
            sealed = self._seal(segments.active, next_offset)
            segments.roll(sealed, self._new_active(next_offset))
            self._needs_flush = True
        return self._recovered(segments, next_offset)

    def _recovered(self, segments: SegmentList, next_offset: int) -> Recovered:
        if self._aborted_in_doubt:
            problems, check = self._report.problems, self._index_check
            rebuild_aborted(self._files, segments.all(), self._aborted, problems, check)
            if check is not None:
                self._report_wrong_indexes(segments, check)
            self._drop_snapshot(self._producers_from)
        claimed = {claim.base_offset for claim in self._claims}
        lost_checksum = self._found.without_checksum
        return Recovered(
            segments,
            next_offset,
            self._producers,
            self._aborted,
            self._point,
            self._report,
            self._needs_flush or next_offset != self._point.offset,
            self._snapshots,
            self._manifest,
            [s for s in segments.sealed if s.base_offset not in claimed],
            [s for s in segments.sealed if s.base_offset in lost_checksum],
            self._aborted_in_doubt,
        )

    def _report_wrong_indexes(self, segments: SegmentList, check: IndexCheck) -> None:
        """Report the transaction indexes without a checksum that contradict the log, unless they
        are listed already."""
        for offset in check.wrong_markers(self._producers_from):
            path = segments.at(offset)[0].stem + ABORT_INDEX_SUFFIX
            if path not in self._wrong_indexes:
                self._wrong_indexes.add(path)
                self._report.problems.append(
                    f"{path} was wrong or missing and was rebuilt from the log; its checksum in "
                    f"{join(self._folder, SEGMENT_MANIFEST)} is lost too"
                )

    def _drop_snapshot(self, offset: int) -> None:
        """Remove a snapshot whose checksum of the transaction index is outdated, so that the next
        flush writes a new one."""
        if offset in self._snapshots:
            self._files.remove(stem_of(self._folder, offset) + SNAPSHOT_SUFFIX)
            self._snapshots.discard(offset)
        self._needs_flush = True


def _end_of_intact(view: memoryview, position: int, next_offset: int) -> int | None:
    """Return the offset after the last intact batch at or after a position, or None."""
    end_offset: int | None = None
    for item in scan(
        view_source(view), position, len(view), next_offset=next_offset, crc_from_offset=0
    ):
        if isinstance(item, Batch):
            end_offset = item.header.next_offset
    return end_offset
