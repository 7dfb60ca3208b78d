"""The encoder against kio's reader, for every supported API and version."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader
from tests.support.samples import outer_versions

from strandlog.errors import DataError
from strandlog.protocol.kafka.api import Api
from strandlog.protocol.kafka.decoder import decode_request
from strandlog.protocol.kafka.encoder import array_encoder, response_encoder
from strandlog.server.kafka.handlers import declared_apis

ALL_VERSIONS = [(each.api, version) for each in declared_apis() for version in each.versions]


def _read(api_key: int, version: int, data: bytes) -> Any:
    entity, size = entity_reader(load_response_schema(api_key, version))(data, 0)
    assert size == len(data)
    return entity


@pytest.mark.parametrize(("api", "version"), outer_versions(ALL_VERSIONS))
def test_every_response_can_be_written_with_defaults_alone(api: Api, version: int) -> None:
    _read(api.key, version, response_encoder(api.key, version)({}))


@pytest.mark.parametrize(("api", "version"), outer_versions(ALL_VERSIONS))
def test_flexible_versions_are_those_of_the_schema(api: Api, version: int) -> None:
    schema: Any = load_response_schema(api.key, version)
    assert schema.__flexible__ == api.is_flexible(version)


@pytest.mark.parametrize("version", range(14))
def test_metadata_has_the_same_content_in_every_version_that_supports_it(version: int) -> None:
    topic_id = uuid4()
    body = {
        "throttle_time": 7,
        "brokers": [{"node_id": 0, "host": "h", "port": 9092, "rack": None}],
        "cluster_id": "c",
        "controller_id": 0,
        "topics": [
            {
                "error_code": 3,
                "name": "ä",
                "topic_id": topic_id,
                "is_internal": True,
                "partitions": [
                    {
                        "partition_index": 4,
                        "leader_id": 0,
                        "replica_nodes": [0],
                        "isr_nodes": [0, 1],
                    }
                ],
            }
        ],
    }
    found = _read(3, version, response_encoder(3, version)(body))
    assert (found.brokers[0].host, found.brokers[0].port) == ("h", 9092)
    topic = found.topics[0]
    assert (topic.name, topic.error_code.value) == ("ä", 3)
    assert topic.partitions[0].partition_index == 4
    assert topic.partitions[0].isr_nodes == (0, 1)
    assert version < 10 or topic.topic_id == topic_id
    assert version < 3 or found.throttle_time.total_seconds() == 0.007


def test_tagged_fields_are_written_when_given() -> None:
    body = {"supported_features": [{"name": "f", "min_version": 1, "max_version": 2}]}
    found = _read(18, 4, response_encoder(18, 4)(body))
    assert [(f.name, f.min_version, f.max_version) for f in found.supported_features] == [
        ("f", 1, 2)
    ]


@pytest.mark.parametrize(("api", "version"), outer_versions(ALL_VERSIONS))
def test_invalid_requests_raise_data_error(api: Api, version: int) -> None:
    for junk in (b"\xff" * 40, b"\x7f" * 40, bytes(range(40))):
        try:
            decode_request(api.key, version, memoryview(junk), 0)
        except DataError:
            continue


def test_an_encoded_array_is_copied_into_the_response() -> None:
    rows = [{"partition_index": number, "leader_id": 0} for number in range(3)]
    for version in (1, 12):
        encoded = array_encoder(3, version, "topics", "partitions")(rows)
        body = {"name": "t", "partitions": rows}
        twice = {"topics": [body, {**body, "partitions": encoded}]}
        first, second = _read(3, version, response_encoder(3, version)(twice)).topics
        assert first == second
