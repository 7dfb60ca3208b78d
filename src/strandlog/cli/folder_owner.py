"""Finds the process that owns a data folder.

The owner holds a lock on `.lock`, which the kernel releases when the process exits. Linux lists
locks in /proc/locks; this module compares only the inode, because some file systems report another
device there. If the owner is not listed (on another operating system, or if it runs outside this
container), this module tries to acquire the lock and releases it immediately.
"""

from __future__ import annotations

import os
from contextlib import suppress

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.storage.paths import LOCK, join


def owner_of(files: Files, path: str) -> str:
    """Return a description of the owner, or "" if there is none or the lock cannot be tested."""
    lock = join(path, LOCK)
    if not files.exists(lock):
        return ""
    pid = listed_owner(_read(files, "/proc/locks"), os.stat(lock).st_ino)
    if pid:
        command = _read(files, f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        return f"process {pid}" + (f" ({command})" if command else "")
    try:
        taken = files.lock(lock)
    except StorageError:
        return ""  # no permission to lock; the doctor's write check reports the reason
    if taken is None:
        return "a process that is not visible from here"
    taken.release()
    return ""


def listed_owner(locks: str, inode: int) -> int | None:
    """Return the id of the process that locks the file with this inode, or None if unknown."""
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _read(files: Files, path: str) -> str:
    with suppress(OSError, StorageError):
        return files.read(path).decode(errors="replace")
    return ""
