"""Reads and writes the files of the `tls`, `token` and `user` commands.

Each file is written under a temporary name, fsynced and renamed, so a crash leaves the old or the
new file. Only the owner can read a file with a private key or a password; files with public keys
and the certificate of the CA are readable by all users.
"""

from __future__ import annotations

import os
import stat

from strandlog.errors import SecurityFileError, StorageError
from strandlog.storage.files import DiskFiles

PUBLIC_DIR_MODE = 0o755
MAX_FILE_BYTES = 1024 * 1024  # more than any certificate chain needs


def write_private(path: str, data: bytes) -> None:
    """Write a file that only its owner can read."""
    _prepare(path).replace(path, data)


def write_public(path: str, data: bytes) -> None:
    """Write a file that all users can read."""
    _prepare(path)
    DiskFiles(PUBLIC_DIR_MODE).replace(path, data)


def _prepare(path: str) -> DiskFiles:
    files = DiskFiles()
    folder = os.path.dirname(path)
    if folder:
        files.make_dir(folder)
    return files


def read_file(path: str) -> bytes:
    """Return the contents of a file; raise SecurityFileError if it is unreadable or too large."""
    try:
        size = DiskFiles().size(path)
        if size > MAX_FILE_BYTES:
            raise SecurityFileError(
                f"{path} has {size} bytes; the maximum is {MAX_FILE_BYTES}. It is not a "
                "key, certificate or token file"
            )
        return DiskFiles().read(path)
    except (OSError, StorageError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SecurityFileError(f"cannot read {path}: {reason}") from error


def others_can_read(path: str) -> bool:
    """Return whether users other than the owner have access to a file."""
    return bool(stat.S_IMODE(os.stat(path).st_mode) & 0o077)
