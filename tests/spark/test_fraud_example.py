"""examples/fraud.py: a stateful operator in Python between two topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch


@pytest.fixture
def with_state_store(spark: Any) -> Iterator[Any]:
    from examples.fraud import STATE_STORE

    for name, value in STATE_STORE.items():
        spark.conf.set(name, value)
    yield spark
    for name in STATE_STORE:
        spark.conf.unset(name)


def pay(client: WireClient, *payments: tuple[str, str]) -> None:
    rows = [
        json.dumps({"card": card, "at": f"2026-01-01T{at}:00Z", "amount": 1}).encode()
        for card, at in payments
    ]
    tp = TopicPartition("payments", 0)
    assert client.produce({tp: [build_batch(1, rows)]})[tp].error is None


@pytest.mark.long
def test_a_card_that_pays_too_often_within_ten_minutes_raises_an_alert_once(
    with_state_store: Any, broker: BrokerProcess, client: WireClient, checkpoint: str
) -> None:
    from examples.fraud import start
    from tests.spark.test_pipeline_on_spark import records

    client.create_topic("payments", 1)
    client.create_topic("alerts", 1)

    def found() -> list[tuple[str, int, str]]:
        rows = [json.loads(record.value or b"") for record in records(client, "alerts")]
        return [(row["card"], row["payments"], row["until"][11:16]) for row in rows]

    def run() -> None:
        query = start(with_state_store, broker.address, checkpoint, once=True)
        assert query.awaitTermination(300)

    pay(client, ("c1", "09:58"), ("c2", "10:00"), ("c1", "09:59"), ("c2", "10:30"), ("c2", "10:45"))
    run()
    assert found() == [], "three payments in three quarters of an hour are fine"
    pay(client, ("c2", "10:46"), ("c1", "10:47"), ("c2", "10:50"))
    run()
    assert found() == [("c2", 3, "10:50")], "the state survives a restart, and c1's has expired"
