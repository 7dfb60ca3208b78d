"""Files and folders of the simulated disk, with current and durable contents.

    FileNode     contents   the bytes that a reader sees (the page cache)
                 durable    the bytes that are guaranteed to be on disk
                 unsynced   the ordered changes in between: Write (append, overwrite) and Cut
    FolderNode   names, durable_names, unsynced (NameChange: create, mkdir, rename, remove)

Names belong to folders, not to the nodes themselves. An open file therefore survives a rename
or removal, and a crash affects names and contents independently.

A failed sync *loses* the unsynced writes of a file, as on ext4. Readers still see them, and they
may even reach the disk, but after a later successful sync the disk contains the old bytes, or zeros
where the file grew. Only writing the same bytes again makes them durable. A Cut changes metadata
and survives a failed sync.

Copies of a node share their `bytes`, which are copied to a `bytearray` before the first change, so
a test can create tens of thousands of copies.
"""

from __future__ import annotations

from typing import NamedTuple

Range = tuple[int, int]


class Write(NamedTuple):
    """A write of bytes at a position. A gap before it is filled with zeros."""

    position: int
    data: bytes
    lost: bool = False

    @property
    def end_position(self) -> int:
        return self.position + len(self.data)

    def apply(self, contents: bytearray) -> None:
        _grow(contents, self.position)
        contents[self.position : self.end_position] = self.data

    def apply_to_platter(self, contents: bytearray) -> None:
        """Apply the part of this write that a successful sync makes durable."""
        if self.lost:
            _grow(contents, self.end_position)
        else:
            self.apply(contents)

    def torn(self, size: int) -> Write:
        """Return a write of only the first `size` bytes."""
        return Write(self.position, self.data[:size], self.lost)


class Cut(NamedTuple):
    """A truncation to `size` bytes. As in POSIX, a shorter file is extended with zeros."""

    size: int

    def apply(self, contents: bytearray) -> None:
        del contents[self.size :]
        _grow(contents, self.size)

    def apply_to_platter(self, contents: bytearray) -> None:
        """Apply this truncation, which a successful sync always makes durable."""
        self.apply(contents)


class NameChange(NamedTuple):
    """An atomic change to the names in a folder. A rename within it drops one name and adds
    another."""

    dropped: str | None
    added: str | None
    node: FileNode | FolderNode | None

    def apply(self, names: dict[str, FileNode | FolderNode]) -> None:
        if self.dropped is not None:
            names.pop(self.dropped, None)
        if self.added is not None and self.node is not None:
            names[self.added] = self.node


class FileNode:
    """One file, with or without a name."""

    __slots__ = ("contents", "durable", "label", "locked", "mapped_sizes", "number", "unsynced")

    def __init__(self, number: int, label: str, contents: bytes = b"") -> None:
        self.number = number
        self.label = label  # its latest path, for messages
        self.contents: bytes | bytearray = contents
        self.durable: bytes | bytearray = contents
        self.unsynced: list[Write | Cut] = []
        self.locked = False
        self.mapped_sizes: list[int] = []

    def change(self, change: Write | Cut) -> None:
        contents = self.contents
        if isinstance(contents, bytes):
            contents = self.contents = bytearray(contents)
        change.apply(contents)
        self.unsynced.append(change)

    def frozen_contents(self) -> bytes:
        """Return the bytes that a reader sees, as an immutable object that copies can share."""
        if isinstance(self.contents, bytearray):
            self.contents = bytes(self.contents)
        return self.contents

    def frozen_durable(self) -> bytes:
        """Return the durable bytes, as an immutable object that copies can share."""
        if isinstance(self.durable, bytearray):
            self.durable = bytes(self.durable)
        return self.durable

    def sync(self) -> None:
        if not self.unsynced:
            return
        platter = self.durable
        if isinstance(platter, bytes):
            platter = bytearray(platter)
        # Another thread may append concurrently. Only changes made before this call are synced.
        synced = self.unsynced[:]
        for change in synced:
            change.apply_to_platter(platter)
        self.durable = platter
        del self.unsynced[: len(synced)]

    def fail_sync(self) -> None:
        """Mark the unsynced writes as lost, because the kernel marks pages clean on failure."""
        for place in range(len(self.unsynced)):  # in place: other threads may append concurrently
            change = self.unsynced[place]
            if isinstance(change, Write):
                self.unsynced[place] = change._replace(lost=True)

    def flip_bit(self, bit: int) -> None:
        """Flip one bit in the current, durable and unsynced contents."""
        position, mask = bit // 8, 1 << bit % 8
        self.contents = _flipped(self.contents, position, mask)
        self.durable = _flipped(self.durable, position, mask)
        self.unsynced = [
            Write(
                change.position,
                _flipped(change.data, position - change.position, mask),
                change.lost,
            )
            if isinstance(change, Write)
            else change
            for change in self.unsynced
        ]

    def copy(self) -> FileNode:
        """Return a copy of the file for another disk, neither locked nor mapped."""
        twin = FileNode(self.number, self.label, self.frozen_contents())
        twin.durable = self.frozen_durable()
        twin.unsynced = self.unsynced[:]
        return twin


class FolderNode:
    """One folder. A removed folder has no name, but a lock may still refer to it."""

    __slots__ = ("durable_names", "label", "locked", "names", "number", "unsynced")

    def __init__(self, number: int, label: str) -> None:
        self.number = number
        self.label = label
        self.locked = False
        self.names: dict[str, FileNode | FolderNode] = {}
        self.durable_names: dict[str, FileNode | FolderNode] = {}
        self.unsynced: list[NameChange] = []

    def change(self, change: NameChange) -> None:
        change.apply(self.names)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.durable_names = dict(self.names)
        self.unsynced.clear()

    def sync_first(self, count: int) -> None:
        """Make the oldest `count` changes durable, like a journal, which is written in order."""
        self.durable_names = self.names_after(count)
        del self.unsynced[:count]

    def names_after(self, count: int) -> dict[str, FileNode | FolderNode]:
        """Return the durable names after applying the first `count` unsynced changes."""
        names = dict(self.durable_names)
        for change in self.unsynced[:count]:
            change.apply(names)
        return names

    def possible_nodes(self) -> list[FileNode | FolderNode]:
        """Return all nodes that may have a name in this folder after a crash."""
        nodes = list(self.durable_names.values())
        nodes.extend(change.node for change in self.unsynced if change.node is not None)
        return nodes


Node = FileNode | FolderNode


def possible_nodes(root: FolderNode) -> list[Node]:
    """Return every node that may exist after a crash, once each, folders before their contents."""
    found: dict[int, Node] = {root.number: root}
    waiting = [root]
    while waiting:
        for node in waiting.pop(0).possible_nodes():
            if node.number not in found:
                found[node.number] = node
                if isinstance(node, FolderNode):
                    waiting.append(node)
    return list(found.values())


def copy_tree(root: FolderNode) -> FolderNode:
    """Copy a folder for another disk, with all nodes that are or may be in it after a crash."""
    twins: dict[int, Node] = {}

    def twin_of(node: Node) -> Node:
        twin = twins.get(node.number)
        if twin is None:
            twin = copy_folder(node) if isinstance(node, FolderNode) else node.copy()
            twins[node.number] = twin
        return twin

    def copy_folder(folder: FolderNode) -> FolderNode:
        twin = FolderNode(folder.number, folder.label)
        twins[folder.number] = twin
        twin.names = {name: twin_of(node) for name, node in folder.names.items()}
        twin.durable_names = {name: twin_of(node) for name, node in folder.durable_names.items()}
        twin.unsynced = [
            change._replace(node=None if change.node is None else twin_of(change.node))
            for change in folder.unsynced
        ]
        return twin

    return copy_folder(root)


def _grow(contents: bytearray, size: int) -> None:
    if len(contents) < size:
        contents.extend(bytes(size - len(contents)))


def _flipped(contents: bytes | bytearray, position: int, mask: int) -> bytes:
    if not 0 <= position < len(contents):
        return bytes(contents)
    flipped = bytearray(contents)
    flipped[position] ^= mask
    return bytes(flipped)
