"""An archive of Spark's Java classes that halves the start time of a session.

    strandlog pipeline prepare       creates the archive for this environment (spark/prepare.py)

Until the first query has run, Java spends more than half of its time on loading classes. Java can
save its loaded classes to a file when it exits, and map that file into memory when it starts.
`session()` uses the archive, if there is one, when it starts Java.

    ~/.cache/strandlog/spark-4.3.0-1f0c2a9b7d3e-194183168.jsa

The folder is STRANDLOG_CACHE_DIR or, by default, `strandlog` in XDG_CACHE_HOME or in ~/.cache. The
name contains the PySpark version, a hash of PySpark's folder and the Java command, and the size of
the file in bytes.

An archive gets its name when it is complete and on disk. An archive whose size does not match its
name is not used, because Java crashes on a truncated archive. Java itself checks the contents, the
Java build and the class path, and starts without the archive if any of them does not match. Java
runs the code in an archive, so an archive that another user could have written is not used either.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from strandlog.errors import MissingExtraError

CACHE_VARIABLE = "STRANDLOG_CACHE_DIR"
OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"  # options of the Java process that runs the driver
ARCHIVE_OPTION = "-XX:SharedArchiveFile="


def archive_name() -> str:
    """Return the name of this environment's archive, without the size."""
    try:
        import pyspark  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("spark", "pyspark") from error
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or ""
    environment = f"{Path(pyspark.__file__).parent}\n{os.path.realpath(java)}"
    digits = hashlib.sha256(environment.encode()).hexdigest()[:12]
    return f"spark-{pyspark.__version__}-{digits}"


def cache_folder() -> Path:
    """Return the folder for files that can be recreated."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "strandlog"


def use_archive() -> None:
    """Make Spark's next Java process start from the archive, if there is an intact one and
    SPARK_SUBMIT_OPTS does not already name an archive."""
    options = os.environ.get(OPTIONS_VARIABLE, "")
    if ARCHIVE_OPTION in options:
        return
    for path in cache_folder().glob(f"{archive_name()}-*.jsa"):
        if _is_intact(path) and " " not in str(path):
            # Without -Xlog:cds*=off, Java would report an unusable archive on standard output.
            checked = f"{ARCHIVE_OPTION}{path} -XX:+VerifySharedSpaces -Xshare:auto"
            os.environ[OPTIONS_VARIABLE] = f"{options} {checked} -Xlog:cds*=off".strip()
            return


def _is_intact(path: Path) -> bool:
    """Return whether an archive has the size in its name, and only this user or root could have
    written it."""
    try:
        archive, folder = path.lstat(), path.parent.stat()
    except OSError:
        return False
    return (
        stat.S_ISREG(archive.st_mode)
        and path.stem.rpartition("-")[2] == str(archive.st_size)
        and all(
            each.st_uid in (os.getuid(), 0) and not each.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            for each in (archive, folder)
        )
    )
