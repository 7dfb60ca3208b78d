"""Deletes renamed files and directories after `file.delete.delay.ms`.

A removed segment is first renamed to `.deleted` (the directory of a deleted partition to
`-delete`), which takes it out of the log at once. It is deleted `file.delete.delay.ms` later,
because a reader in another process may be about to open it. A deletion that fails is retried. What
still waits at a crash is deleted at the next start, by its name.
"""

from __future__ import annotations

import heapq
from functools import partial

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.storage.paths import DELETED_SUFFIX
from strandlog.storage.work import Work

EVERYTHING_MS = 2**62  # as a time: all files are due
RETRY_MS = 60_000


class FileRemover:
    """The files and directories that wait to be deleted, ordered by time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: list[tuple[int, str]] = []
        self.removed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def retire(self, path: str, due_ms: int) -> None:
        """Rename a file now and delete it later. It may be missing."""
        try:
            self._files.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return
        heapq.heappush(self._waiting, (due_ms, path + DELETED_SUFFIX))

    def remove_later(self, path: str, due_ms: int) -> None:
        """Delete a directory that was renamed already."""
        heapq.heappush(self._waiting, (due_ms, path))

    def next_due_ms(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def remove(self, now_ms: int) -> Work[int]:
        """Delete what is due, one file or directory per step; returns how many were deleted.

        What cannot be deleted is tried again after a minute; the first error is raised once
        everything else is done.
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
