"""Secrets in options: Spark's plans, errors, progress, execution store and checkpoint hide them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

SECRET = "Distinctive-5511"
OPTIONS = {
    "kafka.sasl.password": SECRET,
    "kafka.sasl.jaas.config": f'x required username="u" password="{SECRET}";',
    "kafka.ssl.key.password": SECRET,
    "kafka.ssl.key.pem": f"-----BEGIN PRIVATE KEY-----{SECRET}",
    "kafka.ssl.keystore.key": SECRET,
}


def test_a_batch_shows_no_secret(
    spark: Any, broker: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"bootstrap.servers": broker.address, "subscribe": topic, **OPTIONS}
    rows = spark.read.format("strandlog").options(**options).load()
    rows.explain(True)
    rows.explain("formatted")
    rows.count()
    shown = [*capsys.readouterr(), *_executions(spark)]
    for changed in ({"startingOffsets": "x"}, {"assign": "{}"}):
        with pytest.raises(Exception) as caught:
            spark.read.format("strandlog").options(**options, **changed).load().count()
        shown.append(f"{caught.value!r} {caught.value}")
    assert SECRET not in "".join(shown)


def test_a_stream_shows_no_secret(
    spark: Any,
    broker: BrokerProcess,
    topic: str,
    checkpoint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = {"bootstrap.servers": broker.address, **OPTIONS}
    rows = spark.readStream.format("strandlog").options(**log).option("subscribe", topic).load()
    query = (
        rows.select("key", "value")
        .writeStream.format("strandlog")
        .options(**log, topic=f"{topic}-copy", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    shown = [*capsys.readouterr(), *_executions(spark), str(query.recentProgress)]
    stored = [path.read_bytes() for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert stored
    assert SECRET not in "".join(shown)
    assert SECRET.encode() not in b"".join(stored)


def _executions(spark: Any) -> list[str]:
    """What Spark's user interface would show about the executed queries."""
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    each = [found.apply(number) for number in range(found.size())]
    assert each
    return [f"{one.physicalPlanDescription()} {one.details()} {one.description()}" for one in each]
