"""The file `segments` lists the sealed segments of a partition, so that a lost one is detected.

    entry: i64 base offset | i64 end offset | i64 bytes | u32 CRC-32C (with the name of the folder)

Entries are appended until the file is rewritten. An entry is a *claim* that the segment with this
base offset has this end offset and a file of this size; it replaces every earlier entry that
overlaps those offsets. An entry of size -1 only withdraws the earlier entries, because their
segments may have been removed. An entry with a size below -1 adds the checksum of the transaction
index to the claim of its segment: the size is -2 minus that CRC-32C, which is 0 for a segment
without aborted transactions. Such an entry follows each claim, except those that older versions
wrote. So if the last entry is a claim, or if entries are damaged, checksums may be lost
(`unchecked_runs`).

    sealing      the claim is appended after the segment's files have been synced
    retention    the claims of the expired segments are durably withdrawn before the files are
                 removed
    compaction   the same for the originals; the new segment is claimed after the swap
    truncation   the same as for retention

So every claim in effect is true. A crash can only lose the newest claims, and the next start adds
them again. A segment that is missing, or whose size differs from its claim, is damage. Without
this file, a lost segment would leave only a gap, and gaps are normal. Claims about lost segments
remain until retention or compaction reaches them, so every start and every `log verify` reports the
loss. An entry that fails its checksum is skipped. At the end of the file it is considered torn;
anywhere else it is reported as damaged.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from strandlog.errors import DiskFullError
from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files
from strandlog.storage.paths import LOG_SUFFIX, SEGMENT_MANIFEST, join, segment_stem

_BODY = struct.Struct(">qqq")
_CRC = struct.Struct(">I")
ENTRY_SIZE = _BODY.size + _CRC.size
WITHDRAWN = -1
END_OF_OFFSETS = 2**63 - 1
SPARE_ENTRIES = 256  # rewrite the file if it has more than these plus twice the entries needed


class Claim(NamedTuple):
    """A manifest entry: the expected offsets, size and transaction index of one segment."""

    base_offset: int
    end_offset: int
    size_bytes: int
    aborted_crc: int | None = None  # checksum of the transaction index; None if it is unknown


class Loss(NamedTuple):
    """A segment that is missing (`size_bytes` is None) or whose size differs from its claim."""

    claim: Claim
    size_bytes: int | None

    @property
    def reason(self) -> str:
        """What is wrong with the file."""
        if self.size_bytes is None:
            return "the file is missing"
        if self.size_bytes > self.claim.size_bytes:
            return "it is longer than when it was sealed"
        return "its end is missing"

    def describe(self, folder: str) -> str:
        """Return a message that describes what is wrong with the segment."""
        base, end, claimed, _ = self.claim
        path = join(folder, segment_stem(base) + LOG_SUFFIX)
        if self.size_bytes is None:
            return f"{path} is missing: offsets {base} to {end - 1} are lost"
        size = f"{path} has {self.size_bytes} bytes instead of {claimed}"
        if self.size_bytes > claimed:
            return f"{size}: {self.size_bytes - claimed} were added after the segment was sealed"
        return f"{size}: some of the offsets {base} to {end - 1} are lost"


class ReadManifest(NamedTuple):
    """The contents of a partition's manifest."""

    claims: list[Claim]
    entries: int  # number of entries up to the last valid one; anything after it is torn
    damaged: int  # number of entries that fail their checksum and precede a valid one
    last_claim: int | None = None  # base offset of the last valid entry, if that is a claim

    @property
    def without_checksum(self) -> set[int]:
        """The base offsets of claims that may have lost the checksum of their transaction index. If
        no entry is damaged, only the last claim may have lost it; an older version wrote the others
        without one."""
        return {
            claim.base_offset
            for claim in self.claims
            if claim.aborted_crc is None and (self.damaged or claim.base_offset == self.last_claim)
        }


NOTHING = ReadManifest([], 0, 0)


def read_manifest(files: Files, folder: str) -> ReadManifest:
    """Read the manifest and return the claims in effect, ordered by base offset."""
    try:
        data = files.read(join(folder, SEGMENT_MANIFEST))
    except FileNotFoundError:
        return NOTHING
    claims: dict[int, Claim] = {}
    bases: list[int] = []  # the keys of `claims`, in order
    damaged = bad = entries = 0
    last_claim: int | None = None
    name = _folder_name(folder)
    for start in range(0, len(data), ENTRY_SIZE):
        claim = _parse(data[start : start + ENTRY_SIZE], name)
        if claim is None:
            bad += 1
            continue
        damaged, entries = bad, start // ENTRY_SIZE + 1
        last_claim = claim.base_offset if claim.size_bytes > WITHDRAWN else None
        if claim.size_bytes < WITHDRAWN:
            _add_aborted(claims, claim)
            continue
        # The claims in effect do not overlap, so those that this entry replaces are adjacent.
        first = bisect_left(bases, claim.base_offset)
        if first and claims[bases[first - 1]].end_offset > claim.base_offset:
            first -= 1
        replaced = bases[first : bisect_left(bases, claim.end_offset)]
        for base in replaced:
            del claims[base]
        is_kept = claim.size_bytes != WITHDRAWN
        bases[first : first + len(replaced)] = [claim.base_offset] if is_kept else []
        if is_kept:
            claims[claim.base_offset] = claim
    return ReadManifest([claims[base] for base in bases], entries, damaged, last_claim)


def _add_aborted(claims: dict[int, Claim], found: Claim) -> None:
    known = claims.get(found.base_offset)
    if known is not None:
        aborted_crc = WITHDRAWN - 1 - found.size_bytes
        claims[found.base_offset] = known._replace(aborted_crc=aborted_crc)


def losses(claims: Iterable[Claim], names: dict[str, int]) -> list[Loss]:
    """Return the segments that are missing or whose size differs from the manifest."""
    found = []
    for claim in claims:
        size = names.get(segment_stem(claim.base_offset) + LOG_SUFFIX)
        if size != claim.size_bytes:
            found.append(Loss(claim, size))
    return found


def unchecked_runs(found: ReadManifest, bases: Sequence[int], trusted_offset: int) -> list[range]:
    """Return the runs of adjacent sealed segments below `trusted_offset` whose transaction indexes
    have lost their checksums, as positions in `bases`, the base offsets of all segments.

    After a crash, only the last entries can be missing. If the manifest is lost, one run contains
    all sealed segments below `trusted_offset`.
    """
    checked = {claim.base_offset for claim in found.claims} - found.without_checksum
    runs: list[range] = []
    for number, (base, end_offset) in enumerate(pairwise(bases)):
        if end_offset > trusted_offset:
            break
        if base in checked:
            continue
        is_next = bool(runs) and runs[-1].stop == number
        first = runs.pop().start if is_next else number
        runs.append(range(first, number + 1))
    return runs


def _overlaps(old: Claim, new: Claim) -> bool:
    return old.base_offset < new.end_offset and new.base_offset < old.end_offset


def _folder_name(folder: str) -> bytes:
    return folder.rpartition("/")[2].encode()


def _parse(entry: bytes, name: bytes) -> Claim | None:
    if len(entry) != ENTRY_SIZE:
        return None
    body = entry[: _BODY.size]
    if _CRC.unpack_from(entry, _BODY.size)[0] != crc32c(body + name):
        return None
    return Claim(*_BODY.unpack(body))


class SegmentManifest:
    """The manifest of an open partition."""

    __slots__ = ("_entries", "_files", "_folder", "is_damaged", "lost")

    def __init__(
        self, files: Files, folder: str, found: ReadManifest, lost: Sequence[Loss] = ()
    ) -> None:
        self._files = files
        self._folder = folder
        self._entries = found.entries
        self.is_damaged = found.damaged > 0
        self.lost = [loss.claim for loss in lost]

    @property
    def path(self) -> str:
        return join(self._folder, SEGMENT_MANIFEST)

    def claim(self, claims: Iterable[Claim]) -> None:
        """Append entries for sealed segments that are durable. The entries are not synced, because
        a manifest without them is also correct."""
        self._append(b"".join(map(self._packed, claims)))

    def claim_aborted(self, claims: Sequence[Claim]) -> None:
        """Update the entries of segments whose transaction indexes were rewritten."""
        checksums = {claim.base_offset: claim.aborted_crc for claim in claims}
        self._append(b"".join(map(self._packed_aborted, claims)))
        self.lost = [
            lost._replace(aborted_crc=checksums.get(lost.base_offset, lost.aborted_crc))
            for lost in self.lost
        ]

    def withdraw(self, base_offset: int, end_offset: int = END_OF_OFFSETS) -> None:
        """Withdraw all claims for a range of offsets. Durable after `sync`.

        A full disk must not prevent files from being removed: in that case, the manifest is
        emptied, and the next start adds the entries that are still valid.
        """
        if not self._entries:
            return
        try:
            self._append(self._entry(base_offset, end_offset, WITHDRAWN))
        except DiskFullError:
            self._files.truncate(self.path, 0)
            self._entries = 0
        kept = [claim for claim in self.lost if not base_offset <= claim.base_offset < end_offset]
        self.lost = kept

    def sync(self) -> None:
        """Make withdrawals durable before files are removed. May be called from any thread."""
        with contextlib.suppress(FileNotFoundError):  # there are no entries yet
            self._files.sync_file(self.path)

    def shorten(self, sealed: Sequence[Claim]) -> None:
        """Rewrite the file with only the claims about sealed and lost segments if it is damaged or
        most of its entries are obsolete. Durable when this returns."""
        if not self.is_damaged and self._entries <= 4 * len(sealed) + SPARE_ENTRIES:
            return
        claims = [c for c in sealed if not any(_overlaps(c, lost) for lost in self.lost)]
        data = b"".join(map(self._packed, sorted([*self.lost, *claims])))
        self._files.replace(self.path, data)
        self._entries, self.is_damaged = len(data) // ENTRY_SIZE, False

    def _append(self, data: bytes) -> None:
        if data:
            # Write at a fixed position instead of the end of the file, because an earlier write
            # may have been cut short by a full disk.
            self._files.write_at(self.path, self._entries * ENTRY_SIZE, data)
            self._entries += len(data) // ENTRY_SIZE

    def _packed(self, claim: Claim) -> bytes:
        entry = self._entry(claim.base_offset, claim.end_offset, claim.size_bytes)
        return entry + self._packed_aborted(claim)

    def _packed_aborted(self, claim: Claim) -> bytes:
        if claim.aborted_crc is None:
            return b""
        size_bytes = WITHDRAWN - 1 - claim.aborted_crc
        return self._entry(claim.base_offset, claim.end_offset, size_bytes)

    def _entry(self, base_offset: int, end_offset: int, size_bytes: int) -> bytes:
        body = _BODY.pack(base_offset, end_offset, size_bytes)
        return body + _CRC.pack(crc32c(body + _folder_name(self._folder)))
