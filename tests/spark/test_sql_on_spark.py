"""Topics in SQL: temporary views, catalog tables, and filters, on a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill

from strandlog.client.wire.client import WireClient
from strandlog.spark import register_views, session
from strandlog.spark.errors import one_line

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def count(spark: Any, sql: str) -> int:
    return int(spark.sql(sql).collect()[0][0])


@contextmanager
def pushdown(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_catalog_table_is_one_clear_error(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    fill(client, topic, 10)
    using = f"USING strandlog OPTIONS (`bootstrap.servers` '{broker.address}', subscribe '{topic}')"
    with pytest.raises(PySparkException) as created:
        spark.sql(f"CREATE TABLE inferred {using}")
    assert one_line(created.value).startswith("strandlog cannot be a catalog table: Spark does not")
    spark.sql(f"CREATE TABLE declared (value BINARY) {using}")  # does not reach the source
    try:
        with pytest.raises(PySparkException) as read:
            spark.sql("SELECT * FROM declared").collect()
    finally:
        spark.sql("DROP TABLE declared")
    assert "no option is set. If this is a catalog table: Spark does not" in one_line(read.value)


def test_a_temporary_view_has_options_of_its_own(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    fill(client, topic, 100)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW numbers USING strandlog OPTIONS "
        f"(`bootstrap.servers` '{broker.address}', subscribe '{topic}', valueFormat 'string')"
    )
    assert count(spark, "SELECT sum(CAST(value AS INT)) FROM numbers") == sum(range(100))
    assert count(spark, "SELECT count(*) FROM numbers WHERE partition = 1") == 50


@pytest.mark.long
def test_topics_are_views_whatever_their_names(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    dotted, dashed, late = f"{topic}.eu.orders", f"{topic}-eu-orders", f"{topic}-late"
    for number, name in enumerate((dotted, dashed), 1):
        client.create_topic(name, 2)
        fill(client, name, 10 * number)
    options = {"bootstrap.servers": broker.address}
    shared = {"spark.sql.shuffle.partitions": "2"}  # as in the fixture
    session(None, shared, quiet=True, topics_as_views=True, options=options)
    try:
        assert count(spark, f"SELECT count(*) FROM `{dotted}`") == 10
        assert count(spark, f"SELECT count(*) FROM `{dashed}`") == 20
        names = {view.name for view in spark.catalog.listTables() if view.isTemporary}
        assert {topic, dotted, dashed} <= names
        assert not [name for name in names if name.startswith("__")]
        fill(client, dashed, 10)
        client.create_topic(late, 2)
        assert count(spark, f"SELECT count(*) FROM `{dashed}`") == 20, "planned by the first query"
        assert late in register_views(spark, options)
        assert count(spark, f"SELECT count(*) FROM `{dashed}`") == 30
        assert count(spark, f"SELECT count(*) FROM `{late}`") == 0
    finally:
        for view in spark.catalog.listTables():
            if view.isTemporary:
                spark.sql(f"DROP VIEW IF EXISTS `{view.name}`")


class NumberedPartition(InputPartition):  # type: ignore[misc]
    pass


class CuttingReader(DataSourceReader):  # type: ignore[misc]
    """Plans only the partitions that a filter selects, and returns all filters to Spark."""

    wanted: Any = None

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - its name in Spark
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("p",):
                self.wanted = each.value
        return filters

    def partitions(self) -> list[InputPartition]:
        return [NumberedPartition(n) for n in range(2) if self.wanted in (None, n)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, ...]]:
        yield (partition.value,)


class CuttingSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "cutting"

    def schema(self) -> str:
        return "p int"

    def reader(self, schema: Any) -> CuttingReader:
        del schema
        return CuttingReader()


def test_spark_loses_rows_of_a_source_that_plans_by_its_filters(spark: Any) -> None:
    """Why BatchReader has no pushFilters. If this test fails, Spark is fixed: implement it."""
    spark.dataSource.register(CuttingSource)
    with pushdown(spark):
        frame = spark.read.format("cutting").load()
        both = frame.where("p = 0").union(frame.where("p = 1")).collect()
        everything = frame.collect()
    assert sorted(row.p for row in both) == [1], "not [0, 1]"
    assert sorted(row.p for row in everything) == [1], "not [0, 1]"


def test_a_filtered_dataframe_can_be_read_again_with_other_filters(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    fill(client, topic, 100)
    with pushdown(spark):
        reader = spark.read.format("strandlog").option("bootstrap.servers", broker.address)
        frame = reader.option("subscribe", topic).load()
        even, odd = frame.where("partition = 0"), frame.where("partition = 1 AND offset >= 10")
        assert even.union(odd).count() == 50 + 40
        assert frame.count() == 100
        assert even.count() == 50
