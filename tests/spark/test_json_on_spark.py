"""`valueFormat=json` compared with Spark's `from_json`, on the same values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import NOW_MS
from tests.unit.formats.json_cases import (
    BASE64,
    FIELDS,
    REPORTED,
    SCHEMA,
    WHOLE,
    WRAPPED,
    value_of,
)

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch


@pytest.fixture
def new_york(spark: Any) -> Iterator[None]:
    usual = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", usual)


def put(client: WireClient, topic: str, values: Sequence[bytes]) -> None:
    batches = [build_batch(NOW_MS, list(values[at : at + 50])) for at in range(0, len(values), 50)]
    for result in client.produce({TopicPartition(topic, 0): batches}).values():
        assert result.error is None


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Rows by offset. Times as numbers, because Python's do not reach as far; NaN equals NaN."""
    import pyarrow as pa

    table = frame.toArrow().sort_by("offset")
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns[name] = [repr(each) if each != each else each for each in column.to_pylist()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def both(
    spark: Any, broker: BrokerProcess, topic: str, schema: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(our rows, those of `from_json`)."""

    def reader(form: str) -> Any:
        return (
            spark.read.format("strandlog")
            .option("bootstrap.servers", broker.address)
            .option("subscribe", topic)
            .option("valueFormat", form)
        )

    ours = (
        reader("json")
        .schema(f"offset BIGINT, {schema}, _corrupt STRING")
        .load()
        .selectExpr("*", "_corrupt IS NOT NULL AS is_bad")
        .drop("_corrupt")
    )
    theirs = (
        reader("binary")
        .load()
        .selectExpr(
            "offset",
            f"from_json(CAST(value AS STRING), '{schema}, _corrupt_record STRING') AS parsed",
        )
        .selectExpr("offset", "parsed.*")
        .selectExpr("*", "_corrupt_record IS NOT NULL AS is_bad")
        .drop("_corrupt_record")
    )
    return rows_of(ours), rows_of(theirs)


@pytest.mark.usefixtures("new_york")
def test_a_json_value_is_parsed_as_from_json_does(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    values = [*map(value_of, FIELDS), *WHOLE, *REPORTED]
    put(client, topic, values)
    ours, theirs = both(spark, broker, topic, SCHEMA)
    assert len(ours) == len(theirs) == len(values)
    number, column = WRAPPED
    index = values.index(value_of(number))
    assert (ours[index].pop(column), theirs[index].pop(column)) == (None, -1_000_000)
    wrong = []
    for value, our, their in zip(values, ours, theirs, strict=True):
        if value in REPORTED:
            assert (our.pop("is_bad"), their.pop("is_bad")) == (True, False), value
        wrong += [
            (value[:60], name, our[name], their[name]) for name in our if our[name] != their[name]
        ]
    assert wrong == []
    assert any(row["is_bad"] and row["z"] == 1 for row in ours if "is_bad" in row)


def test_base64_is_parsed_as_from_json_does(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    values = [f'{{"f": "{text}"}}'.encode() for text in BASE64]
    put(client, topic, values)
    ours, theirs = both(spark, broker, topic, "f BINARY")
    assert ours == theirs
    assert sum(row["is_bad"] for row in ours) == 3


def test_numbers_that_from_json_wraps_around_are_reported(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    put(client, topic, [b'{"t": 128}', b'{"s": 9223372036855}', b'{"s": "12:30"}'])
    ours, theirs = both(spark, broker, topic, "t TINYINT, s TIMESTAMP")
    assert [row["is_bad"] for row in ours] == [True] * 3
    assert all(row["t"] is row["s"] is None for row in ours)
    assert [row["is_bad"] for row in theirs] == [False] * 3


def test_a_stream_of_bad_rows_only(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    values = [b'{"id": "x", "name": "n"}', b"\xff\xfe", b"", b"{", b'{"big": "' + b"x" * 9000]
    put(client, topic, values * 20)
    frame = (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("valueFormat", "json")
        .schema("id BIGINT, name STRING, _corrupt STRING")
        .load()
    )
    query = (
        frame.writeStream.format("memory")
        .queryName("only_bad")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    counted = spark.sql(
        "SELECT count(*), count(_corrupt), count(id), count(name) FROM only_bad"
    ).first()
    assert tuple(counted) == (100, 100, 0, 20)


@pytest.mark.parametrize("kind", ["VARIANT", "INTERVAL DAY TO SECOND"])
def test_a_type_that_cannot_be_parsed_is_an_error_when_the_query_is_planned(
    spark: Any, broker: BrokerProcess, topic: str, kind: str
) -> None:
    reader = (
        spark.read.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("valueFormat", "json")
    )
    with pytest.raises(Exception, match=r"cannot parse column odd as .*from_json"):
        reader.schema(f"id BIGINT, odd {kind}").load().collect()
