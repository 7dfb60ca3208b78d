"""Disk space reserved for operations that free space.

Deleting a topic, lowering its retention and deleting records free disk space, but each of these
operations first writes some data: `topics.json`, a checkpoint, a producer snapshot or tombstones.
On a full disk those writes would fail, and the only remedy would be to delete files by hand.

So the owner of a folder keeps a file of `size_bytes` allocated (`hold`). Operations that free
space, and startup and shutdown, run inside `spending()`, which first removes the file if the free
space is smaller than the reserve. `hold` allocates the file again once twice its size is free, so
that the reserve itself never fills the disk.

A size of 0 disables the reserve. Everything here runs in the owner's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.storage.paths import RESERVE, join


class DiskReserve:
    """The reserve of one data folder."""

    __slots__ = ("_files", "_folder", "_path", "_spenders", "size_bytes")

    def __init__(self, files: Files, folder: str, size_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._path = join(folder, RESERVE)
        self._spenders = 0
        self.size_bytes = size_bytes
        # The size differs if the setting was changed or a crash interrupted the allocation.
        with contextlib.suppress(StorageError, FileNotFoundError):
            if files.size(self._path) != size_bytes:
                files.remove(self._path)

    @property
    def is_held(self) -> bool:
        return self._files.exists(self._path)

    def hold(self) -> None:
        """Allocate the reserve unless it exists, is in use, or would fill the disk."""
        if not self.size_bytes or self._spenders or self.is_held:
            return
        with contextlib.suppress(StorageError, FileNotFoundError):
            if self._files.free_bytes(self._folder) >= 2 * self.size_bytes:
                self._files.allocate(self._path, self.size_bytes)

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Let the body of the `with` statement use the reserve if disk space is low."""
        self._release_if_low()
        self._spenders += 1
        try:
            yield
        finally:
            self._spenders -= 1

    def _release_if_low(self) -> None:
        # If querying the free space or removing the file fails, the work is still attempted.
        with contextlib.suppress(StorageError, FileNotFoundError):
            if self.is_held and self._files.free_bytes(self._folder) < self.size_bytes:
                self._files.remove(self._path)
