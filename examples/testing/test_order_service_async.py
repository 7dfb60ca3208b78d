"""Tests of the order service with aiokafka, and of the one with FastStream if it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from examples.testing.conftest import Topics
from examples.testing.order_service_async import serve_orders

from strandlog.testing import KafkaBroker

ORDER = json.dumps({"id": 7, "price": 2.5, "quantity": 4})
INVOICE = {"order": 7, "total": 10.0}


def test_an_order_becomes_an_invoice(kafka_broker: KafkaBroker, topics: Topics) -> None:
    async def check() -> None:
        service = asyncio.create_task(serve_orders(kafka_broker.aiokafka_config(), *topics))
        kafka_broker.produce(topics.orders, "not JSON", ORDER)
        [invoice] = await kafka_broker.wait_for_records_async(topics.invoices, 1)
        assert json.loads(invoice.value or b"") == INVOICE
        assert len(kafka_broker.records(topics.rejected)) == 1
        service.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await service

    asyncio.run(check())


def test_an_order_becomes_an_invoice_in_faststream(
    kafka_broker: KafkaBroker, topics: Topics
) -> None:
    pytest.importorskip("faststream.confluent")
    from examples.testing.order_service_faststream import order_broker  # noqa: PLC0415 - optional

    async def check() -> None:
        servers = kafka_broker.bootstrap_servers
        async with order_broker(servers, topics.orders, topics.invoices) as service:
            await service.start()
            kafka_broker.produce(topics.orders, ORDER)
            [invoice] = await kafka_broker.wait_for_records_async(topics.invoices, 1)
            assert json.loads(invoice.value or b"") == INVOICE

    asyncio.run(check())
