"""The order service with aiokafka; see order_service.py."""

from __future__ import annotations

import json
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from examples.testing.order_service import invoice_of


async def serve_orders(config: dict[str, Any], orders: str, invoices: str, rejected: str) -> None:
    """Turn orders into invoices until the task is cancelled."""
    consumer = AIOKafkaConsumer(
        orders,
        group_id="order-service-async",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **config,
    )
    async with consumer, AIOKafkaProducer(enable_idempotence=True, **config) as producer:
        async for message in consumer:
            try:
                invoice = invoice_of(message.value)
            except (ValueError, KeyError, TypeError):
                await producer.send_and_wait(rejected, message.value)
            else:
                text = json.dumps(invoice).encode()
                key = str(invoice["order"]).encode()
                await producer.send_and_wait(invoices, text, key=key)
            await consumer.commit()
