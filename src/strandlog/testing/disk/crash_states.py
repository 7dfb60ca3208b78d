"""Enumerates the outcomes of a power cut: typical ones in a fixed order, then random ones.

Order of `crash_states`:

1. everything lost, everything kept, names without contents, contents without names;
2. each folder with each prefix of its unsynced name changes, once with the name changes in all
   other folders kept and once with them lost; and each file, with all name changes kept, with
   - each prefix of its unsynced changes,
   - the next change torn in the middle, after its first byte, before its last byte, at a sector
     boundary, at a page boundary,
   - all changes present, but one change, sector or page stale, or everything that was written
     stale (only the new size reached the disk),
   - its last sector garbage, and a torn sector garbage,
   each of these once with the contents of all other files kept and once with them lost;
3. with a budget and a `random.Random`, combinations of all these.

The choices of all nodes are interleaved, and each list is traversed in bisection order (last,
first, middle, quarters), so that a small budget covers a sample of everything. No choice is
repeated. The same disk, budget and seed produce the same choices.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from strandlog.testing.disk.crash_outcome import (
    ALL_KEPT,
    ALL_LOST,
    CrashChoice,
    FileFate,
    written_ranges,
)
from strandlog.testing.disk.nodes import (
    Cut,
    FileNode,
    FolderNode,
    Node,
    Range,
    Write,
    possible_nodes,
)

T = TypeVar("T")

SECTOR_BYTES = 512
PAGE_BYTES = 4096
MAX_FRUITLESS_SAMPLES = 200  # repeated choices in a row after which no new ones are expected


def crash_states(
    root: FolderNode, budget: int | None, rng: random.Random | None
) -> Iterator[CrashChoice]:
    """Yield up to `budget` choices: systematic ones, then random ones if `rng` is given. Without a
    budget, yield all systematic ones."""
    return islice(_distinct_choices(root, budget, rng), budget)


def random_choice(root: FolderNode, rng: random.Random) -> CrashChoice:
    """Return a random outcome."""
    return _sample(*_dirty_nodes(root), rng)


def _distinct_choices(
    root: FolderNode, budget: int | None, rng: random.Random | None
) -> Iterator[CrashChoice]:
    files, folders = _dirty_nodes(root)
    seen: set[CrashChoice] = set()
    for choice in _systematic_choices(files, folders):
        if choice not in seen:
            seen.add(choice)
            yield choice
    fruitless = 0
    while rng is not None and budget is not None and fruitless < MAX_FRUITLESS_SAMPLES:
        choice = _sample(files, folders, rng)
        if choice in seen:
            fruitless += 1
            continue
        fruitless = 0
        seen.add(choice)
        yield choice


def _dirty_nodes(root: FolderNode) -> tuple[list[FileNode], list[FolderNode]]:
    dirty: list[Node] = [node for node in possible_nodes(root) if node.unsynced]
    files = [node for node in dirty if isinstance(node, FileNode)]
    return files, [node for node in dirty if isinstance(node, FolderNode)]


def _systematic_choices(files: list[FileNode], folders: list[FolderNode]) -> Iterator[CrashChoice]:
    yield ALL_LOST
    if not files and not folders:
        return
    yield ALL_KEPT
    if files and folders:
        yield CrashChoice(names_kept=True)
        yield CrashChoice(rest_kept=True)
    turns = [_folder_choices(folder, len(folders) > 1, bool(files)) for folder in folders]
    turns.extend(_file_choices(file, len(files) > 1) for file in files)
    yield from _in_turns(turns)


def _folder_choices(
    folder: FolderNode, other_folders: bool, other_files: bool
) -> Iterator[CrashChoice]:
    # If this is the only folder, earlier choices already keep none or all of its changes.
    most = len(folder.unsynced)
    counts = range(most + 1) if other_folders else range(1, most)
    for count in _bisected(counts):
        names = ((folder.number, count),)
        for names_kept in (True, False) if other_folders else (True,):
            yield CrashChoice(folders=names, rest_kept=True, names_kept=names_kept)
            if other_files:
                yield CrashChoice(folders=names, rest_kept=False, names_kept=names_kept)


def _file_choices(file: FileNode, others: bool) -> Iterator[CrashChoice]:
    for fate in _in_turns([_prefixes(file), _tears(file), _damages(file)]):
        fates = ((file.number, fate),)
        yield CrashChoice(files=fates, rest_kept=True, names_kept=True)
        if others:
            yield CrashChoice(files=fates, names_kept=True)


def _prefixes(file: FileNode) -> Iterator[FileFate]:
    for kept in _bisected(range(len(file.unsynced) + 1)):
        yield FileFate(kept)


def _tears(file: FileNode) -> Iterator[FileFate]:
    writes = [
        (kept, _tear_points(change))
        for kept, change in enumerate(file.unsynced)
        if isinstance(change, Write) and len(change.data) > 1
    ]
    most = max((len(points) for _, points in writes), default=0)
    for place in range(most):
        for kept, points in _bisected(writes):
            if place < len(points):
                yield FileFate(kept, points[place])


def _tear_points(change: Write) -> list[int]:
    """Return the numbers of bytes to keep of a torn write, the most relevant first."""
    size = len(change.data)
    points = [size // 2, 1, size - 1]
    for block in (SECTOR_BYTES, PAGE_BYTES):
        first = -change.position % block or block
        if first < size:
            points.append(first)
            points.append(size - change.end_position % block)
    return [point for point in dict.fromkeys(points) if 0 < point < size]


def _damages(file: FileNode) -> Iterator[FileFate]:
    """Yield fates with stale or garbage bytes, and torn writes that end in garbage."""
    everything = len(file.unsynced)
    written = written_ranges(file.unsynced, len(file.contents))
    if not written:
        return
    yield FileFate(everything, stale=tuple(written))
    end = written[-1][1]
    yield FileFate(everything, garbage=((_block_start(end - 1, SECTOR_BYTES), end),))
    changes = [
        FileFate(everything, stale=((change.position, change.end_position),))
        for change in file.unsynced
        if isinstance(change, Write)
    ]
    sectors = _stale_blocks(everything, written, SECTOR_BYTES)
    pages = _stale_blocks(everything, written, PAGE_BYTES)
    torn = [
        _torn_garbage(kept, change)
        for kept, change in enumerate(file.unsynced)
        if isinstance(change, Write) and len(change.data) > 1
    ]
    yield from _in_turns([iter(_bisected(fates)) for fates in (changes, sectors, pages, torn)])


def _torn_garbage(kept: int, change: Write) -> FileFate:
    size = len(change.data) // 2
    tear = change.position + size
    sector = _block_start(tear - 1, SECTOR_BYTES)
    # Garbage only within this write, because the changes before it are intact in this outcome.
    return FileFate(kept, size, garbage=((max(sector, change.position), tear),))


def _stale_blocks(kept: int, written: list[Range], block: int) -> list[FileFate]:
    blocks = {
        place for start, end in written for place in range(_block_start(start, block), end, block)
    }
    return [FileFate(kept, stale=((place, place + block),)) for place in sorted(blocks)]


def _sample(files: list[FileNode], folders: list[FolderNode], rng: random.Random) -> CrashChoice:
    return CrashChoice(
        files=tuple((file.number, _sample_fate(file, rng)) for file in files),
        folders=tuple((node.number, _sample_count(len(node.unsynced), rng)) for node in folders),
    )


def _sample_count(most: int, rng: random.Random) -> int:
    """Return a random count, often 0 or `most`, because most crashes lose or keep everything."""
    roll = rng.randrange(4)
    if roll < 2:
        return most * roll
    return rng.randint(0, most)


def _sample_fate(file: FileNode, rng: random.Random) -> FileFate:
    kept = _sample_count(len(file.unsynced), rng)
    torn_bytes = 0
    applied: list[Write | Cut] = file.unsynced[:kept]
    if kept < len(file.unsynced) and rng.random() < 0.5:
        change = file.unsynced[kept]
        if isinstance(change, Write) and len(change.data) > 1:
            torn_bytes = rng.randrange(1, len(change.data))
            applied.append(change.torn(torn_bytes))
    written = written_ranges(applied, len(file.contents))
    if not written or rng.random() < 0.6:
        return FileFate(kept, torn_bytes)
    stale = _sample_blocks(written, rng)
    if rng.random() < 0.25:
        end = written[-1][1]
        garbage = ((_block_start(end - 1, SECTOR_BYTES), end),)
        return FileFate(kept, torn_bytes, stale, garbage)
    return FileFate(kept, torn_bytes, stale)


def _sample_blocks(written: list[Range], rng: random.Random) -> tuple[Range, ...]:
    block = rng.choice((SECTOR_BYTES, PAGE_BYTES))
    blocks = [fate.stale[0] for fate in _stale_blocks(0, written, block)]
    count = rng.randint(1, min(3, len(blocks)))
    return tuple(sorted(rng.sample(blocks, count)))


def _block_start(position: int, block: int) -> int:
    return position - position % block


def _bisected(items: Sequence[T]) -> list[T]:
    """Return the items in this order: last, first, middle, then the middles of the other spans."""
    order = dict.fromkeys((len(items) - 1, 0)) if items else {}
    spans = [(0, len(items) - 1)]
    while spans:
        low, high = spans.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            order[middle] = None
            spans.append((low, middle))
            spans.append((middle, high))
    return [items[place] for place in order]


def _in_turns(sources: Sequence[Iterator[T]]) -> Iterator[T]:
    """Yield one item from each source in turn until all are exhausted."""
    waiting = list(sources)
    while waiting:
        still: list[Iterator[T]] = []
        for source in waiting:
            for item in source:
                yield item
                still.append(source)
                break
        waiting = still
