"""The disk that underlies `SimulatedFiles`: a tree of nodes with numbered operations.

Operations fail with `OSError`, like system calls; `SimulatedFiles` translates it to the error that
`DiskFiles` raises. Each change and each sync is one step of the `Script`, which may interrupt it
(see faults.py). An interrupted write may keep some of its first bytes, and a failed sync of a file
loses the data that it should have made durable.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import count

from strandlog.testing.disk.faults import Operation, Script, no_space
from strandlog.testing.disk.nodes import (
    Cut,
    FileNode,
    FolderNode,
    NameChange,
    Node,
    Write,
    possible_nodes,
)

MAX_NAME_BYTES = 255  # NAME_MAX of the usual Linux file systems
ROOT_NUMBER = 0


class SimulatedDisk:
    """The nodes of a disk, the steps performed on them, and the capacity of the disk."""

    __slots__ = (
        "_numbers",
        "_sync_mutex",
        "capacity_bytes",
        "root",
        "script",
        "sync_persists_name",
    )

    def __init__(
        self,
        root: FolderNode | None,
        script: Script,
        *,
        sync_persists_name: bool,
        capacity_bytes: int | None,
    ) -> None:
        self.root = root if root is not None else FolderNode(ROOT_NUMBER, "")
        self.script = script
        self.capacity_bytes = capacity_bytes
        self.sync_persists_name = sync_persists_name
        self._sync_mutex = threading.Lock()
        taken = (node.number for node in possible_nodes(self.root)) if root else (ROOT_NUMBER,)
        self._numbers = count(max(taken) + 1)

    def find(self, path: str) -> Node:
        """Return the node at a path."""
        self.script.check_power()
        node: Node = self.root
        for name in split_path(path):
            if not isinstance(node, FolderNode):
                raise os_error(errno.ENOTDIR, path)
            child = node.names.get(name)
            if child is None:
                raise os_error(errno.ENOENT, path)
            node = child
        return node

    def find_file(self, path: str) -> FileNode:
        node = self.find(path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        return node

    def find_folder(self, path: str) -> FolderNode:
        node = self.find(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def find_place(self, path: str) -> tuple[FolderNode, str]:
        """Return the parent folder and the last name of a path. The last name need not exist."""
        parts = split_path(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        folder = self.find_folder("/".join(parts[:-1]))
        if len(parts[-1].encode()) > MAX_NAME_BYTES:
            raise os_error(errno.ENAMETOOLONG, path)
        return folder, parts[-1]

    def open(self, path: str) -> FileNode:
        """Return the file at a path, creating it if it does not exist."""
        folder, name = self.find_place(path)
        self.may_fail("open", path)
        node = folder.names.get(name)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        if node is None:
            node = FileNode(next(self._numbers), path)
            self.rename_in(folder, "create", path, "", NameChange(None, name, node))
        return node

    def make_folder(self, folder: FolderNode, name: str, path: str) -> FolderNode:
        made = FolderNode(next(self._numbers), path)
        self.rename_in(folder, "mkdir", path, "", NameChange(None, name, made))
        return made

    def rename_in(
        self, folder: FolderNode, operation: Operation, path: str, detail: str, change: NameChange
    ) -> None:
        """Perform a step that changes the names in one folder."""
        self.step(operation, path, detail, lambda: folder.change(change))

    def step(
        self, operation: Operation, path: str, detail: str, effect: Callable[[], None]
    ) -> None:
        """Perform an atomic step."""
        stopped = self.script.begin(operation, path, detail)
        if stopped is not None:
            raise stopped.error
        effect()
        self.script.end()

    def write(
        self, operation: Operation, path: str, node: FileNode, position: int, data: bytes
    ) -> None:
        """Write all of the data, or fail after writing none or some of its first bytes."""
        detail = f"+{len(data)}" if operation == "append" else f"@{position}+{len(data)}"
        stopped = self.script.begin(operation, path, detail)
        if stopped is None and self.capacity_bytes is not None:
            # Overwritten bytes need no additional space.
            old = max(len(node.contents) - position, 0)
            room = old + max(self.capacity_bytes - self.used_bytes(), 0)
            if len(data) > room:
                stopped = no_space(path, room)
        if stopped is not None:
            written = stopped.written_of(len(data))
            if written:
                node.change(Write(position, data[:written]))
            raise stopped.error
        node.change(Write(position, data))
        self.script.end()

    def cut(self, path: str, node: FileNode, size: int) -> None:
        """Set the size of a file to `size` bytes."""
        mapped = max(node.mapped_sizes, default=0)
        assert size >= mapped, (
            f"{path} is truncated to {size} bytes while {mapped} are mapped: SIGBUS would kill a "
            f"real process that reads them; close the map first"
        )
        self.step("truncate", path, f"={size}", lambda: node.change(Cut(size)))

    def sync(self, path: str, node: FileNode) -> None:
        stopped = self.script.begin("sync", path)
        with self._sync_mutex:
            if stopped is not None:
                if isinstance(stopped.error, OSError):
                    node.fail_sync()
                raise stopped.error
            node.sync()
            if self.sync_persists_name:
                self._persist_names_of(node)
        self.script.end()

    def sync_folder(self, path: str, folder: FolderNode) -> None:
        # A failed sync leaves names unsynced: unlike the page cache, a journal keeps them.
        self.step("sync_dir", path, "", folder.sync)

    def may_fail(self, operation: Operation, path: str) -> None:
        """Raise the scheduled fault, if any, of an operation that is not a step."""
        self.script.check_power()
        stopped = self.script.fault(operation, path)
        if stopped is not None:
            raise stopped.error

    def used_bytes(self) -> int:
        waiting = [self.root]
        used = 0
        while waiting:
            for node in waiting.pop().names.values():
                if isinstance(node, FolderNode):
                    waiting.append(node)
                else:
                    used += len(node.contents)
        return used

    def sync_everything(self) -> None:
        for node in possible_nodes(self.root):
            node.sync()

    def _persist_names_of(self, node: Node) -> None:
        for folder in possible_nodes(self.root):
            if not isinstance(folder, FolderNode):
                continue
            added = [place for place, change in enumerate(folder.unsynced) if change.node is node]
            if added:
                folder.sync_first(added[-1] + 1)
                self._persist_names_of(folder)


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    """Split a path into its names, starting at the root."""
    return tuple(part for part in posixpath.normpath(path).split("/") if part not in ("", "."))


def os_error(number: int, path: str) -> OSError:
    """Return the error that the kernel would report, as the matching subclass of `OSError`."""
    return OSError(number, os.strerror(number), path)
