"""Which process owns a data folder.

The owner holds a lock on `.lock` that dies with it. Linux lists locks by device and inode in
/proc/locks; what is not listed there (another system, an owner outside of this container) is found
out by taking the lock for a moment.
"""

from __future__ import annotations

import os
from contextlib import suppress

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.storage.paths import LOCK, join


def owner_of(files: Files, path: str) -> str:
    """The owner in words; "" when there is none."""
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
        return ""  # not ours to lock; the check of writing says why
    if taken is None:
        return "a process that cannot be seen from here"
    taken.release()
    return ""


def listed_owner(locks: str, inode: int) -> int | None:
    """The process that holds a lock on the file with this number."""
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _read(files: Files, path: str) -> str:
    with suppress(OSError, StorageError):
        return files.read(path).decode(errors="replace")
    return ""
