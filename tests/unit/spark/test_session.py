"""The Python that Spark runs, which `import strandlog.spark` chooses."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = "import os, strandlog.spark; print(os.environ.get('PYSPARK_PYTHON'))"


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"PYSPARK_GATEWAY_PORT": "1"}, "None"),  # spark-submit started the program
    ],
    ids=["nothing set", "set by the user", "spark-submit"],
)
def test_the_import_makes_spark_run_this_python(environment: dict[str, str], chosen: str) -> None:
    paths = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**paths, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == chosen
