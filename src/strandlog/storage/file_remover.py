"""Removes files a while after nobody needs them any more.

A removed segment is first renamed to `.deleted` (a deleted partition's folder to `-delete`), so
that it is gone from the log at once, and really removed `file.delete.delay.ms` later: a reader in
another process may be about to open it. What still waits at a crash is removed at the next start,
because its name says so.
"""

from __future__ import annotations

import heapq
from functools import partial

from strandlog.storage.files import Files
from strandlog.storage.paths import DELETED_SUFFIX
from strandlog.storage.work import Work, run_inline


class FileRemover:
    """What waits to be removed, soonest first."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._waiting: list[tuple[int, str]] = []
        self.removed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def retire(self, path: str, due_ms: int) -> None:
        """Take a file out of the log now and remove it later. A missing one is fine."""
        try:
            self._files.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return
        heapq.heappush(self._waiting, (due_ms, path + DELETED_SUFFIX))

    def remove_later(self, path: str, due_ms: int) -> None:
        """Remove a folder that has its last name already."""
        heapq.heappush(self._waiting, (due_ms, path))

    def next_due_ms(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None

    def step(self, now_ms: int) -> int:
        """Remove what is due; returns how many."""
        return run_inline(self.removing(now_ms))

    def removing(self, now_ms: int) -> Work[int]:
        """The same in steps, one for each file or folder."""
        count = 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, path = heapq.heappop(self._waiting)
            is_file = path.endswith(DELETED_SUFFIX)
            yield partial(self._files.remove if is_file else self._files.remove_tree, path)
            count += 1
            self.removed += 1
        return count

    def remove_all(self) -> int:
        """Remove everything that waits, due or not."""
        return self.step(2**63)
