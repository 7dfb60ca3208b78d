"""An archive of Spark's Java classes, from which a session starts in half of the time.

    strandlog pipeline prepare       makes the archive of this environment (spark/prepare.py)

Until the first query has run, Java spends more than half of its time on loading classes. It can
save the classes that it has loaded to a file when it ends, and map that file into its memory when
it starts. `session()` uses the archive if there is one.

    ~/.cache/strandlog/spark-4.3.0-1f0c2a9b7d3e-194183168.jsa

The folder is STRANDLOG_CACHE_DIR, else `strandlog` in XDG_CACHE_HOME or in ~/.cache. The first
digits stand for the folder of PySpark and for the Java command, the last are the size in bytes.

An archive gets its name when it is complete and on disk. One of another size is not used, because
Java dies of a truncated one. Java itself checks the contents, the build of Java and the class path,
and starts without the archive if one of them is wrong. Java runs the code in an archive, so one
that another user could have written is not used either.
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
    """Return the name of the archive of this environment, up to the size."""
    try:
        import pyspark  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("spark", "pyspark") from error
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or ""
    environment = f"{Path(pyspark.__file__).parent}\n{os.path.realpath(java)}"
    digits = hashlib.sha256(environment.encode()).hexdigest()[:12]
    return f"spark-{pyspark.__version__}-{digits}"


def cache_folder() -> Path:
    """Return the folder for files that can be made again."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "strandlog"


def use_archive() -> None:
    """Let the next Java process of Spark start from the archive, if there is one."""
    options = os.environ.get(OPTIONS_VARIABLE, "")
    if ARCHIVE_OPTION in options:
        return
    for path in cache_folder().glob(f"{archive_name()}-*.jsa"):
        if _is_intact(path) and " " not in str(path):
            # Java would report an archive that does not fit on the standard output.
            checked = f"{ARCHIVE_OPTION}{path} -XX:+VerifySharedSpaces -Xshare:auto"
            os.environ[OPTIONS_VARIABLE] = f"{options} {checked} -Xlog:cds*=off".strip()
            return


def _is_intact(path: Path) -> bool:
    """Return whether an archive has its size, and only this user or root could have written it."""
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
