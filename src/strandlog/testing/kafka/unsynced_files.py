"""Files of a test broker: real files that are never fsynced, so that tests need not wait for disks.

The data of a test does not have to survive a power failure, and an fsync takes milliseconds on many
machines. Otherwise these are ordinary files: a broker finds its data again after a restart.
`before_fsync` is called instead of the fsync of a log file, in the thread that would wait.
"""

from __future__ import annotations

from collections.abc import Callable

from strandlog.model import Buffer
from strandlog.storage.files import (
    TEMP_SUFFIX,
    DiskFiles,
    DiskLogFile,
    LogFile,
)


class UnsyncedLogFile(DiskLogFile):
    """A log file on the real disk without fsync."""

    __slots__ = ("_before_fsync",)

    def __init__(self, path: str, mode: int, before_fsync: Callable[[], None]) -> None:
        super().__init__(path, mode)
        self._before_fsync = before_fsync

    def sync(self) -> None:
        self._before_fsync()


class UnsyncedFiles(DiskFiles):
    """`Files` on the real disk without fsync."""

    __slots__ = ("_before_fsync",)

    def __init__(self, before_fsync: Callable[[], None]) -> None:
        super().__init__()
        self._before_fsync = before_fsync

    def open_log(self, path: str) -> LogFile:
        return UnsyncedLogFile(path, self._mode, self._before_fsync)

    def replace(self, path: str, data: Buffer) -> None:
        temp = path + TEMP_SUFFIX
        if self.exists(temp):
            self.remove(temp)
        self.append_to(temp, data)
        self.rename(temp, path)

    def sync_file(self, path: str) -> None:
        """Do nothing, not even check that the file exists."""

    def sync_dir(self, path: str) -> None:
        """Do nothing."""

    def sync_file_system(self, path: str) -> None:
        """Do nothing."""
