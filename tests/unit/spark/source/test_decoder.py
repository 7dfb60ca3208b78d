"""Bytes as text."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow", reason="Spark tests need the spark extra")
pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.source.decoder import as_text  # noqa: E402


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert as_text(pa.array([b"a\xffb", None, b"c"])).to_pylist() == ["a\ufffdb", None, "c"]
