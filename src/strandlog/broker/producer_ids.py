"""Hands out producer ids that never come twice, not even after a crash.

Ids are reserved on disk in blocks of a thousand, in `producer-ids.json`; a crash wastes what is
left of a block.
"""

from __future__ import annotations

from strandlog.storage.checkpoint import read_document, write_document
from strandlog.storage.log_dir import LogDir
from strandlog.storage.paths import join

FILE = "producer-ids.json"
BLOCK = 1000


class ProducerIds:
    """The ids of one data folder."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._path = join(log_dir.path, FILE)
        self._next = self._end = 0

    def next(self) -> int:
        """An id that nobody has had."""
        if self._next == self._end:
            self._reserve()
        self._next += 1
        return self._next - 1

    def _reserve(self) -> None:
        document = read_document(self._log_dir.files, self._path, self._log_dir.problems)
        first = document["next"] if document else 0
        write_document(self._log_dir.files, self._path, {"next": first + BLOCK})
        self._next, self._end = first, first + BLOCK
