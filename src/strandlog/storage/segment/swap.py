"""Replaces sealed segments by a compacted one so that a crash at any point loses nothing.

    1  write     B.log.cleaned and its indexes, also .cleaned; sync them
    2  rename    *.cleaned -> *.swap, the log last; sync the folder        <- from here on it counts
    3  retire    the originals to *.deleted, from old to new
    4  rename    *.swap -> final names, the log last; sync the folder

A crash before step 2 is done leaves `.cleaned` files (or index swaps without a log): they are
dropped, the originals serve. A crash after it leaves `B.log.swap`: the start removes the originals
whose base lies in [B, end of the swap) and finishes step 4. An original above that range stays; its
records are newer than all that the swap holds, so nothing old comes back, and the next compaction
takes care of it.

B is the base offset of the first original, so the new segment answers for the same offsets.
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

# The log comes last: its name is what makes a swap count, and what ends it.
SWAPPED_SUFFIXES = (*SIDE_SUFFIXES, LOG_SUFFIX)


def commit_swap(files: Files, folder: str, base_offset: int) -> None:
    """Step 2: the cleaned files are complete and synced; make them count."""
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
    """Work 3 and 4, while the log is open; the folder is still to be synced after it."""
    for segment in originals:
        for path in segment.paths:
            remover.retire(path, due_ms)
    _rename_all(files, folder, base_offset, SWAP_SUFFIX, "")


def _rename_all(files: Files, folder: str, base_offset: int, old: str, new: str) -> None:
    stem = stem_of(folder, base_offset)
    for suffix in SWAPPED_SUFFIXES:
        if files.exists(stem + suffix + old):
            files.rename(stem + suffix + old, stem + suffix + new)


def needs_tidying(names: Mapping[str, int]) -> bool:
    """Whether a folder with these files has half-done work in it."""
    for name in names:
        parsed = parse_segment_file(name)
        if parsed is None or parsed[2]:
            if name.endswith((TEMP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX)):
                return True
        elif parsed[1] in SIDE_SUFFIXES and segment_stem(parsed[0]) + LOG_SUFFIX not in names:
            return True
    return False


def tidy_after_crash(files: Files, folder: str) -> list[int]:
    """Bring a partition's folder to a state without half-done work. Safe to repeat.

    Returns the base offsets of indexes whose log is gone although it was not removed.
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
        # Indexes of a swap that never came to count, or of a segment that is gone.
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
        files.remove(swap_path)  # it rotted, and its originals are still there: they serve
        return
    for original in sorted(originals):
        if base_offset <= original < max(end_offset or 0, base_offset + 1):
            for suffix in (LOG_SUFFIX, *SIDE_SUFFIXES):
                files.remove(stem_of(folder, original) + suffix)
    files.sync_dir(folder)  # or the next start would take a lonely index for a lost log
    _rename_all(files, folder, base_offset, SWAP_SUFFIX, "")
    files.sync_dir(folder)


def _end_offset(files: Files, path: str) -> int | None:
    """The offset after the last record of a swap, or None when the file is damaged."""
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
