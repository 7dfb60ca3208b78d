"""Error responses mirror the request, for every API, in its oldest and its newest version."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest

from strandlog.config.tables.server import Address
from strandlog.protocol.kafka.decoder import decode_request, decode_response
from strandlog.protocol.kafka.encoder import request_encoder, response_encoder
from strandlog.protocol.kafka.schemas import (
    FIXED,
    element_of,
    is_entity,
    request_schema,
    response_schema,
    unwrap,
)
from strandlog.server.kafka.handlers import KAFKA_APIS
from strandlog.testing.kafka.error_responses import (
    api_named,
    can_fail,
    error_code,
    error_response,
    topics_in,
)

CODE = 29
ADDRESS = Address("127.0.0.1", 9092)
TOPIC_ID = UUID(int=7)
VERSIONS = [
    (api.key, version)
    for api in KAFKA_APIS.values()
    if can_fail(api.key)
    for version in sorted({api.versions[0], api.last_version})
]


def _sample(schema: Any) -> dict[str, Any]:
    """A request with one row in every array; names are "t", numbers are 3."""
    body: dict[str, Any] = {}
    for field in fields(schema):
        kind, _ = unwrap(field.type)
        element = element_of(kind)
        if element is not None and is_entity(element):
            body[field.name] = [_sample(element)]
        elif is_entity(kind):
            body[field.name] = _sample(kind)
        else:
            value = _value(field.metadata["kafka_type"])
            body[field.name] = [value] if element is not None else value
    return body


def _value(kafka_type: str) -> Any:
    if kafka_type in FIXED:
        return kafka_type != "bool" and 3
    return {"string": "t", "uuid": TOPIC_ID}.get(kafka_type, b"b")


def _codes(schema: Any, body: Any) -> list[int]:
    """All error codes of a decoded response."""
    found = []
    for field in fields(schema):
        value = getattr(body, field.name)
        element = element_of(unwrap(field.type)[0])
        if field.metadata.get("kafka_type") == "error_code":
            found.append(value)
        elif element is not None and is_entity(element):
            for row in value or ():
                found += _codes(element, row)
    return found


def _request(key: int, version: int) -> Any:
    data = request_encoder(key, version)(_sample(request_schema(key, version)))
    return decode_request(key, version, memoryview(data), 0)


def _failed(key: int, version: int) -> Any:
    body = error_response(key, version, _request(key, version), CODE, ADDRESS)
    assert body is not None
    data = response_encoder(key, version)(body)
    return decode_response(key, version, memoryview(data), 0)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_every_response_carries_the_code(key: int, version: int) -> None:
    codes = _codes(response_schema(key, version), _failed(key, version))
    assert CODE in codes
    assert set(codes) <= {CODE, 0}


def test_a_produce_response_names_topics_and_partitions() -> None:
    [topic] = _failed(0, 11).responses
    [partition] = topic.partition_responses
    assert (topic.name, partition.index, partition.error_code) == ("t", 3, CODE)
    assert _failed(0, 13).responses[0].topic_id == TOPIC_ID


def test_a_fetch_response_has_no_error_of_the_session() -> None:
    response = _failed(1, 12)
    [topic] = response.responses
    assert (topic.topic, topic.partitions[0].partition_index) == ("t", 3)
    assert (response.error_code, topic.partitions[0].error_code) == (0, CODE)


def test_a_metadata_response_keeps_the_broker() -> None:
    response = _failed(3, 12)
    [broker], [topic] = response.brokers, response.topics
    assert (broker.host, broker.port) == ADDRESS
    assert (topic.name, topic.error_code) == ("t", CODE)


def test_names_in_a_request_become_the_first_text_of_a_row() -> None:
    [group] = _failed(15, 5).groups
    assert (group.group_id, group.error_code) == ("t", CODE)
    [coordinator] = _failed(10, 4).coordinators
    assert (coordinator.key, coordinator.error_code) == ("t", CODE)


def test_a_request_that_names_nothing_has_no_error_response() -> None:
    data = request_encoder(3, 12)({"topics": None})
    request = decode_request(3, 12, memoryview(data), 0)
    assert error_response(3, 12, request, CODE, ADDRESS) is None


def test_topics_are_found_by_name_and_by_id() -> None:
    assert topics_in(_request(0, 11)) == ["t"]
    assert topics_in(_request(1, 13))[0] == TOPIC_ID
    assert topics_in(_request(20, 5)) == ["t"]


def test_errors_and_apis_have_kafkas_names() -> None:
    assert error_code("NOT_LEADER_OR_FOLLOWER") == 6
    assert error_code(999) == 999
    assert api_named("Produce") == 0
    with pytest.raises(ValueError, match="Kafka has no error 'NOPE'"):
        error_code("NOPE")
    with pytest.raises(ValueError, match="unknown API 'Nope'"):
        api_named("Nope")
