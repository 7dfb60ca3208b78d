"""The hand-written codecs against kio's, for every version."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from tests.support.examples import examples
from tests.support.kafka_requests import parse_any_produce, parse_produce

from strandlog.errors import DataError
from strandlog.model import TopicRef
from strandlog.protocol.kafka.api import FETCH, PRODUCE
from strandlog.protocol.kafka.produce_fetch_server import (
    Cursor,
    FetchedPartition,
    ProduceAnswer,
    fetch_response,
    produce_response,
    single_produce_response,
)
from strandlog.server.kafka.handlers import SUPPORTED_VERSIONS

PRODUCE_VERSIONS = SUPPORTED_VERSIONS[PRODUCE.key]
FETCH_VERSIONS = SUPPORTED_VERSIONS[FETCH.key]
INT64 = st.integers(-(2**63), 2**63 - 1)


def _nested(schema: Any, name: str) -> Any:
    return getattr(__import__(schema.__module__, fromlist=[name]), name)


def _produce_bytes(version: int, topics: list[tuple[str, list[tuple[int, bytes | None]]]]) -> bytes:
    schema: Any = load_request_schema(PRODUCE.key, version)
    topic_schema = _nested(schema, "TopicProduceData")
    partition_schema = _nested(schema, "PartitionProduceData")

    def ref(name: str) -> dict[str, Any]:
        return {"topic_id": UUID(int=hash(name) % 2**128)} if version >= 13 else {"name": name}

    request = schema(
        transactional_id=None,
        acks=-1,
        timeout=timedelta(milliseconds=1500),
        topic_data=tuple(
            topic_schema(
                **ref(name),
                partition_data=tuple(
                    partition_schema(index=index, records=records) for index, records in partitions
                ),
            )
            for name, partitions in topics
        ),
    )
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, request)
    return buffer.getvalue()


TOPICS = st.lists(
    st.tuples(
        st.text("abc", min_size=1, max_size=5),
        st.lists(
            st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=200)), max_size=3
        ),
    ),
    max_size=3,
)


def _outcome(parse: Any, version: int, frame: bytes) -> Any:
    try:
        return parse(version, memoryview(frame), 0)
    except DataError:
        return DataError


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples(0.2)
@given(
    st.text("abc", max_size=130),
    st.binary(max_size=200),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=2),
)
def test_the_fast_and_the_general_parser_agree_on_any_bytes(
    version: int, topic: str, records: bytes, missing: int, damage: list[tuple[int, int]]
) -> None:
    frame = bytearray(_produce_bytes(version, [(topic, [(3, records)])]))
    assert (
        bytes(parse_produce(version, memoryview(frame), 0).partitions[0].records or b"") == records
    )
    for position, byte in damage:
        frame[position % len(frame)] = byte
    for damaged in (bytes(frame), bytes(frame[: len(frame) - missing]), bytes(frame) + b"\0"):
        short = _outcome(parse_produce, version, damaged)
        assert short == _outcome(parse_any_produce, version, damaged)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples(0.125)
@given(TOPICS)
def test_a_produce_request_is_read_as_kio_wrote_it(
    version: int, topics: list[tuple[str, list[tuple[int, bytes | None]]]]
) -> None:
    request = parse_produce(version, memoryview(_produce_bytes(version, topics)), 0)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 1500, None)
    found = [
        (part.partition, None if part.records is None else bytes(part.records))
        for part in request.partitions
    ]
    assert found == [part for _, partitions in topics for part in partitions]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_request_that_is_cut_or_mangled_is_a_data_error(version: int) -> None:
    whole = _produce_bytes(version, [("topic", [(0, b"records"), (1, b"more")])])
    for end in range(len(whole)):
        with pytest.raises(DataError):
            parse_produce(version, memoryview(whole[:end]), 0)
    for position in range(len(whole)):
        mangled = bytearray(whole)
        mangled[position] ^= 0x80
        try:
            parse_produce(version, memoryview(mangled), 0)
        except DataError:
            continue


PARTITIONS = st.lists(
    st.builds(
        FetchedPartition,
        st.integers(0, 100),
        st.sampled_from([0, 1, 3]),
        INT64,
        INT64,
        INT64,
        st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
        st.lists(st.binary(min_size=1, max_size=50), max_size=3),
    ),
    max_size=4,
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@examples(0.125)
@given(st.lists(PARTITIONS, max_size=3))
def test_kio_decodes_a_fetch_response(version: int, topics: list[list[FetchedPartition]]) -> None:
    names: list[TopicRef] = [
        uuid4() if version >= 13 else f"topic-{number}" for number in range(len(topics))
    ]
    written = b"".join(fetch_response(version, list(zip(names, topics, strict=True))))
    response: Any
    response, size = entity_reader(load_response_schema(FETCH.key, version))(written, 0)
    assert size == len(written)
    assert [
        topic.topic_id if version >= 13 else topic.topic for topic in response.responses
    ] == names
    for topic, partitions in zip(response.responses, topics, strict=True):
        for found, meant in zip(topic.partitions, partitions, strict=True):
            assert found.partition_index == meant.partition
            assert found.error_code.value == meant.error_code
            assert found.high_watermark == meant.high_watermark
            assert found.last_stable_offset == meant.last_stable_offset
            assert version < 5 or found.log_start_offset == meant.log_start_offset
            assert version < 11 or found.preferred_read_replica == -1
            assert bytes(found.records) == b"".join(meant.records)
            aborted = found.aborted_transactions
            assert (aborted is None) == (meant.aborted is None)
            if aborted is not None:
                assert [(a.producer_id, a.first_offset) for a in aborted] == list(
                    meant.aborted or ()
                )


ANSWERS = st.lists(
    st.builds(
        ProduceAnswer,
        st.integers(0, 100),
        st.sampled_from([0, 2, 10]),
        INT64,
        st.integers(-1, 10**12),
        INT64,
        st.none() | st.text("äx", max_size=20),
        st.lists(st.integers(0, 1000), max_size=3),
    ),
    max_size=4,
)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@examples(0.125)
@given(st.lists(ANSWERS, max_size=3))
def test_kio_decodes_a_produce_response(version: int, topics: list[list[ProduceAnswer]]) -> None:
    names: list[TopicRef] = [
        uuid4() if version >= 13 else f"topic-{number}" for number in range(len(topics))
    ]
    written = produce_response(version, list(zip(names, topics, strict=True)))
    response: Any
    response, size = entity_reader(load_response_schema(PRODUCE.key, version))(written, 0)
    assert size == len(written)
    for topic, answers in zip(response.responses, topics, strict=True):
        for found, meant in zip(topic.partition_responses, answers, strict=True):
            assert found.index == meant.partition
            assert found.error_code.value == meant.error_code
            assert found.base_offset == meant.base_offset
            assert version < 5 or found.log_start_offset == meant.log_start_offset
            assert version < 8 or found.error_message == meant.error_message
            if version >= 8:
                blamed = [record.batch_index for record in found.record_errors]
                assert blamed == meant.bad_records


@pytest.mark.parametrize("version", [each for each in PRODUCE_VERSIONS if each < 13])
@examples(0.2)
@given(st.text("aä", max_size=130), st.integers(0, 2**31 - 1), INT64, INT64, INT64)
def test_the_fast_and_the_general_response_for_one_partition_are_equal(
    version: int, topic: str, partition: int, base_offset: int, time_ms: int, start_offset: int
) -> None:
    answer = ProduceAnswer(partition, 0, base_offset, time_ms, start_offset)
    short = single_produce_response(version, topic, partition, base_offset, time_ms, start_offset)
    assert short == produce_response(version, [(topic, [answer])])


def test_null_arrays_do_not_raise_the_limit_on_elements() -> None:
    cursor = Cursor(memoryview(b"\x00\x00\x03" + bytes(100)), 0, True, 1)
    assert (cursor.count(), cursor.count()) == (0, 0)
    with pytest.raises(DataError, match=r"request\.max\.elements"):
        cursor.count()
