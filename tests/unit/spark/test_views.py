"""Topics as temporary views, with a session that only records what it is asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import strandlog
from strandlog.errors import InvalidSettingError, SettingError

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark import register_views, session


class Recorder:
    """Stands for a SparkSession, its conf, a DataFrameReader and a DataFrame."""

    def __init__(self, *, is_case_sensitive: bool = False) -> None:
        self.conf = {"spark.sql.caseSensitive": str(is_case_sensitive).lower()}
        self.views: dict[str, dict[str, str]] = {}
        self._options: dict[str, str] = {}

    @property
    def read(self) -> Recorder:
        self._options = {}
        return self

    def format(self, _: str) -> Recorder:
        return self

    def schema(self, _: Any) -> Recorder:
        return self

    def options(self, **given: str) -> Recorder:
        self._options |= given
        return self

    def option(self, name: str, value: str) -> Recorder:
        return self.options(**{name: value})

    def load(self) -> Recorder:
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - its name in Spark
        self.views[name] = self._options


def folder_with(path: Path, *topics: str) -> dict[str, str]:
    with strandlog.open(path) as log:
        for topic in topics:
            log.create_topic(topic)
        with log.consumer(["orders"], group="g") as consumer:  # creates __consumer_offsets
            consumer.commit()
    return {"path": str(path)}


def test_every_topic_but_internal_ones_is_a_view_with_a_quoted_name(tmp_path: Path) -> None:
    options = folder_with(tmp_path, "orders", "web.clicks", "a-b") | {"valueFormat": "string"}
    spark: Any = Recorder()
    assert register_views(spark, options) == ["a-b", "orders", "web.clicks"]
    assert spark.views.keys() == {"`a-b`", "`orders`", "`web.clicks`"}
    assert spark.views["`a-b`"] == options | {"subscribe": "a-b"}


def test_a_name_that_differs_only_in_case_does_not_replace_a_view(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = folder_with(tmp_path, "orders", "Orders")
    spark: Any = Recorder()
    with caplog.at_level(logging.WARNING):
        assert register_views(spark, options) == ["Orders"]
    assert spark.views["`Orders`"]["subscribe"] == "Orders"
    assert "topic 'orders' has no view" in caplog.text
    exact: Any = Recorder(is_case_sensitive=True)
    assert register_views(exact, options) == ["Orders", "orders"]


@pytest.mark.parametrize("name", ["subscribe", "SUBSCRIBEPATTERN", "assign"])
def test_views_choose_their_topics_themselves(name: str) -> None:
    with pytest.raises(InvalidSettingError, match="each view reads one topic"):
        session(topics_as_views=True, options={"path": "x", name: "orders"})


def test_invalid_options_of_views_fail_before_spark_starts() -> None:
    with pytest.raises(SettingError, match="neither is set"):
        session(topics_as_views=True)
    with pytest.raises(SettingError, match="set topics_as_views=True"):
        session(options={"path": "x"})
