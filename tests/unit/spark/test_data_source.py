"""Options that Spark passes to the source for catalog tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandlog.errors import SettingError, UnknownSettingError

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark.data_source import StrandlogDataSource
from strandlog.spark.options import BATCH, parse_options
from strandlog.spark.schema import record_schema

ADDRESS = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
COLUMNS = record_schema(parse_options(BATCH, ADDRESS))
CALLS: dict[str, Callable[[StrandlogDataSource], object]] = {
    "schema": lambda source: source.schema(),
    "reader": lambda source: source.reader(COLUMNS),
    "writer": lambda source: source.writer(COLUMNS, overwrite=False),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "given", [{**ADDRESS, "provider": "strandlog", "owner": "me"}, {}], ids=["create", "read"]
)
def test_a_catalog_table_is_an_error_that_names_the_alternatives(
    call: str, given: dict[str, str]
) -> None:
    with pytest.raises(SettingError) as caught:
        CALLS[call](StrandlogDataSource(given))
    text = str(caught.value)
    for alternative in ("TEMPORARY VIEW", "createOrReplaceTempView", "topics_as_views=True"):
        assert alternative in text
    assert "\n" not in text


def test_an_unknown_option_named_provider_is_not_a_catalog_table() -> None:
    with pytest.raises(UnknownSettingError, match="provider"):
        StrandlogDataSource({**ADDRESS, "provider": "someone"}).schema()


def test_a_stream_in_mode_complete_gets_an_error_about_mode_overwrite() -> None:
    source = StrandlogDataSource({"bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    with pytest.raises(SettingError) as caught:
        source.streamWriter(COLUMNS, overwrite=True)
    assert str(caught.value) == (
        "invalid value 'complete' for outputMode: expected append; other modes need foreachBatch"
    )


def test_an_error_for_a_wrong_starting_offset_names_json_only() -> None:
    with pytest.raises(SettingError, match="expected earliest, latest, or JSON like"):
        parse_options(BATCH, {**ADDRESS, "startingOffsets": "begin"})
