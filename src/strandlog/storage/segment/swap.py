"""Replaces sealed segments with a compacted one, so that a crash at any point loses nothing.

    1  write     B.log.cleaned and its indexes, also .cleaned; sync them
    2  rename    *.cleaned -> *.swap, the log last; sync the folder                <- commit point
    3  retire    the originals to *.deleted, oldest first
    4  rename    *.swap -> final names, the log last; sync the folder

A crash before step 2 completes leaves `.cleaned` files (or `.swap` indexes without a log). They are
removed, and the originals remain in use. A crash after it leaves `B.log.swap`: the next start
removes the originals whose base offset lies in [B, end of the swap) and finishes step 4, unless the
swap is damaged and its first original still exists. An original above that range is kept. Its
records are newer than all records in the swap, so no old value reappears, and the next compaction
removes superseded records.

B is the base offset of the first original, so the new segment covers the same offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandlog.storage.file_remover import FileRemover
from strandlog.storage.files import TEMP_SUFFIX, Files
from strandlog.storage.paths import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SIDE_SUFFIXES,
    SWAP_SUFFIX,
    join,
    parse_segment_file,
    segment_stem,
)
from strandlog.storage.segment.scan import Damage, scan, view_source
from strandlog.storage.segment.segment import Segment, stem_of

# The log comes last: renaming it commits the swap in step 2 and finishes it in step 4.
SWAPPED_SUFFIXES = (*SIDE_SUFFIXES, LOG_SUFFIX)


def commit_swap(files: Files, folder: str, base_offset: int) -> None:
    """Run step 2: commit the cleaned files, which are complete and synced."""
    _rename_all(files, folder, base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
    files.sync_dir(folder)


def finish_swap(
    files: Files,
    folder: str,
    originals: Sequence[Segment],
    base_offset: int,
    remover: FileRemover,
    due_ms: int,
) -> None:
    """Run steps 3 and 4 while the log is open. The caller must sync the folder afterwards."""
    for segment in originals:
        for path in segment.paths:
            remover.retire(files, path, due_ms)
    _rename_all(files, folder, base_offset, SWAP_SUFFIX, "")


def _rename_all(files: Files, folder: str, base_offset: int, old: str, new: str) -> None:
    stem = stem_of(folder, base_offset)
    for suffix in SWAPPED_SUFFIXES:
        if files.exists(stem + suffix + old):
            files.rename(stem + suffix + old, stem + suffix + new)


def needs_tidying(names: Mapping[str, int]) -> bool:
    """Return whether these files include leftovers of interrupted work or indexes without a log."""
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None or parsed[2]:
            if name.endswith((TEMP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX)):
                return True
        elif parsed[1] in SIDE_SUFFIXES and segment_stem(parsed[0]) + LOG_SUFFIX not in names:
            return True
    return False


def tidy_after_crash(files: Files, folder: str) -> list[int]:
    """Finish or undo interrupted work in a partition's folder. Idempotent.

    Return the base offsets of indexes whose log is missing although strandlog did not remove it. If
    there was a `.log.swap` file, return an empty list, because an interrupted swap can leave such
    indexes.
    """
    swaps: list[int] = []
    originals: list[int] = []
    explained: set[int] = set()
    for name in files.list_dir(folder):
        parsed = parse_segment_file(name)
        if parsed and parsed[1:] == (LOG_SUFFIX, DELETED_SUFFIX):
            explained.add(parsed[0])
        if name.endswith((TEMP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)):
            files.remove(join(folder, name))
        elif parsed and parsed[1] == LOG_SUFFIX:
            (swaps if parsed[2] == SWAP_SUFFIX else originals).append(parsed[0])
    for base_offset in sorted(swaps):
        _finish_after_crash(files, folder, base_offset, originals)
    lonely: set[int] = set()
    names = files.list_dir(folder)
    for name in names:
        parsed = parse_segment_file(name)
        # Indexes of a swap that was never committed, or of a segment whose log is missing.
        is_swap = name.endswith(SWAP_SUFFIX)
        is_lonely = (
            parsed is not None
            and parsed[1] in SIDE_SUFFIXES
            and not parsed[2]
            and segment_stem(parsed[0]) + LOG_SUFFIX not in names
        )
        if is_lonely and parsed is not None:
            lonely.add(parsed[0])
        if is_swap or is_lonely:
            files.remove(join(folder, name))
    return sorted(lonely - explained) if not swaps else []


def _finish_after_crash(
    files: Files, folder: str, base_offset: int, originals: Sequence[int]
) -> None:
    swap_path = stem_of(folder, base_offset) + LOG_SUFFIX + SWAP_SUFFIX
    end_offset = _end_offset(files, swap_path)
    if end_offset is None and base_offset in originals:
        files.remove(swap_path)  # it is damaged, and the originals still exist
        return
    for original in sorted(originals):
        if base_offset <= original < max(end_offset or 0, base_offset + 1):
            for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
                files.remove(stem_of(folder, original) + suffix)
    files.sync_dir(folder)  # else, after a crash, an index without a log would look like a loss
    _rename_all(files, folder, base_offset, SWAP_SUFFIX, "")
    files.sync_dir(folder)


def _end_offset(files: Files, path: str) -> int | None:
    """Return the offset after the last batch of a `.swap` log, or None if it is damaged."""
    mapped = files.map(path)
    end_offset = 0
    try:
        source, size_bytes = view_source(mapped.view), len(mapped.view)
        for item in scan(source, 0, size_bytes, next_offset=0, crc_from_offset=0):
            if isinstance(item, Damage):
                return None
            end_offset = item.header.next_offset
    finally:
        mapped.close()
    return end_offset
