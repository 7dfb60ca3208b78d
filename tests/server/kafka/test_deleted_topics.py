"""A deleted topic leaves nothing behind on the connections of its consumers."""

from __future__ import annotations

import gc
from pathlib import Path

from tests.support.kafka_requests import Wire, create_topic, produce

from strandlog.protocol.kafka.api import DELETE_TOPICS, FETCH
from strandlog.record.builder import build_batch
from strandlog.storage.partition.log import PartitionLog
from strandlog.testing.server import ServerThread


def test_an_open_connection_does_not_keep_the_log_of_a_deleted_topic_in_memory(
    tmp_path: Path,
) -> None:
    """Each connection noted where its fetches began, by log; the logs stayed until it closed."""
    with ServerThread(tmp_path / "data") as server, Wire(server.port) as wire:
        create_topic(wire, "gone")
        batch = bytes(build_batch(1_700_000_000_000, [b"value"]))
        produce(wire, "gone", batch)
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
        topics = [{"topic": "gone", "partitions": [part]}]
        found = wire.ask(FETCH.key, 12, max_wait=0, min_bytes=1, max_bytes=10**6, topics=topics)
        assert found.responses[0].partitions[0].records

        def logs() -> int:
            gc.collect()
            kept = [each for each in gc.get_objects() if isinstance(each, PartitionLog)]
            return len([log for log in kept if log.tp.topic == "gone"])

        assert server.call(logs) == 1
        wire.ask(DELETE_TOPICS.key, 4, topic_names=["gone"], timeout=10_000)
        create_topic(wire, "other")
        produce(wire, "other", batch)  # the flush loop keeps its last job until the next one
        assert server.call(logs) == 0
