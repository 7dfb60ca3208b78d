"""Files and folders of the simulated disk, with current and durable contents.

    FileNode     contents   what a reader sees (the page cache)
                 durable    what is certainly on disk
                 unsynced   the ordered changes in between: Write (append, overwrite) and Cut
    FolderNode   names, durable_names, unsynced (NameChange: create, mkdir, rename, remove)

A node does not know its path; names belong to folders. So an open file survives rename and removal,
and a crash decides about names and contents independently.

A failed sync *loses* the unsynced writes of a file, as on ext4. Readers still see them, and they
may even reach the disk, but after a later successful sync the old bytes are there, or zeros where
the file grew. Only writing the same bytes again makes them durable. Cuts are metadata and survive a
failed sync.

Copies of a node share their `bytes` and copy them to a `bytearray` before the first change, so a
test can make tens of thousands of copies.
"""

from __future__ import annotations

from typing import NamedTuple

Range = tuple[int, int]


class Write(NamedTuple):
    """Bytes put at a position; the gap before it, if any, is zeros."""

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
        """What a successful sync leaves of this write."""
        if self.lost:
            _grow(contents, self.end_position)
        else:
            self.apply(contents)

    def torn(self, size: int) -> Write:
        """The first `size` bytes of it."""
        return Write(self.position, self.data[:size], self.lost)


class Cut(NamedTuple):
    """The file made `size` bytes long; as POSIX has it, zeros are added if it was shorter."""

    size: int

    def apply(self, contents: bytearray) -> None:
        del contents[self.size :]
        _grow(contents, self.size)

    def apply_to_platter(self, contents: bytearray) -> None:
        """What a successful sync leaves of this cut: all of it."""
        self.apply(contents)


class NameChange(NamedTuple):
    """One atomic change to the names of a folder; a rename within it drops one and adds one."""

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
        self.label = label  # the path it was last given, for people
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
        """All that a reader sees, shareable."""
        if isinstance(self.contents, bytearray):
            self.contents = bytes(self.contents)
        return self.contents

    def frozen_durable(self) -> bytes:
        """All that is certainly on disk, shareable."""
        if isinstance(self.durable, bytearray):
            self.durable = bytes(self.durable)
        return self.durable

    def sync(self) -> None:
        if not self.unsynced:
            return
        platter = self.durable
        if isinstance(platter, bytes):
            platter = bytearray(platter)
        # Another thread may append meanwhile: only what was there when we came is synced.
        synced = self.unsynced[:]
        for change in synced:
            change.apply_to_platter(platter)
        self.durable = platter
        del self.unsynced[: len(synced)]

    def fail_sync(self) -> None:
        """The disk refused: the kernel forgets that these pages are dirty."""
        for place in range(len(self.unsynced)):  # in place: another thread may append meanwhile
            change = self.unsynced[place]
            if isinstance(change, Write):
                self.unsynced[place] = change._replace(lost=True)

    def flip_bit(self, bit: int) -> None:
        """Let one bit rot, wherever it is kept."""
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
        """The same file for another disk, where it is neither locked nor mapped."""
        twin = FileNode(self.number, self.label, self.frozen_contents())
        twin.durable = self.frozen_durable()
        twin.unsynced = self.unsynced[:]
        return twin


class FolderNode:
    """One folder, with or without a name."""

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
        """Make the oldest `count` changes durable, as a journal does that is written in order."""
        self.durable_names = self.names_after(count)
        del self.unsynced[:count]

    def names_after(self, count: int) -> dict[str, FileNode | FolderNode]:
        """The durable names and the first `count` changes."""
        names = dict(self.durable_names)
        for change in self.unsynced[:count]:
            change.apply(names)
        return names

    def possible_nodes(self) -> list[FileNode | FolderNode]:
        """Everything that may have a name in here after a crash."""
        nodes = list(self.durable_names.values())
        nodes.extend(change.node for change in self.unsynced if change.node is not None)
        return nodes


Node = FileNode | FolderNode


def possible_nodes(root: FolderNode) -> list[Node]:
    """Every node that may be there after a crash, folders before what is in them, each once."""
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
    """The same folder and all that is or may be in it, for another disk."""
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
