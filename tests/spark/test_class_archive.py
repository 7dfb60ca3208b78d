"""`strandlog pipeline prepare`, which `make check` has run: a session starts from its archive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def test_the_shared_session_has_mapped_the_archive_of_spark_classes(spark: Any) -> None:
    archives = list(Path(os.environ["STRANDLOG_CACHE_DIR"]).glob("spark-*.jsa"))
    if not archives:
        pytest.skip("there is no archive: `make check` makes one")
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    mapped = Path(f"/proc/{process}/maps").read_text()
    assert any(str(archive) in mapped for archive in archives)
