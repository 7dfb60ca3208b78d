"""Arrow layouts that Spark passes to the sink only with certain settings."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient


@pytest.mark.long
def test_large_variable_width_types_are_written(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    cluster = {"bootstrap.servers": broker.address}
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        spark.range(5).selectExpr(
            "CAST(id AS STRING) AS key",
            "CAST(CAST(id * 10 AS STRING) AS BINARY) AS value",
            "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers",
        ).write.format("strandlog").options(**cluster, topic=topic).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    rows = (
        spark.read.format("strandlog")
        .options(**cluster, subscribe=topic, includeHeaders="true")
        .load()
        .collect()
    )
    assert sorted((bytes(row.key), bytes(row.value)) for row in rows) == [
        (b"%d" % number, b"%d" % (number * 10)) for number in range(5)
    ]
    assert all(row.headers[0].key == "h" for row in rows)
