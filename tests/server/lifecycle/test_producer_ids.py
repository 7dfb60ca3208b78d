"""Producer ids of a real broker whose file of ids was lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire, create_topic, produce

from strandlog.record.builder import build_batch


def new_producer(wire: Wire) -> int:
    answer = wire.ask(
        22,
        4,
        transactional_id=None,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    assert answer.error_code == 0
    return int(answer.producer_id)


def first_batch_of(producer_id: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    values = [b"v%d" % producer_id]
    built = build_batch(now_ms, values, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    return bytes(built)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_records_are_not_acknowledged_as_duplicates_after_producer_ids_json_was_lost(
    tmp_path: Path, damage: str
) -> None:
    log = tmp_path / "broker.log"
    broker = BrokerProcess(tmp_path / "data", log=log)
    broker.start()
    try:
        with Wire(broker.port) as wire:
            create_topic(wire, "t")
            old = new_producer(wire)
            assert produce(wire, "t", first_batch_of(old)).base_offset == 0
        broker.stop(signal.SIGKILL)
        for path in (tmp_path / "data").glob("producer-ids.json*"):
            path.unlink() if damage == "deleted" else path.write_bytes(b"")
        broker.start()
        with Wire(broker.port) as wire:
            new = new_producer(wire)
            assert new > old
            answer = produce(wire, "t", first_batch_of(new))
            assert (int(answer.error_code), answer.base_offset) == (0, 1)
    finally:
        broker.stop()
    assert "producer-ids.json" in log.read_text()
