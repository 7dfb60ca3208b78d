"""An order service with confluent-kafka: reads orders and writes an invoice for each.

    orders     {"id": 7, "price": 2.5, "quantity": 4}
    invoices   {"order": 7, "total": 10.0}, with the id as key
    rejected   orders that cannot be parsed, unchanged

The offset of an order is committed after its invoice has been acknowledged, so no order is lost. A
crash between the two repeats an invoice; its key is the id of the order, so that readers can
recognize the duplicate.
"""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, Message, Producer

POLL_SECONDS = 0.1


class OrderService:
    """Turns orders into invoices until it is stopped."""

    def __init__(self, config: dict[str, Any], orders: str, invoices: str, rejected: str) -> None:
        self._invoices, self._rejected = invoices, rejected
        self._producer = Producer({**config, "enable.idempotence": True, "linger.ms": 0})
        self._consumer = Consumer(
            {
                **config,
                "group.id": "order-service",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([orders])
        self._is_stopped = False

    def run(self) -> None:
        """Work until `stop` is called."""
        try:
            while not self._is_stopped:
                message = self._consumer.poll(POLL_SECONDS)
                if message is not None and message.error() is None:
                    self._handle(message)
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """Make `run` return soon; may be called from another thread."""
        self._is_stopped = True

    def _handle(self, message: Message) -> None:
        try:
            invoice = invoice_of(message.value())
        except (ValueError, KeyError, TypeError):
            self._producer.produce(self._rejected, message.value())
        else:
            text = json.dumps(invoice)
            self._producer.produce(self._invoices, text, key=str(invoice["order"]))
        self._producer.flush()
        self._consumer.commit(message, asynchronous=False)


def invoice_of(order: bytes) -> dict[str, Any]:
    """Return the invoice for an order."""
    found = json.loads(order)
    return {"order": found["id"], "total": found["price"] * found["quantity"]}
