"""The recovery point file, which records the offset up to which a partition is known to be durable.

    slot:  i64 recovery point | i64 snapshot point | u64 sequence | u8 flags | u32 CRC-32C
    flags: 1 bounds readers · 2 fsync failed · 4 provisional
    file:  four slots, each in its own sector: two that are written alternately after each sync,
           and two that are written alternately and synced (`settled`). The slot with the highest
           sequence is current.

    0 ......... snapshot point ......... recovery point ......... end of the file
      trusted,                 checked: a bad            checked: a bad
      not read                 batch is damage           batch is a torn write

Everything below the *recovery point* has been synced. Below the *snapshot point*, the indexes and a
snapshot of the producer state have been synced too. A start therefore reads only the log above the
snapshot point and a few headers below it, and recovery can distinguish a torn tail (above the
recovery point) from damage (below it).

The file does not have to be synced with each flush. It is written *after* the syncs that it
records, so a value that survives a power failure may be outdated but is never wrong, and a kill -9
loses nothing. A torn slot fails its checksum, and another slot is used.

A synced slot is written when the partition is created, after a recovery that read or changed
anything, when the durability has changed, and before compaction or truncation creates a gap. So
there is always a valid slot, gaps below the recovery point are expected, and a gap above it means
that records were written but did not reach the disk.

`fsync_failed` means that a sync failed and that the data above the recovery point has not been
rewritten since: the page cache may contain that data, marked clean, and never write it to disk. The
flag survives a kill -9. It need not survive a power failure, because the page cache is lost too.

`is_provisional` means that all slots were lost and that the recovery that followed has not
finished. Such a slot is not used as a recovery point: like the interrupted start, the next one
reads the whole log and skips the offsets that may have been assigned (`KnownEnd`). The slot only
preserves `fsync_failed`.

`bounds_readers` tells other processes that read the folder whether to stop at the recovery point.
With durability "fsync" they must not show anything above it, because a power failure could undo it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files

_BODY = struct.Struct(">qqQB")
_CRC = struct.Struct(">I")
SLOT_SIZE = _BODY.size + _CRC.size
SECTOR_BYTES = 512
_BOUNDS_READERS, _SUSPECT, _PROVISIONAL = 1, 2, 4
_FIRST_SYNCED_SLOT = 2


class RecoveryPoint(NamedTuple):
    """The contents of one slot."""

    offset: int
    snapshot_offset: int
    sequence: int
    bounds_readers: bool
    fsync_failed: bool = False
    is_provisional: bool = False


START = RecoveryPoint(0, 0, 0, bounds_readers=True, is_provisional=True)


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
        is_provisional=flags & _PROVISIONAL != 0,
    )


def _packed(point: RecoveryPoint) -> bytes:
    flags = (
        _BOUNDS_READERS * point.bounds_readers
        | _SUSPECT * point.fsync_failed
        | _PROVISIONAL * point.is_provisional
    )
    body = _BODY.pack(point.offset, point.snapshot_offset, point.sequence, flags)
    return body + _CRC.pack(crc32c(body))


def _slots(files: Files, path: str) -> list[bytes]:
    try:
        data = files.read(path)
    except FileNotFoundError:
        data = b""
    return [data[start : start + SLOT_SIZE] for start in range(0, 4 * SECTOR_BYTES, SECTOR_BYTES)]


def read_recovery_point(files: Files, path: str) -> RecoveryPoint | None:
    """Return the newest intact slot, or None if there is none or it is provisional."""
    newest = _newest([_parse(piece) for piece in _slots(files, path)])
    return None if newest is None or newest.is_provisional else newest


def _newest(slots: list[RecoveryPoint | None]) -> RecoveryPoint | None:
    return max((slot for slot in slots if slot), key=lambda slot: slot.sequence, default=None)


def mended_recovery_point(files: Files, path: str) -> tuple[RecoveryPoint | None, list[str]]:
    """Overwrite every slot that was written and fails its checksum with the newest intact one, or
    with `START` if there is none. Return the newest intact slot, which may be provisional, or None,
    and the problems to report. For the owner of the partition only."""
    pieces = _slots(files, path)
    slots = [_parse(piece) if any(piece) else None for piece in pieces]
    newest = _newest(slots)
    problems: list[str] = []
    for number, (piece, slot) in enumerate(zip(pieces, slots, strict=True)):
        if slot is None and any(piece):  # a slot of zeros was never written
            files.write_at(path, number * SECTOR_BYTES, _packed(newest or START))
            problems.append(f"slot {number} of {path} failed its checksum and was rewritten")
    return newest, problems


def begin_recovery_point(files: Files, path: str, point: RecoveryPoint) -> None:
    """Write the first recovery point of a new file, to a slot for synced points. The caller syncs
    the file."""
    files.write_at(path, _FIRST_SYNCED_SLOT * SECTOR_BYTES, _packed(point))


def write_recovery_point(
    files: Files, path: str, point: RecoveryPoint, *, settled: bool = False
) -> None:
    """Write a recovery point to the next slot only. If `settled`, use a slot for synced points, and
    sync the file."""
    number = point.sequence % 2
    if settled:
        third, fourth = (_parse(piece) for piece in _slots(files, path)[2:])
        is_fourth = third and (not fourth or third.sequence > fourth.sequence)
        number = _FIRST_SYNCED_SLOT + (1 if is_fourth else 0)
    files.write_at(path, number * SECTOR_BYTES, _packed(point))
    if settled:
        files.sync_file(path)
