"""Writes the audit log: one JSON object per line, in files of limited size and number.

    audit.log      the current file, mode 0600
    audit.log.1    the file before it; the higher the number, the older

`put` runs in the event loop and only appends to a queue; a thread does the rest. A line is in the
file within milliseconds, so it survives the death of the process, and it is fsynced within
`FSYNC_SECONDS`, so a power cut loses at most the lines of that time. `close` writes and fsyncs the
queue, but gives up if a write fails or the disk does not respond for `CLOSE_SECONDS`.

If a write fails, as on a full disk, the thread removes the partial line, reports the error and
tries again every `RETRY_SECONDS`. Meanwhile the queue holds up to `AUDIT_MAX_QUEUED_EVENTS`;
further events are lost. Their number is in the metric `audit_events_lost`, in the server's log and,
as an event `lost`, in the audit log as soon as it can be written.

After `kill -9` the last line may be incomplete. The next start ends it with a line feed, so every
later line is whole. A file that another program has moved or deleted is created again. Only one
process may write the file, and it holds a lock on it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator

from strandlog.broker.access.audit import Event, time_text
from strandlog.clock import Clock, stopwatch
from strandlog.config.limits.access import AUDIT_MAX_QUEUED_EVENTS
from strandlog.config.units import counted
from strandlog.errors import AuditLogError

logger = logging.getLogger(__name__)

FSYNC_SECONDS = 1.0
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 10.0  # how long `close` waits for a disk that does not respond
CHUNK_BYTES = 64 * 1024
MODE = 0o600


def line_of(event: Event) -> bytes:
    """Encode an event as one line; line feeds inside the event are escaped."""
    return json.dumps(event, separators=(",", ":"), default=str).encode("ascii") + b"\n"


class AuditFile:
    """The files of the audit log. Every method may raise OSError."""

    def __init__(
        self,
        path: str,
        max_bytes: int,
        max_files: int,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._path = os.path.abspath(path)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._write = write
        self._number = -1  # the file descriptor
        self._size = 0

    def open(self) -> None:
        """Open the current file, and end an incomplete last line."""
        number = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise OSError(f"{self._path} is not a regular file")
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = os.fstat(number).st_size
            if self._size and os.pread(number, 1, self._size - 1) != b"\n":
                self._size += self._write(number, b"\n")
        except BlockingIOError:
            os.close(number)
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing to it") from None
        except BaseException:
            os.close(number)
            raise
        self._number = number

    def append(self, data: bytes) -> None:
        """Append lines, all or none, after starting a new file if the current one is full."""
        self._reopen_if_moved()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        done = 0
        try:
            while done < len(data):
                done += self._write(self._number, data[done:])
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._number, self._size)
            self.close()  # `open` ends the incomplete line if it could not be removed
            raise
        self._size += len(data)

    def fsync(self) -> None:
        if self._number >= 0:
            os.fsync(self._number)

    def close(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    def _reopen_if_moved(self) -> None:
        if self._number >= 0:
            try:
                found = os.stat(self._path)
            except FileNotFoundError:
                found = None
            if found is not None and os.path.samestat(found, os.fstat(self._number)):
                return
            self.fsync()
            self.close()
        self.open()

    def _rotate(self) -> None:
        """Rename each file to the next number, and delete files beyond the maximum."""
        self.fsync()
        for number in sorted(self._numbers(), reverse=True):
            if number >= self._max_files - 1:
                os.unlink(f"{self._path}.{number}")
            else:
                os.rename(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        if self._max_files > 1:
            os.rename(self._path, f"{self._path}.1")
        else:
            os.unlink(self._path)
        self._fsync_folder()
        self.close()
        self.open()

    def _numbers(self) -> Iterator[int]:
        folder, name = os.path.split(self._path)
        pattern = re.compile(re.escape(name) + r"\.([1-9][0-9]{0,8})")
        for each in os.listdir(folder):
            if match := pattern.fullmatch(each):
                yield int(match[1])

    def _fsync_folder(self) -> None:
        number = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class AuditLog:
    """The audit log of one server: a queue, and the thread that writes it."""

    def __init__(
        self,
        file: AuditFile,
        path: str,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """Open the file; raise `AuditLogError` if that fails. If the thread fails because of a bug,
        it calls `on_crash`."""
        self._file = file
        self._on_crash = on_crash
        self._path = path
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: list[Event] = []
        self._lost = 0  # number of lost events
        self._unreported = 0  # number of lost events that the audit log does not report yet
        self._is_closing = False
        self._fsync_due: float | None = None
        try:
            file.open()
        except BlockingIOError as error:
            remedy = "stop that process, for example a broker on the same folder, or change"
            raise AuditLogError(path, str(error.strerror), remedy) from error
        except OSError as error:
            raise AuditLogError(path, error.strerror or str(error)) from error
        self._thread = threading.Thread(
            target=self._run, name="strandlog-audit", daemon=True
        )  # a daemon, so that a hanging disk cannot keep the process alive
        self._thread.start()

    @property
    def lost(self) -> int:
        """The number of events that could not be written."""
        return self._lost

    def put(self, event: Event) -> None:
        """Queue an event; count it as lost if the queue is full or the log is closing."""
        with self._changed:
            if self._is_closing:
                self._lose(1, "the log is closed")
                return
            if len(self._queue) >= AUDIT_MAX_QUEUED_EVENTS:
                self._lose(1, "the queue is full")
                return
            self._queue.append(event)
            if len(self._queue) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Write the queued events and close the file; later events are lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error("the audit log %s does not respond; events may be lost", self._path)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (events := self._take()) is not None:
                self._write(events)
                self._fsync_if_due()
        except BaseException as error:  # noqa: BLE001 - it stops the server
            self._on_crash(error)
        finally:
            self._fsync_if_due(is_last=True)
            self._file.close()

    def _take(self) -> list[Event] | None:
        """Wait for events and return them. Return an empty list when an fsync is due, and None
        when the log is closing and has nothing left to write."""
        with self._changed:
            while not self._queue and not self._is_closing:
                if self._fsync_due is None:
                    self._changed.wait()
                elif not self._changed.wait(max(0.0, self._fsync_due - stopwatch())):
                    return []
            if self._is_closing and not self._queue and not self._unreported:
                return None
            events, self._queue = self._queue, []
            if self._unreported:
                events.insert(0, self._loss_event())
            return events

    def _loss_event(self) -> Event:
        count, self._unreported = self._unreported, 0
        logger.error("the audit log %s lost %s", self._path, counted(count, "event"))
        return {"time": time_text(self._clock.now_ms()), "event": "lost", "count": count}

    def _write(self, events: list[Event]) -> None:
        for chunk, count in _chunks(events):
            while True:
                is_last = self._is_closing
                if (error := self._append(chunk)) is None:
                    break
                with self._changed:
                    if is_last:
                        self._lose(count, error)
                        break
                    self._changed.wait_for(lambda: self._is_closing, RETRY_SECONDS)
            if self._fsync_due is None:
                self._fsync_due = stopwatch() + FSYNC_SECONDS

    def _append(self, chunk: bytes) -> str | None:
        """Append lines; return the error if that fails."""
        try:
            self._file.append(chunk)
        except OSError as error:
            logger.error("cannot write the audit log %s: %s", self._path, error)  # noqa: TRY400 - no stack
            return str(error)
        return None

    def _lose(self, count: int, reason: str) -> None:
        if not self._unreported:  # one message per outage; `_loss_event` follows
            logger.error("the audit log %s is losing events: %s", self._path, reason)
        self._lost += count
        if not self._is_closing:
            self._unreported += count

    def _fsync_if_due(self, *, is_last: bool = False) -> None:
        if self._fsync_due is None or (not is_last and stopwatch() < self._fsync_due):
            return
        self._fsync_due = None
        try:
            self._file.fsync()
        except OSError as error:
            logger.error(  # noqa: TRY400 - no stack
                "cannot fsync the audit log %s: %s; a power cut may lose its last lines",
                self._path,
                error,
            )


def _chunks(events: list[Event]) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded lines in chunks, with the number of events in each."""
    lines: list[bytes] = []
    size = 0
    for event in events:
        line = line_of(event)
        if lines and size + len(line) > CHUNK_BYTES:
            yield b"".join(lines), len(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield b"".join(lines), len(lines)
