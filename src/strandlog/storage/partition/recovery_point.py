"""How far a partition is known to be good: one small file, written after each sync.

    slot:  i64 recovery point | i64 snapshot point | u64 sequence | u8 flags | u32 CRC-32C
    flags: 1 bounds readers · 2 suspect
    file:  four slots, each in a sector of its own: two that are written in turn after each sync,
           and two that are written in turn and synced (`settled`); the highest sequence counts

    0 ......... snapshot point ......... recovery point ......... end of the file
      trusted                  checked: what             checked: what
      unread                   is bad is damage          is bad was not finished

Below the *recovery point* the log was synced. Below the *snapshot point* its indexes and a snapshot
of the producer state were synced as well. So a start reads only what lies above, and recovery can
tell a torn tail (above the recovery point) from damage (below it).

The file itself need not be synced with each flush: it is written *after* the syncs it tells of, so
whatever value survives a power cut is true, merely old; and it survives a kill -9 exactly. A slot
torn half-way fails its checksum and another one counts.

But it is settled when the partition is made, and before compaction or truncation make a gap. So
there always is a value, a gap below it is nothing special, and a gap above it means that records
were written and did not reach the disk.

`fsync_failed` tells that a sync failed and what lies above the recovery point was not written anew
since: the page cache may show it, call it clean, and never bring it to the disk. It survives a
kill -9; after a power cut the page cache is gone, and so is the need for it.

`bounds_readers` tells processes that read the folder beside the owner whether to stop at the
recovery point: with durability "fsync" nothing above it may be shown, for a power cut could take it
back.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandlog.record.batch_header import crc32c
from strandlog.storage.files import Files

_BODY = struct.Struct(">qqQB")
_CRC = struct.Struct(">I")
SLOT_SIZE = _BODY.size + _CRC.size
SECTOR_BYTES = 512
_BOUNDS_READERS, _SUSPECT = 1, 2


class RecoveryPoint(NamedTuple):
    """One value of the file."""

    offset: int
    snapshot_offset: int
    sequence: int
    bounds_readers: bool
    fsync_failed: bool = False


START = RecoveryPoint(0, 0, 0, True)


def _parse(slot: bytes) -> RecoveryPoint | None:
    if len(slot) != SLOT_SIZE:
        return None
    body = slot[: _BODY.size]
    if _CRC.unpack_from(slot, _BODY.size)[0] != crc32c(body):
        return None
    offset, snapshot_offset, sequence, flags = _BODY.unpack(body)
    return RecoveryPoint(
        offset,
        snapshot_offset,
        sequence,
        bounds_readers=flags & _BOUNDS_READERS != 0,
        fsync_failed=flags & _SUSPECT != 0,
    )


def _packed(point: RecoveryPoint) -> bytes:
    flags = _BOUNDS_READERS * point.bounds_readers | _SUSPECT * point.fsync_failed
    body = _BODY.pack(point.offset, point.snapshot_offset, point.sequence, flags)
    return body + _CRC.pack(crc32c(body))


def _slots(files: Files, path: str) -> list[bytes]:
    try:
        data = files.read(path)
    except FileNotFoundError:
        data = b""
    return [data[start : start + SLOT_SIZE] for start in range(0, 4 * SECTOR_BYTES, SECTOR_BYTES)]


def read_recovery_point(files: Files, path: str) -> RecoveryPoint | None:
    """The newest intact slot, or None when there is none."""
    slots = [_parse(piece) for piece in _slots(files, path)]
    return max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)


def mended_recovery_point(files: Files, path: str) -> tuple[RecoveryPoint | None, list[str]]:
    """The newest intact slot, and what to report, for the owner: slots that fail their checksum are
    written over with it."""
    pieces = _slots(files, path)
    slots = [_parse(piece) if any(piece) else None for piece in pieces]
    newest = max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)
    problems: list[str] = []
    for number, (piece, slot) in enumerate(zip(pieces, slots, strict=True)):
        if slot is None and any(piece):  # zeros: it was never written
            files.write_at(path, number * SECTOR_BYTES, _packed(newest or START))
            problems.append(f"slot {number} of {path} failed its checksum and was written anew")
    return newest, problems


def write_recovery_point(
    files: Files, path: str, point: RecoveryPoint, *, settled: bool = False
) -> None:
    """Write the next slot; the others stay as they are. A settled one is durable after this."""
    number = point.sequence % 2
    if settled:
        third, fourth = (_parse(piece) for piece in _slots(files, path)[2:])
        number = 3 if third and (not fourth or third.sequence > fourth.sequence) else 2
    files.write_at(path, number * SECTOR_BYTES, _packed(point))
    if settled:
        files.sync_file(path)
