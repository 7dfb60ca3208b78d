"""What the broker does for all its listeners alike."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire, create_topic, produce

import strandlog
from strandlog.record.builder import build_batch

STORAGE_ERROR = 56


@pytest.mark.slow
def test_a_full_disk_is_logged_once_and_not_for_each_request(
    tmp_path: Path,
) -> None:
    """Clients only said "timed out", half a minute later, and the broker said nothing."""
    no_disk_has = str(2**62)
    log = tmp_path / "broker.log"
    broker = BrokerProcess(tmp_path / "data", {"log.min.free.bytes": no_disk_has}, log=log)
    broker.start()
    try:
        with Wire(broker.port) as wire:
            create_topic(wire, "t")
            batch = bytes(build_batch(time.time_ns() // 1_000_000, [b"x"]))
            answers = [produce(wire, "t", batch).error_code for _ in range(5)]
        assert [int(code) for code in answers] == [STORAGE_ERROR] * 5
        with (
            strandlog.connect(broker.address, config={"message.timeout.ms": 1000}) as remote,
            pytest.raises(strandlog.UnreachableError, match="its log says why it rejects records"),
        ):
            remote.producer().send("t", b"x")
    finally:
        broker.stop()
    told = [line for line in log.read_text().splitlines() if "records are rejected" in line]
    assert len(told) == 1
    assert f"appends are rejected below {no_disk_has} (log.min.free.bytes)" in told[0]
