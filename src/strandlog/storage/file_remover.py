"""Deletes renamed files and directories after `file.delete.delay.ms`.

The files of a removed segment are first renamed to `.deleted` (the directory of a deleted partition
to `-delete`), which removes them from the log immediately. A reader in another process may be about
to open them, so they are deleted only after `file.delete.delay.ms`, or when the data folder is
closed. A failed deletion is retried. Deletions still pending at a crash are carried out at the next
start, which recognizes the files by name.
"""

from __future__ import annotations

import heapq
from functools import partial

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.storage.paths import DELETED_SUFFIX
from strandlog.storage.work import Work

EVERYTHING_MS = 2**64  # later than the due time of any file
RETRY_MS = 60_000


class FileRemover:
    """A queue of files and directories to delete, ordered by due time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: list[tuple[int, str]] = []
        self.removed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def retire(self, files: Files, path: str, due_ms: int) -> None:
        """Rename a file and schedule it for deletion at `due_ms`. Do nothing if it is missing.
        `files` belongs to the partition, and raises `StorageError` once the partition is closed."""
        try:
            files.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return
        heapq.heappush(self._waiting, (due_ms, path + DELETED_SUFFIX))

    def remove_later(self, path: str, due_ms: int) -> None:
        """Schedule a directory, which has already been renamed, for deletion at `due_ms`."""
        heapq.heappush(self._waiting, (due_ms, path))

    def next_due_ms(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def remove(self, now_ms: int) -> Work[int]:
        """Delete everything that is due, one file or directory per step, and return the count.

        Failed deletions are retried after a minute. The first error is raised after all other
        deletions have been attempted.
        """
        count, first_error = 0, None
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, path = heapq.heappop(self._waiting)
            is_file = path.endswith(DELETED_SUFFIX)
            try:
                yield partial(self._files.remove if is_file else self._files.remove_tree, path)
            except StorageError as error:
                heapq.heappush(self._waiting, (now_ms + RETRY_MS, path))
                first_error = first_error or error
                continue
            count += 1
            self.removed += 1
        if first_error is not None:
            raise first_error
        return count
