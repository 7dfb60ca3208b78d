"""OffsetForLeaderEpoch, DescribeLogDirs, DescribeTopicPartitions, Metadata and special times."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from tests.support.kafka_requests import Wire, create_topic, produce, topic_id_of
from tests.support.server import RunningBroker

from strandlog.record.builder import build_batch

UNKNOWN_TOPIC, INVALID_REQUEST, FENCED_EPOCH, UNKNOWN_EPOCH, UNKNOWN_TOPIC_ID = 3, 42, 74, 75, 100
OFFSET_OUT_OF_RANGE, INVALID_TOPIC, UNSUPPORTED_VERSION, POLICY_VIOLATION = 1, 17, 35, 44


def _fill(wire: Wire, topic: str, count: int = 5) -> int:
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch(now_ms, [b"x" * 100] * count))
    assert produce(wire, topic, batch).error_code == 0
    return now_ms


# -- leader epochs -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_only_epoch_ends_at_the_end_of_the_log(wire: Wire, version: int) -> None:
    topic = f"epochs-{version}"
    create_topic(wire, topic)
    _fill(wire, topic)

    def ask(epoch: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        [found] = wire.ask(23, version, topics=[{"topic": topic, "partitions": [part]}]).topics
        [row] = found.partitions
        return int(row.error_code), row.leader_epoch, row.end_offset

    assert ask(0) == ask(0, current=0) == (0, 0, 5)
    assert ask(-1) == ask(1) == ask(9) == (0, -1, -1)
    assert ask(-2) == (0, -2, 0)
    assert ask(0, current=1) == (UNKNOWN_EPOCH, -1, -1)
    assert ask(0, current=-2) == (FENCED_EPOCH, -1, -1)
    assert ask(0, partition=1) == (UNKNOWN_TOPIC, -1, -1)


def test_fetch_and_list_offsets_check_the_leader_epoch(wire: Wire) -> None:
    create_topic(wire, "led")
    part = {"partition_index": 0, "timestamp": -1}
    for epoch, code in ((-1, 0), (0, 0), (4, UNKNOWN_EPOCH), (-3, FENCED_EPOCH)):
        row = {**part, "current_leader_epoch": epoch}
        [topic] = wire.ask(2, 7, topics=[{"name": "led", "partitions": [row]}]).topics
        assert topic.partitions[0].error_code == code
        wanted = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": epoch}
        wanted |= {"partition_max_bytes": 100}
        answer = wire.ask(1, 12, topics=[{"topic": "led", "partitions": [wanted]}])
        assert answer.responses[0].partitions[0].error_code == code


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_log_dirs_have_sizes_and_free_space(
    wire: Wire, shared_broker: RunningBroker, version: int
) -> None:
    topic = f"sizes-{version}"
    create_topic(wire, topic, 2)
    _fill(wire, topic)
    [result] = wire.ask(35, version, topics=None).results
    assert (result.error_code, result.log_dir) == (0, str(shared_broker.data))
    sizes = {found.name: found.partitions for found in result.topics}
    assert topic in sizes
    full, empty = sorted(sizes[topic], key=lambda row: row.partition_index)
    assert full.partition_size > 500
    assert empty.partition_size == 0
    assert not full.is_future_key
    if version >= 4:
        assert result.total_bytes > result.usable_bytes > 0
    wanted = [{"topic": topic, "partitions": [1, 7]}, {"topic": "no-such", "partitions": [0]}]
    [result] = wire.ask(35, version, topics=wanted).results
    assert [found.name for found in result.topics] == [topic]
    assert [row.partition_index for row in result.topics[0].partitions] == [1]


# -- page by page --------------------------------------------------------------------------------


def _pages(wire: Wire, names: list[str], limit: int) -> list[tuple[str, int]]:
    cursor: dict[str, Any] | None = None
    seen: list[tuple[str, int]] = []
    while True:
        answer = wire.ask(
            75,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        assert 0 < len(found) <= limit
        seen += found
        if answer.next_cursor is None:
            return seen
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 2000])
def test_partitions_come_page_by_page_each_once_in_order(wire: Wire, limit: int) -> None:
    names = [f"page-{limit}-{letter}" for letter in "cab"]
    for name in names:
        create_topic(wire, name, 3)
    expected = [(name, number) for name in sorted(names) for number in range(3)]
    assert _pages(wire, names, limit) == expected


def test_all_topics_are_described_when_none_is_named(wire: Wire) -> None:
    topic_id = create_topic(wire, "everything", 2)
    answer = wire.ask(75, 0, topics=[], response_partition_limit=2000, cursor=None)
    found = {topic.name: topic for topic in answer.topics}
    assert list(found) == sorted(found)
    topic = found["everything"]
    assert (topic.error_code, topic.topic_id, len(topic.partitions)) == (0, topic_id, 2)
    row = topic.partitions[1]
    assert (row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes) == (0, 0, (0,), (0,))
    assert (row.eligible_leader_replicas, row.last_known_elr) == ((), ())


def test_a_missing_topic_and_an_invalid_cursor_are_errors(wire: Wire) -> None:
    create_topic(wire, "here")
    names = [{"name": "here"}, {"name": "gone"}]
    answer = wire.ask(75, 0, topics=names, cursor=None)
    assert {t.name: int(t.error_code) for t in answer.topics} == {"here": 0, "gone": UNKNOWN_TOPIC}
    wrong = {"topic_name": "here", "partition_index": -1}
    answer = wire.ask(75, 0, topics=names, cursor=wrong)
    assert [int(topic.error_code) for topic in answer.topics] == [INVALID_REQUEST]
    beyond = {"topic_name": "here", "partition_index": 99}
    answer = wire.ask(75, 0, topics=names, cursor=beyond)
    assert [(topic.name, topic.partitions) for topic in answer.topics] == [("here", ())]


# -- metadata ------------------------------------------------------------------------------------


def test_metadata_answers_each_topic_for_itself(wire: Wire) -> None:
    known = create_topic(wire, "known", 2)
    stranger = uuid4()
    wanted: list[dict[str, Any]] = [
        {"topic_id": None, "name": "known"},
        {"topic_id": known, "name": None},
        {"topic_id": stranger, "name": None},
        {"topic_id": None, "name": "bad name"},
        {"topic_id": None, "name": ""},
        {"topic_id": None, "name": None},
        {"topic_id": None, "name": "made-by-asking"},
    ]
    topics = wire.ask(3, 12, topics=wanted, allow_auto_topic_creation=True).topics
    codes = [int(topic.error_code) for topic in topics]
    assert codes == [0, 0, UNKNOWN_TOPIC_ID, INVALID_TOPIC, INVALID_TOPIC, INVALID_REQUEST, 0]
    assert (topics[1].name, topics[2].name, topics[2].topic_id) == ("known", None, stranger)
    assert topics[6].topic_id is not None


def test_a_topic_requested_many_times_is_returned_once(wire: Wire) -> None:
    create_topic(wire, "echo", 4)
    wanted = [{"topic_id": None, "name": "echo"}] * 5_000
    assert len(wire.ask(3, 12, topics=wanted).topics) == 1
    resources = [{"resource_type": 2, "resource_name": "echo", "configuration_keys": None}]
    assert len(wire.ask(32, 4, resources=resources * 5_000).results) == 1


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_before_version_12_requires_topic_names(wire: Wire, version: int) -> None:
    wanted = [{"topic_id": uuid4(), "name": None}, {"topic_id": None, "name": "fine"}]
    topics = wire.ask(3, version, topics=wanted, allow_auto_topic_creation=True).topics
    assert [int(topic.error_code) for topic in topics] == [INVALID_REQUEST, 0]


def test_authorized_operations_are_returned_on_request(wire: Wire) -> None:
    create_topic(wire, "may")
    wanted = [{"topic_id": None, "name": "may"}]
    asked = wire.ask(3, 12, topics=wanted, include_topic_authorized_operations=True)
    assert asked.topics[0].topic_authorized_operations == 3576
    plain = wire.ask(3, 12, topics=wanted)
    assert plain.topics[0].topic_authorized_operations == -(2**31)


def test_metadata_of_a_large_topic_is_quick(wire: Wire) -> None:
    create_topic(wire, "large", 300)
    wanted = [{"topic_id": None, "name": "large"}]
    times = []
    for _ in range(5):
        started = time.perf_counter()
        answer = wire.ask(3, 12, topics=wanted)
        times.append(time.perf_counter() - started)
        numbers = [row.partition_index for row in answer.topics[0].partitions]
        assert numbers == list(range(300))
    assert min(times) < 0.1


# -- cluster -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_one_node(wire: Wire, shared_broker: RunningBroker, version: int) -> None:
    found = wire.ask(60, version, include_cluster_authorized_operations=True)
    [node] = found.brokers
    assert (found.error_code, found.controller_id) == (0, 0)
    assert (node.broker_id, node.host, node.port) == (0, "127.0.0.1", shared_broker.port)
    assert found.cluster_id == wire.ask(3, 12, topics=[]).cluster_id
    assert found.cluster_authorized_operations == 8096


@pytest.mark.parametrize(("kind", "code"), [(2, 114), (3, 115)])
def test_a_broker_is_not_a_controller_endpoint(wire: Wire, kind: int, code: int) -> None:
    found = wire.ask(60, 1, endpoint_type=kind)
    assert (found.error_code, found.brokers) == (code, ())


def test_an_invalid_client_software_name_is_an_error_on_an_open_connection(wire: Wire) -> None:
    strange = wire.ask(18, 4, client_software_name="a b", client_software_version="1")
    assert (strange.error_code, strange.api_keys) == (INVALID_REQUEST, ())
    usual = wire.ask(18, 4, client_software_name="librdkafka", client_software_version="2.15.0-rc1")
    assert usual.error_code == 0
    assert not usual.finalized_features, "transaction.version is not offered"


# -- special times -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_special_timestamps_need_their_version(wire: Wire, version: int) -> None:
    topic = f"times-{version}"
    create_topic(wire, topic)
    now_ms = _fill(wire, topic, 3)
    known = {-1: (1, -1, 3), -2: (1, -1, 0), -3: (7, now_ms, 0), -4: (8, -1, 0)}
    known |= {-5: (9, -1, -1), -6: (11, -1, -1), -7: (99, -1, -1)}
    for wanted, (first, timestamp, offset) in known.items():
        part = {"partition_index": 0, "timestamp": wanted}
        [found] = wire.ask(2, version, topics=[{"name": topic, "partitions": [part]}]).topics
        [row] = found.partitions
        if version < first:
            assert (row.error_code, row.offset) == (UNSUPPORTED_VERSION, -1)
        else:
            assert (row.error_code, row.timestamp, row.offset) == (0, timestamp, offset)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_up_to_an_existing_offset(wire: Wire, version: int) -> None:
    topic = f"shrinking-{version}"
    create_topic(wire, topic)
    create_topic(wire, f"compacted-{version}", cleanup_policy="compact")
    _fill(wire, topic, 10)

    def delete(offset: int, name: str = topic) -> tuple[int, int]:
        part = {"partition_index": 0, "offset": offset}
        [found] = wire.ask(21, version, topics=[{"name": name, "partitions": [part]}]).topics
        return int(found.partitions[0].error_code), found.partitions[0].low_watermark

    assert delete(4) == (0, 4)
    assert delete(2) == (0, 4), "what is gone stays gone"
    assert delete(11) == delete(-2) == (OFFSET_OUT_OF_RANGE, -1)
    assert delete(0, "no-such") == (UNKNOWN_TOPIC, -1)
    assert delete(0, f"compacted-{version}") == (POLICY_VIOLATION, -1)
    assert delete(-1) == (0, 10)


def test_topic_ids_are_those_returned_at_creation(wire: Wire) -> None:
    assert create_topic(wire, "identified") == topic_id_of(wire, "identified")
