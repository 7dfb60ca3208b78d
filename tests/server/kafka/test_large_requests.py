"""Large requests are decoded and answered in slices, and their size is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import (
    Wire,
    build,
    create_topic,
    encode,
    parse_produce,
    produce,
    request_header,
)
from tests.support.server import RunningBroker
from tests.support.waiting import eventually_in_loop

from strandlog.config.limits.kafka import MAX_STRING_BYTES, MAX_TAGGED_FIELDS
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import DataError
from strandlog.protocol.kafka.decoder import decode_request
from strandlog.protocol.kafka.encoder import request_encoder
from strandlog.protocol.kafka.headers import unsigned_varint
from strandlog.protocol.kafka.schemas import element_of, is_entity, request_schema, unwrap
from strandlog.record.builder import build_batch
from strandlog.server.app import Server, ServerOptions
from strandlog.server.kafka.api import KafkaApi
from strandlog.server.kafka.handlers import declared_apis, fetch
from strandlog.server.memory import DecodingGate

POLICY_VIOLATION, GROUP_METADATA_TOO_LARGE = 44, 10
LONG_NAME = "\x01" * 32_000  # four times as long in a message


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("large")
    running = BrokerProcess(folder / "data", log=folder / "log")
    running.start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Wire]:
    with Wire(broker.port) as connection:
        yield connection


def _in_server(tmp_path: Path, act: Callable[[Server, int], Awaitable[None]]) -> None:
    """Run a server in this process."""

    async def run() -> None:
        settings = broker_settings(BROKER_SETTINGS.parse({}))
        server = Server(ServerOptions(str(tmp_path / "data"), settings=settings))
        port = int((await server.start()).split()[1].rpartition(":")[2])
        await act(server, port)
        await server.stop()

    asyncio.run(run())


# -- slices --------------------------------------------------------------------------------------


def _has_array(schema: Any) -> bool:
    for field in fields(schema):
        kind, _ = unwrap(field.type)
        if element_of(kind) is not None or (is_entity(kind) and _has_array(kind)):
            return True
    return False


@pytest.mark.parametrize("api", declared_apis(), ids=lambda api: api.name)
def test_a_request_with_an_array_is_handled_in_slices(api: KafkaApi) -> None:
    if any(_has_array(request_schema(api.key, version)) for version in api.versions):
        returns = api.handler.__annotations__["return"]
        assert returns.startswith("Work[None]"), f"{api.name} keeps the event loop from others"


@pytest.mark.slow
def test_a_produce_response_has_the_partitions_in_request_order(wire: Wire) -> None:
    create_topic(wire, "many", 300)
    batch = bytes(build_batch(1_700_000_000_000, [b"v"]))
    rows = [{"index": number, "records": batch} for number in reversed(range(310))]
    topics = [{"name": "many", "partition_data": rows}]
    answer = wire.ask(0, 11, transactional_id=None, acks=-1, timeout=9000, topic_data=topics)
    found = [(row.index, int(row.error_code)) for row in answer.responses[0].partition_responses]
    assert found == [(number, 3 if number >= 300 else 0) for number in reversed(range(310))]


def test_a_fetch_of_many_partitions_returns_the_records_of_each(wire: Wire) -> None:
    create_topic(wire, "wide", 100)
    for number in (3, 70):
        produce(wire, "wide", bytes(build_batch(1_700_000_000_000, [b"v" * number])), number)
    rows = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": 10**6}
        for number in range(100)
    ]
    topics = [{"topic": "wide", "partitions": rows}]
    [answer] = wire.ask(1, 11, replica_id=-1, min_bytes=1, max_bytes=10**7, topics=topics).responses
    found = [part.partition_index for part in answer.partitions if part.records]
    assert found == [3, 70]
    assert len(answer.partitions) == 100


# -- what one request may hold -------------------------------------------------------------------


def test_millions_of_tagged_fields_in_a_request_are_rejected_before_they_are_read() -> None:
    names = b"\x02a\x02a"
    few = names + unsigned_varint(MAX_TAGGED_FIELDS) + b"\x09\x00" * MAX_TAGGED_FIELDS
    assert decode_request(18, 3, memoryview(few), 0).client_software_name == "a"
    many = names + unsigned_varint(10_000_000) + b"\x09\x00" * 200
    with pytest.raises(DataError, match="10000000 tagged fields"):
        decode_request(18, 3, memoryview(many), 0)


def test_millions_of_tagged_fields_in_a_header_close_the_connection(wire: Wire) -> None:
    tags = unsigned_varint(10_000_000) + b"\x09\x00" * 1000
    request = request_header(18, 3, 1, tags=tags) + b"\x02a\x02a\x00"
    wire.send(request)
    with pytest.raises(ConnectionError):
        wire.receive()


def test_a_string_is_at_most_as_long_as_in_kafka() -> None:
    def request(length: int) -> memoryview:
        row = {"name": "x" * length, "topic_id": None}
        return memoryview(request_encoder(3, 12)({"topics": [row]}))

    assert (
        len(decode_request(3, 12, request(MAX_STRING_BYTES), 0).topics[0].name) == MAX_STRING_BYTES
    )
    with pytest.raises(DataError, match="a string of 32768 bytes"):
        decode_request(3, 12, request(MAX_STRING_BYTES + 1), 0)
    topic = {"name": "x" * (MAX_STRING_BYTES + 1), "partition_data": []}
    body = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [topic]}
    with pytest.raises(DataError, match="a string of 32768 bytes"):
        parse_produce(9, memoryview(request_encoder(0, 9)(body)), 0)


@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        (0, 8, {"acks": -1, "timeout": 1, "topic_data": [
            {"name": LONG_NAME, "partition_data": [{"index": 0, "records": None}]}]}),
        (19, 2, {"topics": [{"name": LONG_NAME, "num_partitions": 1, "replication_factor": 1}] * 2,
                 "timeout": 1}),
        (37, 0, {"topics": [{"name": LONG_NAME, "count": 2, "assignments": None}], "timeout": 1}),
        (43, 1, {"topic_partitions": [{"topic": LONG_NAME, "partitions": [0]}]}),
        (44, 0, {"resources": [{"resource_type": 99, "resource_name": LONG_NAME}]}),
    ],
    ids=["Produce", "CreateTopics", "CreatePartitions", "ElectLeaders", "IncrementalAlterConfigs"],
)  # fmt: skip
def test_an_error_about_a_long_name_is_returned_without_a_traceback(
    wire: Wire, api_key: int, version: int, values: dict[str, Any]
) -> None:
    body = request_encoder(api_key, version)(values)
    request = request_header(api_key, version, 1) + body
    wire.send(request)
    assert len(wire.receive()) < 2 * len(LONG_NAME)


@pytest.mark.slow
def test_a_member_with_too_many_assignors_is_rejected(wire: Wire) -> None:
    def code(count: int) -> int:
        protocols = [{"name": f"p{number}", "metadata": b""} for number in range(count)]
        answer = wire.ask(11, 3, group_id="g", session_timeout=30_000, rebalance_timeout=1000,
                          member_id="", protocol_type="consumer", protocols=protocols)  # fmt: skip
        return int(answer.error_code)

    assert code(101) == GROUP_METADATA_TOO_LARGE
    assert code(100) == 0


def test_a_resource_gets_a_bounded_number_of_settings(wire: Wire) -> None:
    rows = [{"name": f"s{number}", "value": "1"} for number in range(1001)]
    wanted = {"name": "n", "num_partitions": 1, "replication_factor": 1, "configs": rows}
    [made] = wire.ask(19, 7, topics=[wanted], timeout=1000).topics
    assert int(made.error_code) == POLICY_VIOLATION
    resource = {"resource_type": 2, "resource_name": "n", "configs": rows}
    [changed] = wire.ask(33, 2, resources=[resource]).responses
    assert int(changed.error_code) == POLICY_VIOLATION


# -- long polls ----------------------------------------------------------------------------------


def _poll(wire: Wire, topic: str, wait_ms: int) -> None:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10**6}
    topics = [{"topic": topic, "partitions": [part]}]
    body = build(
        1, 11, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=10**6, topics=topics
    )
    wire.send(request_header(1, 11, 1) + encode(body))


def test_one_fetch_waits_per_connection(tmp_path: Path) -> None:
    async def act(server: Server, port: int) -> None:
        def client() -> int:
            with Wire(port) as wire, Wire(port) as other:
                create_topic(other, "t")
                for _ in range(20):
                    _poll(wire, "t", 60_000)
                while not server.broker._delayed_fetches.waiting_count:
                    other.ask(18, 0)
                other.ask(18, 0)
                return server.broker._delayed_fetches.waiting_count

        assert await asyncio.to_thread(client) == 1

    _in_server(tmp_path, act)


def test_a_fetch_with_an_endless_wait_still_gets_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "FETCH_MAX_WAIT_MS", 50)

    async def act(_server: Server, port: int) -> None:
        def client() -> None:
            with Wire(port) as wire:
                create_topic(wire, "t")
                _poll(wire, "t", 2**31 - 1)
                wire.receive()

        await asyncio.to_thread(client)

    _in_server(tmp_path, act)


# -- many large requests at a time ---------------------------------------------------------------


@pytest.mark.slow
def test_large_requests_of_many_connections_are_decoded_a_few_at_a_time(tmp_path: Path) -> None:
    async def act(server: Server, port: int) -> None:
        rows = [{"name": f"topic-{number}", "topic_id": None} for number in range(20_000)]
        body = {"topics": rows, "allow_auto_topic_creation": False}
        request = request_header(3, 12, 1) + request_encoder(3, 12)(body)
        most = 3 * len(request)
        server.kafka.decoding = gate = DecodingGate(most)
        seen: list[int] = []
        enter = gate.enter

        def entered(size: int) -> None:
            enter(size)
            seen.append(gate.total)

        gate.enter = entered  # type: ignore[method-assign]

        def client() -> None:
            wires = [Wire(port) for _ in range(10)]
            for wire in wires[:9]:
                wire.send(request)
            wires[9].ask(18, 0)  # a small one passes
            wires[0].socket.close()
            for wire in wires[1:9]:
                assert len(wire.receive()) > 20_000
            for wire in wires:
                wire.socket.close()

        await asyncio.to_thread(client)
        assert max(seen) <= most
        assert len(seen) >= 8
        await eventually_in_loop(lambda: not server.kafka.connections(), "all are closed")
        assert gate.total == 0

    _in_server(tmp_path, act)
