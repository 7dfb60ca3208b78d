"""Represents one possible outcome of a power cut, and computes the resulting disk contents.

A `CrashChoice` describes an outcome for the state of the disk when the choice was created:

    files        a `FileFate` per file: how many of its unsynced changes reached the disk, how much
                 of the next one, and which of those bytes are nevertheless stale or garbage
    folders      per folder, how many of its unsynced name changes reached the disk
    rest_kept    whether all unsynced changes of all other files are kept (or else lost)
    names_kept   whether all unsynced name changes in all other folders are kept (or else lost)

*Stale* bytes did not reach the disk although the file's size and later bytes did: a reader sees the
previous durable bytes, or zeros where the file has grown. *Garbage* is pseudorandom and
always the same for the same position.

The model makes one assumption, which every log without padding needs: durable bytes that are not
being overwritten stay intact even if their sector is damaged (SQLite calls this powersafe
overwrite).
Nodes are identified by number. A choice is valid only for the disk state it was created for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from strandlog.testing.disk.nodes import Cut, FileNode, FolderNode, Node, Range, Write


class FileFate(NamedTuple):
    """The effect of a power cut on the unsynced changes of one file."""

    kept: int
    torn_bytes: int = 0
    stale: tuple[Range, ...] = ()
    garbage: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class CrashChoice:
    """The effect of a power cut on a disk."""

    files: tuple[tuple[int, FileFate], ...] = ()
    folders: tuple[tuple[int, int], ...] = ()
    rest_kept: bool = False
    names_kept: bool = False


ALL_LOST = CrashChoice()
ALL_KEPT = CrashChoice(rest_kept=True, names_kept=True)


def crashed_tree(root: FolderNode, choice: CrashChoice) -> FolderNode:
    """Return the state of the folder after the power cut. Everything in it is durable."""
    fates = dict(choice.files)
    counts = dict(choice.folders)
    rebuilt: dict[int, Node] = {}

    def rebuild(node: Node) -> Node:
        twin = rebuilt.get(node.number)
        if twin is None:
            twin = rebuild_folder(node) if isinstance(node, FolderNode) else rebuild_file(node)
            rebuilt[node.number] = twin
        return twin

    def rebuild_file(node: FileNode) -> FileNode:
        if not node.unsynced:  # fast path for most files
            return FileNode(node.number, node.label, node.frozen_durable())
        fate = fates.get(node.number)
        if fate is None:
            fate = FileFate(len(node.unsynced) if choice.rest_kept else 0)
        return FileNode(node.number, node.label, surviving_bytes(node, fate))

    def rebuild_folder(folder: FolderNode) -> FolderNode:
        kept = counts.get(folder.number, len(folder.unsynced) if choice.names_kept else 0)
        twin = FolderNode(folder.number, folder.label)
        twin.names = {name: rebuild(node) for name, node in folder.names_after(kept).items()}
        twin.durable_names = dict(twin.names)
        return twin

    return rebuild_folder(root)


def surviving_bytes(node: FileNode, fate: FileFate) -> bytes:
    """Return the contents of one file after the power cut."""
    durable = node.frozen_durable()
    if fate.kept == 0 and fate.torn_bytes == 0:
        return durable
    applied = node.unsynced[: fate.kept]
    if fate.torn_bytes:
        torn = node.unsynced[fate.kept]
        assert isinstance(torn, Write), "only a write can be torn"
        applied.append(torn.torn(fate.torn_bytes))
    contents = bytearray(durable)
    for change in applied:
        change.apply(contents)
    if fate.stale or fate.garbage:
        written = written_ranges(applied, len(contents))
        for start, end in _overlaps(fate.stale, written):
            contents[start:end] = durable[start:end].ljust(end - start, b"\0")
        for start, end in _overlaps(fate.garbage, written):
            contents[start:end] = random.Random(start).randbytes(end - start)
    return bytes(contents)


def written_ranges(changes: list[Write | Cut], size: int) -> list[Range]:
    """Return the bytes below `size` that these changes wrote, as sorted, disjoint ranges."""
    spans = sorted(
        (change.position, min(change.end_position, size))
        for change in changes
        if isinstance(change, Write) and change.data and change.position < size
    )
    merged: list[Range] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def describe(choice: CrashChoice, nodes: list[Node]) -> str:
    """Describe the choice in words, for the message of a failing test."""
    by_number = {node.number: node for node in nodes}
    said = [
        f"other contents {'kept' if choice.rest_kept else 'lost'}",
        f"other names {'kept' if choice.names_kept else 'lost'}",
    ]
    for number, count in choice.folders:
        folder = by_number[number]
        said.append(f"names of /{folder.label}: {count} of {len(folder.unsynced)} changes")
    for number, fate in choice.files:
        file = by_number[number]
        text = f"{file.label}: {fate.kept} of {len(file.unsynced)} changes"
        if fate.torn_bytes:
            text += f" and {fate.torn_bytes} bytes of the next"
        if fate.stale:
            text += f", stale {list(fate.stale)}"
        if fate.garbage:
            text += f", garbage {list(fate.garbage)}"
        said.append(text)
    return "; ".join(said)


def _overlaps(wanted: tuple[Range, ...], written: list[Range]) -> list[Range]:
    found = []
    for first, last in wanted:
        for start, end in written:
            if first < end and start < last:
                found.append((max(first, start), min(last, end)))
    return found
