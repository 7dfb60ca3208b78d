"""Transactions that librdkafka writes to a broker."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

PATIENCE_S = 30


class KafkaTransactions:
    """A transactional producer that writes one transaction after another."""

    def __init__(self, address: str, transactional_id: str, **settings: int | str) -> None:
        self._address = address
        self._producer = Producer(
            {"bootstrap.servers": address, "transactional.id": transactional_id} | settings
        )
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, topic: str, *values: bytes) -> None:
        """Begin a transaction and write records in it; they are in the log afterwards."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, value)
        assert self._producer.flush(PATIENCE_S) == 0

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0 for a group, in the open transaction."""
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": group})
        offsets = [TopicPartition(topic, 0, offset)]
        metadata = consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(offsets, metadata, PATIENCE_S)
        consumer.close()

    def commit(self) -> None:
        """Commit the open transaction."""
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        """Abort the open transaction."""
        self._producer.abort_transaction(PATIENCE_S)
