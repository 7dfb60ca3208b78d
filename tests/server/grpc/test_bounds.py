"""gRPC requests that are invalid or too large; clients that cancel, never read or send bursts."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.errors import DataError
from strandlog.protocol.rpc import log_pb2
from strandlog.protocol.rpc.log_pb2_grpc import LogServiceStub
from strandlog.server.grpc.produce_request import check_item_count

MAX_RECORDS = 1000
EMPTY_RECORD = b"\x1a\x00"
LONGER_THAN_NEED_BE = b"\x9a\x80\x00\x00"  # the same with a tag of three bytes
METHODS = (
    "Produce",
    "Consume",
    "CreateTopic",
    "DescribeTopic",
    "DeleteTopic",
    "CommitOffset",
    "FetchOffset",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("grpc")
    running = BrokerProcess(
        folder / "data",
        {"grpc.request.max.records": str(MAX_RECORDS), "grpc.max.connections": "5"},
        log=folder / "stderr",
        listeners=("--grpc-port", "0", "--no-http"),
    )
    running.start()
    yield running
    assert running.stop() == 0
    written = (folder / "stderr").read_text()
    assert "Traceback" not in written
    assert "ERROR" not in written


@pytest.fixture
def channel(broker: BrokerProcess) -> Iterator[grpc.Channel]:
    [address] = [word for word in broker.ready.split() if word.startswith("grpc=")]
    with grpc.insecure_channel(address.removeprefix("grpc=")) as opened:
        yield opened


@pytest.fixture
def log(channel: grpc.Channel) -> Any:
    stub = LogServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        stub.CreateTopic(log_pb2.CreateTopicRequest(name="t"))
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    return stub


def status_of(channel: grpc.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    call = channel.unary_stream(f"/strandlog.v1.LogService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(data, timeout=20))
    return caught.value.code(), caught.value.details()


def test_these_tests_cover_every_method_whose_request_has_fields() -> None:
    service = log_pb2.DESCRIPTOR.services_by_name["LogService"]
    assert {*METHODS, "ListTopics"} == {method.name for method in service.methods}


@pytest.mark.parametrize("method", METHODS)
def test_undecodable_request_bytes_get_an_error_message(channel: grpc.Channel, method: str) -> None:
    code, words = status_of(channel, method, b"\xff" * 50)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"not a valid {method}Request" in words


def test_unknown_acks_are_rejected_and_nothing_is_written(channel: grpc.Channel, log: Any) -> None:
    request = log_pb2.ProduceRequest(topic="t", records=[log_pb2.Record(value=b"v")])
    code, words = status_of(channel, "Produce", request.SerializeToString() + b"\x20\x07")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "got 7" in words
    described = log.DescribeTopic(log_pb2.DescribeTopicRequest(name="t"))
    assert described.partitions[0].end_offset == 0


def test_an_error_about_a_long_name_is_short(channel: grpc.Channel) -> None:
    request = log_pb2.ProduceRequest(topic="n" * 1_000_000, records=[log_pb2.Record()])
    code, words = status_of(channel, "Produce", request.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(words) < 1000


@pytest.mark.parametrize("record", [EMPTY_RECORD, LONGER_THAN_NEED_BE])
def test_a_request_with_too_many_records_is_rejected(channel: grpc.Channel, record: bytes) -> None:
    request = log_pb2.ProduceRequest(topic="t").SerializeToString()
    code, words = status_of(channel, "Produce", request + record * (MAX_RECORDS + 1))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "grpc.request.max.records" in words


def test_large_requests_of_methods_other_than_produce_are_rejected(channel: grpc.Channel) -> None:
    request = log_pb2.CreateTopicRequest(name="x", config={str(n): "" for n in range(20_000)})
    code, words = status_of(channel, "CreateTopic", request.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most" in words


def test_a_request_over_the_size_limit_is_rejected(channel: grpc.Channel) -> None:
    code, _ = status_of(channel, "Produce", bytes(5 << 20))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_cancelled_streams_leave_no_traceback(log: Any) -> None:
    for _ in range(20):
        log.Consume(log_pb2.ConsumeRequest(topic="t", follow=True)).cancel()
    log.ListTopics(log_pb2.ListTopicsRequest())  # the fixture of the broker reads its log


def test_the_record_limit_counts_records_and_headers_but_not_payload() -> None:
    header = log_pb2.Header(key="k")
    value = b"\x1a\x00" * 2000  # looks like records
    record = log_pb2.Record(value=value, headers=[header, header])
    data = log_pb2.ProduceRequest(topic="t", records=[record] * 3).SerializeToString()
    check_item_count(data, 9)
    with pytest.raises(DataError):
        check_item_count(data, 8)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_truncated_message_is_an_error_and_not_an_endless_loop(cut: int) -> None:
    record = log_pb2.Record(value=b"v", headers=[log_pb2.Header(key="k")])
    data = log_pb2.ProduceRequest(topic="t", records=[record] * 10).SerializeToString()
    with pytest.raises(DataError):
        check_item_count(data[:-cut], 1)
    with pytest.raises(DataError):
        check_item_count(b"\xff" * 20 + b"\x1a" * 20, 1)


@pytest.mark.slow
def test_a_client_that_never_reads_makes_room_for_others(tmp_path: Path) -> None:
    settings = {"grpc.queued.max.response.bytes": "4194304", "grpc.stall.timeout.ms": "100"}
    running = BrokerProcess(
        tmp_path / "data", settings, listeners=("--grpc-port", "0", "--no-http")
    )
    running.start()
    [address] = [word for word in running.ready.split() if word.startswith("grpc=")]
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(address.removeprefix("grpc="), options) for _ in range(4)]
    stubs: list[Any] = [LogServiceStub(each) for each in channels]  # type: ignore[no-untyped-call]
    stubs[0].CreateTopic(log_pb2.CreateTopicRequest(name="t"))
    many = log_pb2.ProduceRequest(topic="t", records=[log_pb2.Record(value=bytes(100_000))] * 9)
    for _ in range(8):
        stubs[0].Produce(many)
    unread = [stub.Consume(log_pb2.ConsumeRequest(topic="t")) for stub in stubs[:3]]
    read = stubs[3].Consume(log_pb2.ConsumeRequest(topic="t"), timeout=20)
    assert sum(len(message.entries) for message in read) == 72
    for stream in unread:
        stream.cancel()
    for channel in channels:
        channel.close()
    assert running.stop() == 0


def test_a_burst_of_streams_cancels_no_calls(broker: BrokerProcess, log: Any) -> None:
    """gRPC reset calls at random, of other clients too, while 1000 waited for the event loop."""
    [address] = [word for word in broker.ready.split() if word.startswith("grpc=")]
    options = [("grpc.use_local_subchannel_pool", 1)]
    follow = log_pb2.ConsumeRequest(topic="t", follow=True)
    assert broker.process is not None
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(address.removeprefix("grpc="), options))
            for _ in range(4)
        ]
        for each in channels:
            grpc.channel_ready_future(each).result(timeout=30)
        stubs: list[Any] = [LogServiceStub(each) for each in channels]  # type: ignore[no-untyped-call]
        os.kill(broker.process.pid, signal.SIGSTOP)  # so that all calls arrive at once
        try:
            calls = [stub.Consume(follow) for stub in stubs for _ in range(1000)]
            one = log_pb2.ProduceRequest(topic="t", acks=log_pb2.ACKS_ALL, records=[{}])
            produce = log.Produce.future(one)
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
        assert len(produce.result(timeout=60).offsets) == 1
        ended = [call.code() for call in calls if call.done()]
        assert grpc.StatusCode.CANCELLED not in ended
        for call in calls:
            call.cancel()
