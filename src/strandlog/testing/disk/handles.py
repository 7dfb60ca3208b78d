"""Open files, mappings and locks of the simulated disk.

Each refers to a node, not to a name, so it stays valid when the file is renamed or removed. As in
`DiskFiles`, a handle keeps track of its own size, which appends through other handles do not
change.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

from strandlog.model import Buffer
from strandlog.storage.files import disk_error
from strandlog.testing.disk.disk import SimulatedDisk, os_error
from strandlog.testing.disk.nodes import FileNode, FolderNode


@contextlib.contextmanager
def disk_errors(what: str, path: str, but: type[OSError] = FileNotFoundError) -> Iterator[None]:
    """Translate errors of the simulated disk to those of `DiskFiles`, except `FileNotFoundError`
    and `but`."""
    try:
        yield
    except (FileNotFoundError, but):
        raise
    except OSError as error:
        raise disk_error(what, path, error) from error


class SimulatedLogFile:
    """`LogFile` on a simulated disk."""

    __slots__ = ("_disk", "_node", "_path", "size")

    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node
        self.size = len(node.contents)

    def append(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        with disk_errors("append to", self._path):
            node = self._open_node()
            if not data:
                return
            try:
                self._disk.write("append", self._path, node, self.size, data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._disk.cut(self._path, node, self.size)
                raise
        self.size += len(data)

    def read(self, position: int, length: int) -> bytes:
        with disk_errors("read", self._path):
            node = self._open_node()
            self._disk.may_fail("read", self._path)
            return bytes(node.contents[position : position + length])

    def overwrite(self, position: int, data: Buffer) -> None:
        end = position + len(data)
        assert position >= 0 and end <= self.size, (
            f"overwrite ends at {end}, the file has {self.size} bytes"
        )
        with disk_errors("write", self._path):
            if data:
                node = self._open_node()
                self._disk.write("overwrite", self._path, node, position, bytes(data))

    def truncate(self, size: int) -> None:
        with disk_errors("truncate", self._path):
            self._disk.cut(self._path, self._open_node(), size)
        self.size = size

    def sync(self) -> None:
        with disk_errors("sync", self._path):
            self._disk.sync(self._path, self._open_node())

    def check_present(self) -> None:
        """Do nothing, because no other process has access to a simulated disk."""

    def close(self) -> None:
        self._node = None

    def _open_node(self) -> FileNode:
        self._disk.script.check_power()
        if self._node is None:
            raise os_error(errno.EBADF, self._path)
        return self._node


class SimulatedMap:
    """`MappedFile` on a simulated disk: the bytes at the time of mapping."""

    __slots__ = ("_node", "view")

    def __init__(self, node: FileNode) -> None:
        self._node: FileNode | None = node
        self.view = memoryview(node.frozen_contents())
        node.mapped_sizes.append(len(self.view))

    def is_cut(self) -> bool:
        return False  # a simulated disk does not allow truncating mapped bytes

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.mapped_sizes.remove(len(self.view))
        self.view = memoryview(b"")

    def __del__(self) -> None:
        self.close()


class SimulatedLock:
    """`Lock` on a simulated disk. Disks from `after_crash` and `after_kill` are not locked."""

    __slots__ = ("_nodes",)

    def __init__(self, *nodes: FileNode | FolderNode) -> None:
        self._nodes = nodes
        for node in nodes:
            node.locked = True

    def release(self) -> None:
        for node in self._nodes:
            node.locked = False
        self._nodes = ()
