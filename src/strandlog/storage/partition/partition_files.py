"""The file operations of one open partition. Once the partition is closed, they change nothing.

A deleted partition's folder is renamed, and a topic of the same name may create a new folder at the
same path. Work in steps on the deleted partition (retention, compaction, a flush) may still be in
progress then, and it knows its files by path. So everything that writes to a partition's folder
gets a `PartitionFiles`, and the owner closes it before the folder is renamed: an operation that
would create, change, rename or remove a file then raises `StorageError`. Reads and syncs remain
possible here, because they change nothing; `PartitionLog.cache` rejects reads of sealed segments. A
`LogFile` that is already open remains usable too: it belongs to the old file, whatever its path is
now.
"""

from __future__ import annotations

from strandlog.errors import StorageError
from strandlog.model import Buffer
from strandlog.storage.files import Files, Lock, LogFile, MappedFile


class PartitionFiles:
    """`Files` for the folder of one partition, until `close`."""

    __slots__ = ("_files", "_folder", "is_closed")

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self.is_closed = False

    def close(self) -> None:
        """Refuse all further changes."""
        self.is_closed = True

    def check_is_open(self) -> None:
        """Raise `StorageError` if the partition was closed or deleted."""
        if self.is_closed:
            raise StorageError(f"{self._folder} is closed; open it again")

    # -- changes -----------------------------------------------------------------------------

    def open_log(self, path: str) -> LogFile:
        # Opening creates a missing file, and its segment truncates a file that is too long.
        self.check_is_open()
        return self._files.open_log(path)

    def append_to(self, path: str, data: Buffer) -> None:
        self.check_is_open()
        self._files.append_to(path, data)

    def write_at(self, path: str, position: int, data: Buffer) -> None:
        self.check_is_open()
        self._files.write_at(path, position, data)

    def truncate(self, path: str, size: int) -> None:
        self.check_is_open()
        self._files.truncate(path, size)

    def allocate(self, path: str, size: int) -> None:
        self.check_is_open()
        self._files.allocate(path, size)

    def replace(self, path: str, data: Buffer) -> None:
        self.check_is_open()
        self._files.replace(path, data)

    def rename(self, source: str, target: str) -> None:
        self.check_is_open()
        self._files.rename(source, target)

    def remove(self, path: str) -> None:
        self.check_is_open()
        self._files.remove(path)

    def make_dir(self, path: str) -> bool:
        self.check_is_open()
        return self._files.make_dir(path)

    def remove_tree(self, path: str) -> None:
        self.check_is_open()
        self._files.remove_tree(path)

    def lock(self, path: str) -> Lock | None:
        self.check_is_open()  # this creates the lock file
        return self._files.lock(path)

    # -- reads and syncs ---------------------------------------------------------------------

    def map(self, path: str) -> MappedFile:
        return self._files.map(path)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        return self._files.read_at(path, position, length)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def list_dir(self, path: str) -> dict[str, int]:
        return self._files.list_dir(path)

    def sync_file(self, path: str) -> None:
        self._files.sync_file(path)

    def sync_dir(self, path: str) -> None:
        self._files.sync_dir(path)

    @property
    def can_sync_file_system(self) -> bool:
        return self._files.can_sync_file_system

    def sync_file_system(self, path: str) -> None:
        self._files.sync_file_system(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)
