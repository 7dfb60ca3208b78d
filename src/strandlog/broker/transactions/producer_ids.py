"""Allocates producer ids from blocks reserved on disk, so that no id is allocated twice.

`producer-ids.json` contains the first id that is not reserved yet. A block of a thousand ids is
reserved before its first id is allocated, so a restart wastes the rest of the block. A second
producer with the same id would lose records: a partition would mistake its batches for retries by
the first producer, acknowledge them and write nothing.

    state of the file               the next id is
    intact                          at least the stored id
    missing in a new folder         0
    damaged, missing, or older      above every id in `.previous`, in a partition's producer state
    than the data                   or in the transaction table, and at least 2**20 times the
                                    seconds since 1970

The time accounts for ids that are in none of these files: ids of producers that have not written
yet, and ids whose producer state has expired although their records are still in the log. As long
as fewer than 2**20 ids per second are allocated on average, the time-based id is higher than all of
them. Such ids stay below 2**53 until the year 2242, so clients can store them in a double.

A client can send an id that was never allocated here, for example one from another cluster. The
next id is then moved above the client's id (`ProducerIdsSeen`), which is therefore never allocated.
"""

from __future__ import annotations

import contextlib

from strandlog.errors import StorageError
from strandlog.storage.files import PREVIOUS_SUFFIX
from strandlog.storage.folder.checkpoint import read_document, write_document
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.paths import join

FILE = "producer-ids.json"
BLOCK = 1000
IDS_PER_SECOND = 2**20


class ProducerIds:
    """Allocates the producer ids of one data folder, whose partitions must already be open."""

    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._path = join(log_dir.path, FILE)
        self._next = self._end = self._load()
        self.check()

    def next(self) -> int:
        """Allocate an id that no producer has used."""
        self.check()
        if self._next == self._end:
            self._reserve(self._next)
        self._next += 1
        return self._next - 1

    def note(self, producer_id: int) -> None:
        """Record an id that is in use but not in any partition's producer state."""
        self._log_dir.producer_ids_seen.note(producer_id)

    def check(self) -> None:
        """Move the next id above every id seen, and report ids that were not allocated here."""
        seen = self._log_dir.producer_ids_seen.highest
        if seen < self._next:
            return
        first = self._lost_count(self._next)
        self._log_dir.problems.report(
            f"producer id {seen} is in use, but only ids below {self._next} were allocated from "
            f"{self._path}: the file is an old copy, or a client made up the id; the next producer "
            f"id is {first}",
            kind="producer ids that were not allocated are in use",
        )
        self._next = self._end = first
        self._try_to_write(first)

    def _reserve(self, first: int) -> None:
        end = first + BLOCK
        write_document(self._log_dir.files, self._path, {"next": end})
        self._next, self._end = first, end

    def _try_to_write(self, first: int) -> None:
        """Try to correct the file. A write error, such as a full disk, must not prevent the folder
        from being opened; it is harmless, because no id is allocated before its block is reserved.
        """
        with contextlib.suppress(StorageError):
            write_document(self._log_dir.files, self._path, {"next": first})

    def _load(self) -> int:
        """Return the first unreserved id; rewrite the file if it is missing, damaged or older than
        its copy."""
        files = self._log_dir.files
        is_missing = not files.exists(self._path)
        problems: list[str] = []
        document = read_document(files, self._path, problems)
        if document is not None and not is_missing and not problems:
            return self._newer(int(document["next"]))
        first = 0
        if not self._log_dir.is_new:
            first = self._lost_count(int(document["next"]) if document is not None else 0)
            if document is not None or problems or self._log_dir.logs:
                problems.append(
                    f"{self._path} {'is missing' if is_missing else 'is damaged'}: the next "
                    f"producer id is {first}, above all allocated ids"
                )
        self._log_dir.problems += problems
        self._try_to_write(first)
        return first

    def _newer(self, first: int) -> int:
        """Return the higher of `first` and the id in the copy, which is written last."""
        copy = read_document(self._log_dir.files, self._path + PREVIOUS_SUFFIX, [])
        copied = 0 if copy is None else int(copy["next"])
        if copied > first:
            problem = f"{self._path} is older than its copy; the next producer id is {copied}"
            self._log_dir.problems.append(problem)
            self._try_to_write(copied)
        return max(first, copied)

    def _lost_count(self, known: int) -> int:
        """Return an id above `known`, above every id seen, and not below the time-based minimum."""
        by_time = self._log_dir.clock.now_ms() // 1000 * IDS_PER_SECOND
        seen = self._log_dir.producer_ids_seen.highest
        return max(known + BLOCK, seen + 1, by_time)
