"""The client's side of the protocol: kio decodes our requests, we decode its responses."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from kio.index import load_request_schema
from kio.serial import entity_reader
from tests.support.examples import examples
from tests.support.kafka_requests import encode, parse_produce, response_bodies
from tests.support.samples import outer_versions

from strandlog.client.wire.apis import CLIENT_VERSIONS
from strandlog.errors import DataError
from strandlog.model import Buffer
from strandlog.protocol.kafka.api import API_BY_KEY, FETCH, PRODUCE, Api
from strandlog.protocol.kafka.decoder import decode_response
from strandlog.protocol.kafka.encoder import request_encoder
from strandlog.protocol.kafka.headers import (
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from strandlog.protocol.kafka.produce_fetch_client import (
    FetchAsk,
    fetch_request,
    parse_fetch_response,
    parse_produce_response,
    produce_request,
)
from strandlog.protocol.kafka.produce_fetch_server import (
    FetchedPartition,
    ProduceAnswer,
    fetch_response,
    produce_response,
)
from strandlog.server.kafka.handlers import SUPPORTED_VERSIONS

VERSIONS = [
    (API_BY_KEY[key], version)
    for key, usable in CLIENT_VERSIONS.items()
    for version in range(usable.first, usable.last + 1)
]
BY_KIO = [(api, version) for api, version in VERSIONS if api not in {PRODUCE, FETCH}]
PRODUCE_VERSIONS = [version for api, version in VERSIONS if api == PRODUCE]
FETCH_VERSIONS = [version for api, version in VERSIONS if api == FETCH]
QUICK = examples(0.03)


def _read(schema: Any, data: bytes) -> Any:
    entity, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    return entity


def _same(ours: Any, kios: Any) -> bool:
    if is_dataclass(kios):
        return all(_same(getattr(ours, f.name), getattr(kios, f.name)) for f in fields(kios))
    if isinstance(kios, tuple):
        return len(ours) == len(kios) and all(map(_same, ours, kios))
    if isinstance(kios, datetime):
        return bool(ours == kios.timestamp() * 1000)
    return bool(ours == (kios.value if isinstance(kios, Enum) else kios))


@pytest.mark.parametrize(("api", "version"), outer_versions(VERSIONS))
def test_flexible_versions_are_those_of_the_schema(api: Api, version: int) -> None:
    schema: Any = load_request_schema(api.key, version)
    assert schema.__flexible__ == api.is_flexible(version)


@pytest.mark.parametrize(("api", "version"), outer_versions(BY_KIO))
def test_every_request_can_be_written_with_defaults_alone(api: Api, version: int) -> None:
    _read(load_request_schema(api.key, version), request_encoder(api.key, version)({}))


@pytest.mark.parametrize(("api", "version"), outer_versions(BY_KIO))
def test_a_response_that_kio_wrote_is_read_and_one_that_was_cut_is_a_data_error(
    api: Api, version: int
) -> None:
    @QUICK
    @given(response_bodies(api.key, version))
    def check(body: Any) -> None:
        frame = encode(body)
        assert _same(decode_response(api.key, version, memoryview(frame), 0), body)
        for cut in range(0, len(frame), 7):
            with pytest.raises(DataError):
                decode_response(api.key, version, memoryview(frame[:cut]), 0)

    check()


@pytest.mark.parametrize(("api", "version"), outer_versions(VERSIONS))
def test_our_headers_are_read_by_our_broker(api: Api, version: int) -> None:
    if version not in SUPPORTED_VERSIONS.get(api.key, ()):
        pytest.skip(f"the broker does not speak {api.name} v{version}")
    sent = memoryview(request_header(api, version, 77, "me") + b"body")
    header = read_request_header(sent, SUPPORTED_VERSIONS)
    assert header[:4] == (api.key, version, 77, "me")
    assert bytes(sent[header.body_position :]) == b"body"
    answer = memoryview(response_header(api.key, version, 77) + b"body")
    correlation_id, position = read_response_header(api, version, answer)
    assert (correlation_id, bytes(answer[position:])) == (77, b"body")


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_kio_decodes_a_fetch_request(version: int) -> None:
    written = fetch_request(version, FetchAsk("töpic", 7, 2**40, 1000, 1, 500, 3))
    found = _read(load_request_schema(FETCH.key, version), written)
    assert found.max_wait.total_seconds() == 0.5
    assert (found.replica_id, found.min_bytes, found.max_bytes) == (-1, 3, 1000)
    assert found.isolation_level == 1
    [topic] = found.topics
    [part] = topic.partitions
    assert (topic.topic, part.partition, part.fetch_offset) == ("töpic", 7, 2**40)
    assert part.partition_max_bytes == 1000
    if version >= 7:
        assert (found.session_id, found.session_epoch, found.forgotten_topics_data) == (0, -1, ())
    if version >= 9:
        assert part.current_leader_epoch == -1


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_response_is_read_as_it_was_written_and_when_cut_is_a_data_error(
    version: int,
) -> None:
    parts = [
        FetchedPartition(3, 0, 9, 8, 2, [(5, 6), (7, 8)], [b"abc", b"def"]),
        FetchedPartition(4, 1, -1, -1, -1, None, []),
    ]
    whole = b"".join(fetch_response(version, [("t", parts)], error_code=0))
    answer = parse_fetch_response(version, memoryview(b"xx" + whole), 2)
    first, second = answer.partitions
    assert first[:5] == ("t", 3, 0, 9, 8)
    assert first.log_start_offset == (2 if version >= 5 else -1)
    assert (first.aborted, bytes(first.records)) == ([(5, 6), (7, 8)], b"abcdef")
    assert (second.partition, second.error_code, bytes(second.records)) == (4, 1, b"")
    tail = 3 if version >= 12 else 0  # tagged fields at the very end are not needed
    for end in range(len(whole) - tail):
        with pytest.raises(DataError):
            parse_fetch_response(version, memoryview(whole[:end]), 0)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "txn"])
def test_kio_and_the_broker_decode_a_produce_request(
    version: int, transactional_id: str | None
) -> None:
    topics: dict[str, list[tuple[int, Buffer]]] = {
        "a": [(0, b"records"), (5, memoryview(b"more"))],
        "b": [(1, bytearray(b"x" * 300))],
    }
    written = b"".join(produce_request(version, transactional_id, -1, 1500, topics))
    ours = parse_produce(version, memoryview(written), 0)
    assert ours[:3] == (transactional_id, -1, 1500)
    assert [(p.topic, p.partition, bytes(p.records or b"")) for p in ours.partitions] == [
        ("a", 0, b"records"),
        ("a", 5, b"more"),
        ("b", 1, b"x" * 300),
    ]
    kios = _read(load_request_schema(PRODUCE.key, version), written)
    assert [topic.name for topic in kios.topic_data] == ["a", "b"]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_response_is_read_as_it_was_written_and_when_cut_is_a_data_error(
    version: int,
) -> None:
    good = ProduceAnswer(1, 0, 42, -1, 7)
    bad = ProduceAnswer(2, 87, -1, -1, -1, "no key", [3, 4])
    whole = produce_response(version, [("t", [good, bad]), ("u", [])])
    [(topic, first), (_, second)] = parse_produce_response(version, memoryview(whole), 0)
    assert (topic, first[:4]) == ("t", (1, 0, 42, -1))
    assert (second.partition, second.error_code) == (2, 87)
    if version >= 8:
        assert (second.error_message, second.bad_records) == ("no key", [3, 4])
    tail = 5 if version >= 9 else 4  # the throttle time, and tagged fields
    for end in range(len(whole) - tail):
        with pytest.raises(DataError):
            parse_produce_response(version, memoryview(whole[:end]), 0)


def test_the_broker_supports_every_version_that_the_client_uses() -> None:
    missing = [
        API_BY_KEY[key].name
        for key, usable in CLIENT_VERSIONS.items()
        if usable.last not in SUPPORTED_VERSIONS.get(key, ())
    ]
    assert not missing
