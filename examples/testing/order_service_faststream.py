"""The order service with FastStream, on confluent-kafka; see order_service.py."""

from __future__ import annotations

from examples.testing.order_service import invoice_of
from faststream.confluent import KafkaBroker, KafkaMessage


def order_broker(bootstrap_servers: str, orders: str, invoices: str) -> KafkaBroker:
    """Return a FastStream broker object, with the service as its subscriber."""
    broker = KafkaBroker(bootstrap_servers)

    @broker.subscriber(orders, group_id="order-service-faststream", auto_offset_reset="earliest")
    @broker.publisher(invoices)
    async def bill(_: dict[str, float], message: KafkaMessage) -> dict[str, float]:
        return invoice_of(message.body)

    return broker
