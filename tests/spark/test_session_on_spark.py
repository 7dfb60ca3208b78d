"""What a session does for its streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.broker_process import BrokerProcess
from tests.spark.conftest import fill

from strandlog.client.wire.client import WireClient


def _variables(spark: Any) -> set[str]:
    """The environment that Spark keeps with the format, for all queries."""
    formats = spark._jsparkSession.sessionState().dataSourceManager()
    return set(formats.lookupDataSource("strandlog").dataSourceCls().envVars().keySet())


def test_queries_that_start_at_once_do_not_make_tasks_unreadable(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    before = _variables(spark)
    frame = (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    queries = [
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / str(number)))
        .trigger(availableNow=True)
        .start()
        for number in range(2)
    ]
    for query in queries:
        assert query.awaitTermination(120)
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == 100
    # The race is rare; what makes it possible is a name that a starting query adds.
    assert _variables(spark) == before


def test_java_does_not_check_each_access_to_arrow_twice(spark: Any) -> None:
    arrow = spark._jvm.org.apache.arrow
    assert not arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED
