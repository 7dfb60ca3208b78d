"""Rows of cases from the records of topics, and the pipeline that a case runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandlog.clock import SystemClock
from strandlog.errors import PipelineError, SchemaNotFoundError
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.formats.registry.decoder import ValueDecoder
from strandlog.model import Record

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.pipeline.cases.file import Output
from strandlog.spark.pipeline.cases.run import _adapted, _row
from strandlog.spark.pipeline.frames import source_options
from strandlog.spark.pipeline.model import Pipeline, SourceTable

ROW = '{"type": "object", "properties": {"n": {"type": "integer"}}}'


def by_id(schema_id: int | str) -> RegisteredSchema:
    if schema_id != 1:
        raise SchemaNotFoundError(40403, f"Schema {schema_id} not found")
    return RegisteredSchema(1, "JSON", ROW)


def row(value: bytes) -> object:
    decoder = ValueDecoder(by_id, by_id, SystemClock())
    record = Record("t", 0, 7, 0, b"k", value)
    return _row(Output("topic", "t"), record, decoder)


def test_a_value_with_a_registered_schema_ends_all_cases_with_a_decode_error() -> None:
    assert row(b'\0\0\0\0\1{"n": 5}') == {"n": 5, "_key": "k"}
    assert row(b'{"n": 5}') == {"n": 5, "_key": "k"}


@pytest.mark.parametrize("value", [b'\0\0\0\0\2{"n": 5}', b"\0\0\0\0\1{", b"[1]", b"7"])
def test_a_value_that_is_not_a_row_ends_all_cases_with_a_decode_error(value: bytes) -> None:
    with pytest.raises(PipelineError, match="the record at offset 7 of topic t is not a row"):
        row(value)


def test_a_case_does_not_wait_for_its_stopped_broker_to_commit_progress(tmp_path: Path) -> None:
    """Spark calls listeners late: a commit would be retried for a minute, and fail."""
    source = SourceTable("s", "t", format="string")
    pipeline = Pipeline("p", "checkpoints", bootstrap="b:1", sources=(source,))
    assert source_options(pipeline, source)["groupId"] == "p"
    case = _adapted(pipeline, "127.0.0.1:9", tmp_path)
    assert "groupId" not in source_options(case, case.sources[0])
