"""Spark outside an activated environment, as in Jupyter, an IDE or cron: `python3` on the search
path has no strandlog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strandlog

FIRST = "import strandlog.spark"
LATER = "from strandlog.spark import register; register(spark)"
LOCAL = "127.0.0.1"
PROGRAM = """
{first}
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
{later}
rows = spark.read.format("strandlog").option("path", {path!r}).option("subscribe", "orders").load()
print("rows:", rows.where("offset >= 0").count())
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("first", "later"), [(FIRST, ""), ("", LATER)], ids=["import", "register"])
def test_the_format_is_found_although_python3_on_the_path_is_another(
    first: str, later: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        with log.producer() as producer:
            producer.send("orders", b"one tea")
    script = PROGRAM.format(first=first, later=later, path=str(tmp_path / "data"))
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: without packages
    other.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, "PATH": f"{other.parent}:/usr/bin:/bin", "SPARK_LOCAL_IP": LOCAL},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows: 1" in done.stdout, done.stderr[-3000:]
