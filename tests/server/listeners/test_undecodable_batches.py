"""Batches that cannot be decoded: what Produce rejects, and what each way to read reports."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import client_of, ok
from tests.support.kafka_requests import Wire, create_topic, produce
from tests.support.log_builders import batch
from tests.support.server import RunningBroker
from tests.support.undecodable_batches import BAD_COUNTS, BAD_RECORDS, raw_batch

from strandlog.protocol.rpc import log_pb2 as messages
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub
from strandlog.record.codecs import Codec

INVALID_RECORD, MESSAGE_TOO_LARGE = 87, 10
POISON = raw_batch(b"no gzip at all", 3, Codec.GZIP)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    running = BrokerProcess(
        tmp_path_factory.mktemp("poison") / "data",
        {"log.retention.ms": "-1"},
        listeners=("--grpc-port", "0", "--http-port", "0"),
    )
    running.start()
    yield running
    assert running.stop() == 0, "it stops cleanly"


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Wire]:
    with Wire(broker.port) as connection:
        yield connection


def now_ms() -> int:
    return int(time.time() * 1000)


def error_of(wire: Wire, topic: str, data: bytes) -> int:
    return int(produce(wire, topic, data).error_code)


def poisoned(wire: Wire, topic: str) -> None:
    """Offsets 0, 1: good; 2 to 4: undecodable; 5: good."""
    create_topic(wire, topic)
    for data in (batch(b"a", b"b", timestamp=now_ms()), POISON, batch(b"c", timestamp=now_ms())):
        assert error_of(wire, topic, data) == 0


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"record.validation": "records"}])
def test_an_invalid_record_count_is_rejected_by_every_topic(
    wire: Wire, config: dict[str, str]
) -> None:
    topic = f"counts-{len(config)}"
    create_topic(wire, topic, 1, **config)
    for why, data in BAD_COUNTS.items():
        assert error_of(wire, topic, data) in (INVALID_RECORD, MESSAGE_TOO_LARGE), why
    answer = produce(wire, topic, batch(b"good", timestamp=now_ms()))
    assert answer.base_offset == 0, "nothing was written"


@pytest.mark.slow
def test_a_topic_that_validates_records_rejects_undecodable_ones(wire: Wire) -> None:
    create_topic(wire, "validated", 1, **{"record.validation": "records"})
    for why, data in BAD_RECORDS.items():
        assert error_of(wire, "validated", data) == INVALID_RECORD, why
    answer = produce(wire, "validated", batch(b"good", timestamp=now_ms()))
    assert answer.base_offset == 0, "nothing was written"


def address_of(broker: RunningBroker) -> str:
    [found] = [word for word in broker.ready.split() if word.startswith("grpc=")]
    return found.removeprefix("grpc=")


def test_grpc_consume_sends_the_records_before_the_batch_and_names_the_offset_after_it(
    broker: RunningBroker, wire: Wire
) -> None:
    poisoned(wire, "grpc")
    with grpc.insecure_channel(address_of(broker)) as channel:
        log = LogServiceStub(channel)  # type: ignore[no-untyped-call]
        found: list[bytes] = []
        with pytest.raises(grpc.RpcError) as caught:
            for answer in log.Consume(messages.ConsumeRequest(topic="grpc"), timeout=30):
                found += [entry.value for entry in answer.entries]
        assert found == [b"a", b"b"]
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        assert "offsets 2 to 4" in caught.value.details()
        assert "resume at offset 5" in caught.value.details()
        rest = log.Consume(messages.ConsumeRequest(topic="grpc", offset=5), timeout=30)
        assert [entry.value for answer in rest for entry in answer.entries] == [b"c"]


def test_http_skips_the_batch_and_reports_it(broker: RunningBroker, wire: Wire) -> None:
    poisoned(wire, "http")
    with client_of(broker) as client:
        page = ok(client.get("/api/v1/topics/http/records"))
    assert [record["offset"] for record in page["records"]] == [0, 1, 5]
    [problem] = page["problems"]
    assert "http-0" in problem
    assert "offsets 2 to 4 cannot be decoded" in problem


def test_log_verify_reports_it_and_fails(broker: RunningBroker, wire: Wire) -> None:
    poisoned(wire, "verified")
    folder = broker.data / "verified-0"
    command = [sys.executable, "-m", "strandlog", "log", "verify", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "offsets 2 to 4 cannot be decoded" in " ".join(result.stdout.split())


def test_a_second_batch_for_the_same_partition_is_rejected_as_in_kafka(wire: Wire) -> None:
    create_topic(wire, "one-batch")
    one = batch(b"a", timestamp=now_ms())
    assert error_of(wire, "one-batch", one + one) == INVALID_RECORD
    assert error_of(wire, "one-batch", one * 1000) == INVALID_RECORD
    assert produce(wire, "one-batch", one).base_offset == 0, "nothing was written"
