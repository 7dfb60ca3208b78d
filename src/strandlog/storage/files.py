"""The only interface between the storage of the log and the disk, with its durability guarantees.

An operation that changes the disk gives one of two guarantees:

- *written*: the change is in the page cache. It survives a crash of this process but not a power
  failure. All operations that are not listed below guarantee this.
- *durable*: the bytes survive a power failure. `LogFile.sync` and `sync_file` make contents
  durable. `sync_dir` makes names durable (creations, renames and removals in that folder).
  `sync_file_system` does both for a whole file system.
  `replace` does all of this in order: it writes a temporary file, syncs it, renames it and syncs
  the folder.

A power failure therefore leaves each file with its durable bytes and any subset of the later
writes, and each folder with its durable names and any subset of the later changes.
`testing/disk/crash_states.py` enumerates typical outcomes.

`LogFile.append` is all or nothing while the process lives: if the disk is full or a write fails
part-way, the file is truncated to its old size before the error is raised. Disk errors are raised
as `StorageError` (`DiskFullError` when space runs out). Two errors are passed through because
callers handle them: `FileNotFoundError` for a missing file, and `NotADirectoryError` for an attempt
to list a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import platform
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from strandlog.errors import DiskFullError, StorageError
from strandlog.model import Buffer

TEMP_SUFFIX = ".tmp"
PREVIOUS_SUFFIX = ".previous"
MAX_BUFFERS = 1024  # the kernel's limit per call (IOV_MAX)
JOINED_BYTES = 4096  # up to this size, joining the buffers is faster than a vectored write
PRIVATE_DIR_MODE = 0o700
PRIVATE_MODE = 0o600
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # do not block on a FIFO
_SAFE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW  # for writing: do not follow links either
READ_BYTES = 1024 * 1024
DIRECTORY = -1  # the size that list_dir reports for a folder
_SYNCFS_REPORTS_ERRORS = (5, 8)  # the first such release of Linux


@functools.cache
def _syncfs() -> Callable[[int], None] | None:
    """Return the system call syncfs, which Python's `os` lacks, or None if it is missing or would
    hide errors."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or release is None:
        return None
    if (int(release[1]), int(release[2])) < _SYNCFS_REPORTS_ERRORS:
        return None
    import ctypes  # noqa: PLC0415 - most brokers never need it

    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return None

    def syncfs(descriptor: int) -> None:
        if call(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return syncfs


class LogFile(Protocol):
    """An open log file."""

    size: int

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append all buffers, or write nothing."""

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`, fewer at the end of the file."""

    def overwrite(self, position: int, data: Buffer) -> None:
        """Overwrite existing bytes, so that the next sync writes them to disk again."""

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def sync(self) -> None:
        """Make all written bytes durable. Can be called from any thread."""

    def check_present(self) -> None:
        """Raise `StorageError` if another process has removed or truncated the file. A sync
        would still succeed, although the next start would not find the bytes."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class MappedFile(Protocol):
    """A read-only mapping of a file that its owner no longer changes."""

    view: memoryview

    def is_cut(self) -> bool:
        """Return whether the file is now shorter than the mapping. Accessing the missing part
        would kill the process (SIGBUS)."""

    def close(self) -> None:
        """Unmap the file as soon as no reader holds a slice of it."""


class Lock(Protocol):
    """A lock that represents ownership of a folder."""

    def release(self) -> None:
        """Release the lock. Idempotent."""


class Files(Protocol):
    """The file system operations that the storage uses."""

    def open_log(self, path: str) -> LogFile: ...
    def map(self, path: str) -> MappedFile: ...
    def read(self, path: str) -> bytes: ...
    def read_at(self, path: str, position: int, length: int) -> bytes: ...
    def size(self, path: str) -> int: ...
    def exists(self, path: str) -> bool: ...
    def list_dir(self, path: str) -> dict[str, int]: ...
    def append_to(self, path: str, data: Buffer) -> None: ...
    def write_at(self, path: str, position: int, data: Buffer) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def allocate(self, path: str, size: int) -> None: ...
    def replace(self, path: str, data: Buffer) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def make_dir(self, path: str) -> bool: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    @property
    def can_sync_file_system(self) -> bool: ...
    def sync_file_system(self, path: str) -> None: ...
    def lock(self, path: str) -> Lock | None: ...
    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...


class _DiskErrors:
    """Converts every `OSError` except `FileNotFoundError` and `but` to a `StorageError`.

    A generator with `contextlib.contextmanager` would cost more than many of the system calls.
    """

    __slots__ = ("_but", "_path", "_what")

    def __init__(self, what: str, path: str, but: type[OSError] = FileNotFoundError) -> None:
        self._what = what
        self._path = path
        self._but = but

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, self._but)):
            raise disk_error(self._what, self._path, error) from error


def disk_error(what: str, path: str, error: OSError) -> StorageError:
    """Return the `DiskFullError` or other `StorageError` for a failed system call."""
    text = f"could not {what} {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{text}; free some space")
    return StorageError(text)


class DiskLogFile:
    """`LogFile` on the real disk."""

    __slots__ = ("_fd", "_path", "size")

    def __init__(self, path: str, mode: int = PRIVATE_MODE) -> None:
        self._fd = -1  # for __del__, in case opening fails
        with _DiskErrors("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, mode)
            self.size = os.fstat(self._fd).st_size
        self._path = path

    def append(self, buffers: Sequence[Buffer]) -> None:
        if len(buffers) == 1:
            expected = len(buffers[0])
        else:
            expected = sum(map(len, buffers))
            if expected <= JOINED_BYTES or len(buffers) > MAX_BUFFERS:
                buffers = [b"".join(buffers)]
        try:
            if len(buffers) == 1:
                written = os.pwrite(self._fd, buffers[0], self.size)
            else:
                written = os.pwritev(self._fd, buffers, self.size)
            if written != expected:
                self._append_rest(buffers, written, expected)
        except BaseException as error:
            # A partial write must not look like a torn tail to a concurrent reader.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
            if isinstance(error, OSError):
                raise disk_error("append to", self._path, error) from error
            raise
        self.size += expected

    def _append_rest(self, buffers: Sequence[Buffer], written: int, expected: int) -> None:
        rest = memoryview(b"".join(buffers))
        while written < expected:
            count = os.pwrite(self._fd, rest[written:], self.size + written)
            if count == 0:
                raise OSError(errno.EIO, "the disk accepted no bytes")
            written += count

    def read(self, position: int, length: int) -> bytes:
        with _DiskErrors("read", self._path):
            return os.pread(self._fd, length, position)

    def overwrite(self, position: int, data: Buffer) -> None:
        with _DiskErrors("write", self._path):
            _write_all_at(self._fd, position, data)

    def truncate(self, size: int) -> None:
        with _DiskErrors("truncate", self._path):
            os.ftruncate(self._fd, size)
        self.size = size

    def sync(self) -> None:
        with _DiskErrors("sync", self._path):
            if self._fd < 0:  # os.fdatasync would raise a ValueError
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            os.fdatasync(self._fd)

    def check_present(self) -> None:
        # The owner's thread may append or truncate concurrently, so compare with the smaller of
        # `self.size` before and after fstat.
        size = self.size
        with _DiskErrors("stat", self._path):
            found = os.fstat(self._fd)
        if not found.st_nlink:
            raise StorageError(f"{self._path} was removed while it was open")
        size = min(size, self.size)
        if found.st_size < size:
            raise StorageError(
                f"{self._path} was truncated from {size} to {found.st_size} bytes while it was open"
            )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class DiskMap:
    """`MappedFile` on the real disk, with a hint to the kernel that reads are sequential."""

    __slots__ = ("_map", "view")

    def __init__(self, path: str) -> None:
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        with _DiskErrors("map", path):
            fd = os.open(path, _READING)
            try:
                if os.fstat(fd).st_size:  # an empty file cannot be mapped
                    self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
                    self._map.madvise(mmap.MADV_SEQUENTIAL)
                    self.view = memoryview(self._map)
            finally:
                os.close(fd)

    def is_cut(self) -> bool:
        return self._map is not None and self._map.size() < len(self.view)

    def close(self) -> None:
        self.view = memoryview(b"")
        mapping, self._map = self._map, None
        if mapping is not None:
            # A reader may still hold a slice: then the mapping is freed along with the slice.
            with contextlib.suppress(BufferError):
                mapping.close()


class DiskLock:
    """Two advisory locks, which the kernel releases when the process dies for any reason: one on
    the lock file, and one on its folder, which cannot be removed while it contains files."""

    __slots__ = ("_fds",)

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class DiskFiles:
    """`Files` on the real disk. New folders are created with mode `dir_mode`, and new files with
    the same mode minus the execute bits; the umask may clear further bits."""

    __slots__ = ("_dir_mode", "_mode")

    def __init__(self, dir_mode: int = PRIVATE_DIR_MODE) -> None:
        self._dir_mode = dir_mode
        self._mode = dir_mode & 0o666

    def open_log(self, path: str) -> LogFile:
        return DiskLogFile(path, self._mode)

    def map(self, path: str) -> MappedFile:
        return DiskMap(path)

    def read(self, path: str) -> bytes:
        # This needs half as many system calls as `open`, which matters because a start reads
        # several small files per partition.
        with _DiskErrors("read", path):
            fd = os.open(path, _READING)
            try:
                size = os.fstat(fd).st_size
                data = os.read(fd, size + 1)
                if len(data) == size:
                    return data
                pieces = [data]  # the file is changing, or is too large for a single read
                while pieces[-1]:
                    pieces.append(os.read(fd, READ_BYTES))
                return b"".join(pieces)
            finally:
                os.close(fd)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        with _DiskErrors("read", path):
            fd = os.open(path, _READING)
            try:
                return os.pread(fd, length, position)
            finally:
                os.close(fd)

    def size(self, path: str) -> int:
        with _DiskErrors("stat", path):
            return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list_dir(self, path: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with _DiskErrors("list", path, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                try:
                    found[entry.name] = DIRECTORY if entry.is_dir() else entry.stat().st_size
                except FileNotFoundError:  # it was removed after it was listed
                    continue
        return found

    def append_to(self, path: str, data: Buffer) -> None:
        with _DiskErrors("append to", path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE, self._mode)
            try:
                _write_all(fd, data)
            finally:
                os.close(fd)

    def write_at(self, path: str, position: int, data: Buffer) -> None:
        with _DiskErrors("write", path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | _SAFE, self._mode)
            try:
                _write_all_at(fd, position, data)
            finally:
                os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        with _DiskErrors("truncate", path):
            os.truncate(path, size)

    def allocate(self, path: str, size: int) -> None:
        """Create a file with `size` bytes of allocated disk space, or no file if that fails."""
        with _DiskErrors("allocate", path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, self._mode)
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError:
                os.unlink(path)  # a partial allocation would only waste space
                raise
            finally:
                os.close(fd)

    def replace(self, path: str, data: Buffer) -> None:
        temp = path + TEMP_SUFFIX
        with _DiskErrors("write", temp):
            fd = self._new_file(temp)
            try:
                _write_all(fd, data)
                os.fsync(fd)
            except OSError:
                os.unlink(temp)  # on a full disk it would only waste space
                raise
            finally:
                os.close(fd)
        self.rename(temp, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def _new_file(self, path: str) -> int:
        """Create and open a new file. If a file of this name exists, remove it first: it may be
        left over from a crash, or be a malicious link, which must not be followed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
        try:
            return os.open(path, flags, self._mode)
        except FileExistsError:
            os.unlink(path)
            return os.open(path, flags, self._mode)

    def rename(self, source: str, target: str) -> None:
        with _DiskErrors("rename", source):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _DiskErrors("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_dir(self, path: str) -> bool:
        """Create a folder with its parents, unless it exists. Return whether it is new."""
        with _DiskErrors("create", path):
            try:
                os.mkdir(path, self._dir_mode)  # nearly always succeeds, so ask nothing first
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
                return False
            except FileNotFoundError:
                parent = os.path.dirname(path)
                if not parent:
                    raise
                self.make_dir(parent)  # os.makedirs would create it with default permissions
                return self.make_dir(path)
        return True

    def remove_tree(self, path: str) -> None:
        with _DiskErrors("remove", path):
            import shutil  # noqa: PLC0415 - loads three compression libraries

            shutil.rmtree(path, onerror=_unless_missing)

    def sync_file(self, path: str) -> None:
        self._sync(path, os.O_RDONLY)

    def sync_dir(self, path: str) -> None:
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def can_sync_file_system(self) -> bool:
        """Whether `sync_file_system` is possible: Linux reports the errors of syncfs since 5.8."""
        return _syncfs() is not None

    def sync_file_system(self, path: str) -> None:
        """Make everything in the file system of a folder durable, files of other programs included.
        For thousands of new files this takes a fraction of the time of a sync for each of them."""
        with _DiskErrors("sync", path):
            syncfs = _syncfs()
            assert syncfs is not None, "see can_sync_file_system"
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syncfs(fd)
            finally:
                os.close(fd)

    def _sync(self, path: str, flags: int) -> None:
        with _DiskErrors("sync", path):
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, path: str) -> Lock | None:
        """Acquire the lock. Return None if it is already held, in this process or another.

        The folder of the lock file is locked too, if the file system supports that: another program
        could remove the lock file, and a new file of the same name would not be locked.
        """
        taken = DiskLock([])
        with _DiskErrors("lock", path):
            try:
                for opened in (self._open_lock, self._open_folder_of):
                    fd = opened(path)
                    taken._fds.append(fd)
                    self._flock(fd, is_folder=opened == self._open_folder_of)
            except BlockingIOError:
                taken.release()
                return None
            except OSError:
                taken.release()
                raise
        return taken

    def _open_lock(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, self._mode)

    def _open_folder_of(self, path: str) -> int:
        folder = os.path.dirname(path) or "."
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _flock(self, fd: int, *, is_folder: bool) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            if not is_folder:  # some network file systems cannot lock a folder
                raise

    def free_bytes(self, path: str) -> int:
        found = _disk_usage(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = _disk_usage(path)
        return found.f_blocks * found.f_frsize


def _disk_usage(path: str) -> os.statvfs_result:
    """Return the disk usage. Callers own the folder, so a missing folder is a `StorageError`."""
    try:
        return os.statvfs(path)
    except OSError as error:
        raise disk_error("read the disk usage of", path, error) from error


def _write_all(fd: int, data: Buffer) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _write_all_at(fd: int, position: int, data: Buffer) -> None:
    # On a nearly full disk a write may be partial, which only the returned count shows.
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, position)
        rest = rest[count:]
        position += count


def _unless_missing(
    _function: object, _path: str, error: tuple[object, BaseException, object]
) -> None:
    """Ignore missing files in `rmtree` and re-raise every other error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
