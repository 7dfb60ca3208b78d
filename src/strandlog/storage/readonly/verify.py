"""Checks the files of a partition against each other and reports damage. Writes and prints nothing.

    look_at_partition   reports the contents of a partition and the problems in its files
    verify_state        checks the small state files that all partitions of a folder share

A problem is a `Finding` of one of three kinds:

    damage   a batch fails its checksum below the recovery point or before intact batches, the
             records of an intact batch cannot be decoded, durable offsets or segments are missing,
             offsets or epochs decrease, an index contradicts its log, or a state file fails its
             checksum
    tail     the last segment ends inside a batch that was never acknowledged, or its indexes refer
             to such batches: a writer is appending right now, or was killed while appending (its
             next start truncates the segment)
    note     information; nothing is wrong

A writer may be active. So the recovery point is read first, then the indexes, then the log, which
by then contains everything that the first two refer to. Files are read, never mapped, because a
writer may truncate the last one. If damage is found and the folder has changed during the check
(compaction swaps files, retention removes them), the partition is checked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from strandlog.errors import CorruptStateError, DataError, UnknownLayoutError
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import BatchHeader
from strandlog.record.checksum import crc32c
from strandlog.storage import paths
from strandlog.storage.files import DIRECTORY, Files
from strandlog.storage.folder.checkpoint import read_document, read_offsets
from strandlog.storage.folder.log_dir import check_layout
from strandlog.storage.partition.producer_state import ProducerState, snapshot_name
from strandlog.storage.partition.recovery_point import read_recovery_point
from strandlog.storage.paths import join, segment_offsets
from strandlog.storage.readonly.dump import codec_name, read_index, read_time_index, scan_file
from strandlog.storage.segment.manifest import losses, read_manifest
from strandlog.storage.segment.scan import NEVER, Batch, Damage
from strandlog.storage.segment.segment import stem_of

LOOKS_BEFORE_GIVING_UP = 5
CHECKPOINTS = (
    paths.LOG_START_CHECKPOINT,
    paths.CLEANER_CHECKPOINT,
    paths.HIGH_WATERMARK_CHECKPOINT,
    paths.RECOVERY_CHECKPOINT,
)
Kind = Literal["damage", "tail", "note"]


class Finding(NamedTuple):
    """A problem or a note about a file."""

    kind: Kind
    path: str
    text: str
    position: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class PartitionReport:
    """The contents of one partition and the findings about it."""

    name: str
    segments: int = 0
    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    missing_offsets: int = 0
    start_offset: int = 0
    end_offset: int = 0
    first_timestamp: int = -1
    last_timestamp: int = -1
    codecs: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return any(finding.kind == "damage" for finding in self.findings)

    def note(self, header: BatchHeader) -> None:
        """Add one batch to the totals."""
        self.batches += 1
        self.records += header.record_count
        self.codecs[codec_name(header)] += 1
        first = header.max_timestamp if header.has_delete_horizon else header.base_timestamp
        if first >= 0 and not 0 <= self.first_timestamp <= first:
            self.first_timestamp = first
        self.last_timestamp = max(self.last_timestamp, header.max_timestamp)

    def reach(self, offset: int, end_offset: int) -> None:
        """Advance the end of the log to `end_offset`; count the offsets missing before `offset`."""
        self.missing_offsets += max(0, offset - self.end_offset)
        self.end_offset = max(self.end_offset, end_offset)


def partition_folders(files: Files, path: str) -> list[str]:
    """Return the partition folders in a data folder, or the folder itself if it is a partition."""
    try:
        names = files.list_dir(path)
    except FileNotFoundError:
        raise UnknownLayoutError(path, "there is no such folder") from None
    except NotADirectoryError:
        raise UnknownLayoutError(path, "it is a file, not a folder") from None
    folders = [name for name, size in names.items() if size == DIRECTORY]
    found = [tp for tp in map(paths.parse_partition_dir, folders) if tp is not None]
    if found or paths.META_PROPERTIES in names:
        return [join(path, paths.partition_dir(tp)) for tp in sorted(found)]
    if segment_offsets(names, paths.LOG_SUFFIX) or paths.PARTITION_METADATA in names:
        return [path]
    raise UnknownLayoutError(path, "it holds neither partitions nor segments")


def _decoding_error(files: Files, path: str, batch: Batch) -> str:
    """Return why the records of an intact batch cannot be decoded, or "" if they can."""
    data = files.read_at(path, batch.position, batch.header.size_bytes)
    try:
        for _ in BatchView(data).pieces("", 0):
            pass  # decode in chunks, because a batch may hold millions of records
    except DataError as error:
        return str(error)
    return ""


def look_at_partition(
    files: Files,
    folder: str,
    *,
    verifies: bool = True,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> PartitionReport:
    """Report the contents of a partition and, with `verifies`, whether its files are consistent.

    `on_bytes` is called with the size of each processed range of the log.
    """
    for _ in range(LOOKS_BEFORE_GIVING_UP):
        try:
            before = _sealed_names(files, folder)
            report = _Look(files, folder, verifies, on_bytes).run()
        except FileNotFoundError:
            continue  # retention, compaction or a newer snapshot removed a file
        if not report.is_damaged or _sealed_names(files, folder) == before:
            return report
    return _Look(files, folder, verifies, on_bytes).run()


def _sealed_names(files: Files, folder: str) -> dict[str, int]:
    """Return the segments of a folder and their sizes, with size 0 for the last, which may grow."""
    names = files.list_dir(folder)
    logs = sorted(name for name in names if name.endswith(paths.LOG_SUFFIX))
    return {name: names[name] if name != logs[-1] else 0 for name in logs}


class _EntryCheck:
    """Compares the entries of an index with the batches of the log as they are scanned."""

    def __init__(self, path: str, entries: Sequence[tuple[int, int]], what: str) -> None:
        self._path = path
        self._entries = entries
        self._what = what
        self._next = 0
        self._wrong: list[tuple[int, int]] = []

    def note(self, last_offset: int, value: int) -> None:
        """Check the index entries up to `last_offset`, the last offset of the batch just scanned.
        An entry for that batch must hold `value`."""
        while self._next < len(self._entries) and self._entries[self._next][0] <= last_offset:
            if self._entries[self._next] != (last_offset, value):
                self._wrong.append(self._entries[self._next])
            self._next += 1

    def skip_below(self, offset: int | None) -> None:
        """Skip entries below an offset, or all remaining entries if it is None."""
        while self._next < len(self._entries):
            if offset is not None and self._entries[self._next][0] >= offset:
                return
            self._next += 1

    def findings(self, promised_offset: int) -> Iterator[Finding]:
        """Yield a finding if entries are wrong. It counts as damage if the first wrong entry is
        below `promised_offset`; entries above that refer to unacknowledged records."""
        wrong = [*self._wrong, *self._entries[self._next :]]
        if wrong:
            offset, value = wrong[0]
            kind: Kind = "damage" if offset < promised_offset else "tail"
            yield Finding(
                kind,
                self._path,
                f"{len(wrong)} of {len(self._entries)} entries contradict the log; the first says "
                f"offset {offset} {self._what} {value}; the index can be rebuilt from the log",
                offset=offset,
            )


def _entry_checks(files: Files, stem: str | None) -> tuple[_EntryCheck, _EntryCheck]:
    """Return the checks of a segment's two indexes; if `stem` is None, they check nothing."""
    if stem is None:
        return _EntryCheck("", [], ""), _EntryCheck("", [], "")
    index, moments = stem + paths.INDEX_SUFFIX, stem + paths.TIME_INDEX_SUFFIX
    times = [(entry.offset, entry.timestamp) for entry in read_time_index(files, moments)]
    return (
        _EntryCheck(index, read_index(files, index), "is at byte"),
        _EntryCheck(moments, times, "has time"),
    )


class _Look:
    """A single pass over one partition."""

    def __init__(
        self, files: Files, folder: str, verifies: bool, on_bytes: Callable[[int], None]
    ) -> None:
        self._files = files
        self._folder = folder
        self._verifies = verifies
        self._on_bytes = on_bytes
        self._report = PartitionReport(folder.rstrip("/").rpartition("/")[2])
        self._point = read_recovery_point(files, join(folder, paths.RECOVERY_POINT))
        self._claims = set(read_manifest(files, folder).claims)
        self._promised = max(
            [self._point.offset if self._point else 0, *(c.end_offset for c in self._claims)]
        )
        self._leader_epoch = -1

    def run(self) -> PartitionReport:
        report = self._report
        names = self._files.list_dir(self._folder)
        bases = segment_offsets(names, paths.LOG_SUFFIX)
        report.segments = len(bases)
        report.start_offset = report.end_offset = bases[0] if bases else 0
        for number, base in enumerate(bases):
            is_last = number + 1 == len(bases)
            report.size_bytes += names[paths.segment_stem(base) + paths.LOG_SUFFIX]
            self._begin_at(base)
            self._walk_segment(base, is_last=is_last)
        self._check_end()
        self._check_manifest(names)
        if self._verifies:
            self._check_side_files(names)
        return report

    def _say(self, kind: Kind, path: str, text: str, offset: int | None = None) -> None:
        self._report.findings.append(Finding(kind, path, text, offset=offset))

    def _begin_at(self, base: int) -> None:
        report = self._report
        if base < report.end_offset:
            text = (
                f"it starts at offset {base}, but the previous segment ends at {report.end_offset}"
            )
            self._say("damage", stem_of(self._folder, base) + paths.LOG_SUFFIX, text, base)
        report.reach(base, base)

    def _walk_segment(self, base: int, *, is_last: bool) -> None:
        report, stem = self._report, stem_of(self._folder, base)
        path = stem + paths.LOG_SUFFIX
        positions, times = _entry_checks(self._files, stem if self._verifies else None)
        for item in scan_file(self._files, path, checks_crc=self._verifies):
            if isinstance(item, Damage):
                self._note_damage(path, item, is_last=is_last)
                positions.skip_below(item.end_offset)
                times.skip_below(item.end_offset)
                continue
            header = item.header
            if header.leader_epoch < self._leader_epoch:
                text = f"leader epoch decreases from {self._leader_epoch} to {header.leader_epoch}"
                self._say("damage", path, text, header.base_offset)
            self._leader_epoch = header.leader_epoch
            if self._verifies:
                self._check_records(path, item)
            report.note(header)
            report.reach(header.base_offset, header.next_offset)
            positions.note(header.last_offset, item.position)
            times.note(header.last_offset, header.max_timestamp)
            self._on_bytes(header.size_bytes)
        promised = self._promised if is_last else NEVER
        report.findings += [*positions.findings(promised), *times.findings(promised)]

    def _check_records(self, path: str, batch: Batch) -> None:
        error = _decoding_error(self._files, path, batch)
        if error:
            header = batch.header
            text = (
                f"the records with offsets {header.base_offset} to {header.last_offset} cannot be "
                f"decoded, although the checksum of their batch matches: {error}"
            )
            found = Finding("damage", path, text, batch.position, header.base_offset)
            self._report.findings.append(found)

    def _note_damage(self, path: str, damage: Damage, *, is_last: bool) -> None:
        size = damage.end_position - damage.position
        self._on_bytes(size)
        kind: Kind = "damage"
        if damage.end_offset is not None:
            meaning = f"offsets {damage.start_offset} to {damage.end_offset - 1} cannot be read"
        elif not is_last or damage.start_offset < self._promised:
            meaning = f"offsets from {damage.start_offset} on cannot be read"
        else:
            kind, meaning = "tail", "being written or torn; these bytes were never acknowledged"
        text = f"{damage.reason}: {size} bytes, {meaning}"
        self._report.findings.append(
            Finding(kind, path, text, damage.position, damage.start_offset)
        )

    def _check_end(self) -> None:
        end_offset = self._report.end_offset
        if end_offset < self._promised and not self._report.is_damaged:
            text = f"offsets {end_offset} to {self._promised - 1} were durable and are lost"
            self._say("damage", self._folder, text, end_offset)

    def _check_manifest(self, names: dict[str, int]) -> None:
        """Compare the segments with the manifest entries that existed before the pass."""
        manifest = read_manifest(self._files, self._folder)
        path = join(self._folder, paths.SEGMENT_MANIFEST)
        for loss in losses(manifest.claims, names):
            if loss.claim in self._claims:  # ignore entries that the owner has added since
                text = loss.describe(self._folder)
                self._say("damage", self._folder, text, loss.claim.base_offset)
        if manifest.damaged:
            self._say("damage", path, f"entries that fail their checksum: {manifest.damaged}")

    def _check_side_files(self, names: dict[str, int]) -> None:
        if self._point is None and names.get(paths.RECOVERY_POINT):
            path = join(self._folder, paths.RECOVERY_POINT)
            self._say("damage", path, "all of its slots fail their checksums")
        for offset in segment_offsets(names, paths.SNAPSHOT_SUFFIX):
            # A snapshot above the snapshot point may be incomplete, and recovery does not use it.
            stem = stem_of(self._folder, offset)
            path = stem + paths.SNAPSHOT_SUFFIX
            is_used = self._point is None or offset <= self._point.snapshot_offset
            try:
                data = self._files.read(path)
            except FileNotFoundError:
                continue  # the owner has written a newer one since the files were listed
            if is_used and ProducerState.from_snapshot(data, snapshot_name(stem)) is None:
                self._say("damage", path, "the producer snapshot fails its checksum")
        self._check_transaction_indexes()
        for name, size in sorted(names.items()):
            if name.endswith(paths.DAMAGED_SUFFIX):
                text = f"{size} bytes that an earlier recovery set aside"
                self._say("note", join(self._folder, name), text)

    def _check_transaction_indexes(self) -> None:
        """Compare the transaction indexes of sealed segments with the manifest."""
        for claim in sorted(self._claims):
            path = stem_of(self._folder, claim.base_offset) + paths.ABORT_INDEX_SUFFIX
            if claim.aborted_crc is None:
                continue
            data = self._files.read(path) if self._files.exists(path) else b""
            if crc32c(data) != claim.aborted_crc:
                text = (
                    "its checksum differs from the one in the manifest; the next start rebuilds it"
                )
                self._say("damage", path, text)


def verify_state(files: Files, folder: str, documents: Iterable[str] = ()) -> list[Finding]:
    """Verify the checksums of `meta.properties`, the checkpoints and the given JSON documents."""
    try:
        check_layout(files, folder)
    except CorruptStateError as error:
        return [Finding("damage", error.path, error.reason)]
    except UnknownLayoutError as error:
        return [Finding("note", folder, f"state files were not checked: {error.detail}")]
    problems: list[tuple[str, str]] = []
    for name in (*CHECKPOINTS, *documents):
        said: list[str] = []
        reader = read_offsets if name in CHECKPOINTS else read_document
        reader(files, join(folder, name), said)
        problems += [(name, text.removeprefix(join(folder, name)).lstrip()) for text in said]
    return [Finding("damage", join(folder, name), text) for name, text in problems]
