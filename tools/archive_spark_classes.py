"""Saves the classes that Spark loads to an archive, from which the Java processes of tests start.

    python -m tools.archive_spark_classes        (make check)

Runs a batch query and a stream through the data source, because the archive contains only classes
that were used, and waits until Java has written the archive. Prints nothing if it succeeds. If it
fails, the tests run without the archive, which takes longer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.support.java_options import CLASS_ARCHIVE, QUICK_JAVA, SUBMIT_OPTIONS

import strandlog
from strandlog.spark import session

PATIENCE_SECONDS = 600


def main() -> None:
    CLASS_ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        archive = Path(folder) / CLASS_ARCHIVE.name
        options = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
        os.environ[SUBMIT_OPTIONS] = options
        use_spark(Path(folder))
        archive.rename(CLASS_ARCHIVE)


def use_spark(folder: Path) -> None:
    """Read a topic as a batch and as a stream, and wait until Java has ended."""
    with strandlog.open(folder / "log") as log:
        log.create_topic("numbers", partitions=2)
        with log.producer() as producer:
            for number in range(100):
                producer.send("numbers", b"%d" % number, key=b"%d" % (number % 10))
    spark = session("local[2,2]", {"spark.sql.shuffle.partitions": "2"}, quiet=True)
    spark.sparkContext.setLogLevel("OFF")
    source = {"path": str(folder / "log"), "subscribe": "numbers"}
    rows = spark.read.format("strandlog").options(**source).load()
    digits = rows.selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
    assert digits.count() == 10
    rows.createOrReplaceTempView("rows")
    spark.sql("SELECT max(CAST(value AS STRING)) FROM rows").collect()
    spark.createDataFrame([(1, "one")], "number INT, name STRING").write.parquet(
        str(folder / "table")
    )
    stream = spark.readStream.format("strandlog").options(**source).load()
    stream.groupBy("key").count().writeStream.format("memory").queryName("counts").outputMode(
        "complete"
    ).trigger(availableNow=True).start().awaitTermination()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # Java ends, and writes the archive, when its standard input ends
    java.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
