"""Tests of the order service with confluent-kafka."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from examples.testing.conftest import Topics
from examples.testing.order_service import OrderService

from strandlog.testing import KafkaBroker
from strandlog.testing.kafka.faults import Faults

ORDER = json.dumps({"id": 7, "price": 2.5, "quantity": 4})


@pytest.fixture
def service(kafka_client_config: dict[str, Any], topics: Topics) -> Iterator[OrderService]:
    running = OrderService(kafka_client_config, *topics)
    thread = threading.Thread(target=running.run)
    thread.start()
    yield running
    running.stop()
    thread.join()


@pytest.mark.usefixtures("service")
def test_an_order_becomes_an_invoice(kafka_broker: KafkaBroker, topics: Topics) -> None:
    kafka_broker.produce(topics.orders, ORDER)
    [invoice] = kafka_broker.wait_for_records(topics.invoices, 1)
    assert invoice.key == b"7"
    assert json.loads(invoice.value or b"") == {"order": 7, "total": 10.0}


@pytest.mark.usefixtures("service")
def test_an_order_that_cannot_be_read_stops_nothing(
    kafka_broker: KafkaBroker, topics: Topics
) -> None:
    kafka_broker.produce(topics.orders, "not JSON", '{"id": 8}', ORDER)
    assert len(kafka_broker.wait_for_records(topics.rejected, 2)) == 2
    assert len(kafka_broker.wait_for_records(topics.invoices, 1)) == 1


@pytest.mark.usefixtures("service")
def test_a_lost_answer_writes_no_second_invoice(
    kafka_broker: KafkaBroker, kafka_faults: Faults, topics: Topics
) -> None:
    lost = kafka_faults.drop("Produce", handled=True)
    kafka_broker.produce(topics.orders, ORDER, ORDER)
    assert len(kafka_broker.wait_for_records(topics.invoices, 2)) == 2
    assert lost.hits == 1


@pytest.mark.usefixtures("service")
def test_a_broker_that_restarts_loses_no_order(kafka_broker: KafkaBroker, topics: Topics) -> None:
    kafka_broker.produce(topics.orders, ORDER)
    kafka_broker.wait_for_records(topics.invoices, 1)
    kafka_broker.restart()
    kafka_broker.produce(topics.orders, ORDER)
    assert len(kafka_broker.wait_for_records(topics.invoices, 2)) >= 2
