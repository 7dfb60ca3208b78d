"""Limits on the work that one request about groups can cause."""

from __future__ import annotations

import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire, create_topic, request_header
from tests.support.server import RunningBroker

from strandlog.server import turns as turns_module
from strandlog.server.kafka.handlers import group_offsets
from strandlog.server.turns import Turns
from strandlog.testing.server import ServerThread

JOIN_GROUP, SYNC_GROUP, LEAVE_GROUP, DESCRIBE_GROUPS = 11, 14, 13, 15
OFFSET_FETCH, OFFSET_COMMIT, DELETE_GROUPS = 9, 8, 42
MAX_ITEMS = 20_000


def _join(wire: Wire, group: str) -> str:
    protocol = {"name": "range", "metadata": b"m" * 100}
    joined = wire.ask(
        JOIN_GROUP,
        2,
        group_id=group,
        session_timeout=30_000,
        rebalance_timeout=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    assert joined.error_code == 0
    share = [{"member_id": joined.member_id, "assignment": b"a" * 100}]
    synced = wire.ask(
        SYNC_GROUP,
        1,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=share,
    )
    assert synced.error_code == 0
    return str(joined.member_id)


def test_a_group_repeated_3000_times_is_described_once(wire: Wire) -> None:
    """It took 14 s and 2.6 GB, and the length of the reply was negative."""
    _join(wire, "crowd")
    found = wire.ask(DESCRIBE_GROUPS, 0, groups=["crowd"] * 3000 + ["other"]).groups
    assert [(each.group_id, len(each.members)) for each in found] == [("crowd", 1), ("other", 0)]


@pytest.mark.parametrize("version", [7, 8, 10])
@pytest.mark.parametrize("is_listing", [True, False])
def test_an_offset_fetch_of_many_offsets_does_not_build_all_rows_in_one_slice(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, version: int, is_listing: bool
) -> None:
    count, topic = 30, f"rows-{version}-{is_listing}"
    topic_id = create_topic(wire, topic, count)
    rows = [
        {"partition_index": number, "committed_offset": number, "committed_metadata": ""}
        for number in range(count)
    ]
    topics = [{"name": topic, "partitions": rows}]
    wire.ask(OFFSET_COMMIT, 2, group_id=topic, generation_id_or_member_epoch=-1, topics=topics)
    built = [0]  # in each slice
    build_row, slices = group_offsets._offset_row, Turns.slices

    def counted(number: int, value: Any) -> dict[str, Any]:
        built[-1] += 1
        return build_row(number, value)

    def sliced(turns: Turns, steps: Generator[object, None, None]) -> bool:
        built.append(0)
        return slices(turns, steps)

    monkeypatch.setattr(turns_module, "SLICE_SECONDS", -1)  # pause wherever a handler may pause
    monkeypatch.setattr(group_offsets, "_offset_row", counted)
    monkeypatch.setattr(Turns, "slices", sliced)
    one = {"topic_id": topic_id} if version >= group_offsets.TOPIC_IDS_FROM else {"name": topic}
    wanted = None if is_listing else [{**one, "partition_indexes": range(count)}]
    if version >= group_offsets.MANY_GROUPS_FROM:
        [found] = wire.ask(
            OFFSET_FETCH, version, groups=[{"group_id": topic, "topics": wanted}]
        ).groups
    else:
        found = wire.ask(OFFSET_FETCH, version, group_id=topic, topics=wanted)
    [offsets] = found.topics
    assert [each.committed_offset for each in offsets.partitions] == list(range(count))
    assert sum(built) == count
    assert max(built) <= 2


def test_the_offsets_of_a_group_listed_1000_times_are_returned_once(wire: Wire) -> None:
    create_topic(wire, "offsets")
    row = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    topics = [{"name": "offsets", "partitions": [row]}]
    wire.ask(OFFSET_COMMIT, 2, group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    found = wire.ask(OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}] * 1000).groups
    assert [(each.group_id, len(each.topics)) for each in found] == [("g", 1)]


def test_a_member_listed_twice_leaves_once(wire: Wire) -> None:
    member_id = _join(wire, "leavers")
    one = {"member_id": member_id, "group_instance_id": None}
    found = wire.ask(LEAVE_GROUP, 3, group_id="leavers", members=[one, one]).members
    assert [each.error_code for each in found] == [0]


@pytest.mark.parametrize(
    ("api_key", "version", "head", "item"),
    [
        (LEAVE_GROUP, 3, b"\0\1g", b"\0\0\xff\xff"),
        (DESCRIBE_GROUPS, 0, b"", b"\0\1g"),
        (DELETE_GROUPS, 0, b"", b"\0\1g"),
        (OFFSET_FETCH, 1, b"\0\1g" + struct.pack(">i", 1) + b"\0\1t", struct.pack(">i", 0)),
        (
            OFFSET_COMMIT,
            2,
            b"\0\1g" + struct.pack(">ihqi", -1, 0, -1, 1) + b"\0\1t",
            struct.pack(">iqh", 0, 0, 0),
        ),
    ],
)
def test_a_request_with_too_many_items_is_not_handled(
    shared_broker: RunningBroker, api_key: int, version: int, head: bytes, item: bytes
) -> None:
    with Wire(shared_broker.port) as wire:
        too_many = head + struct.pack(">i", MAX_ITEMS + 1) + item * (MAX_ITEMS + 1)
        wire.send(request_header(api_key, version, 1) + too_many)
        with pytest.raises(ConnectionError):
            wire.receive()


def test_many_groups_are_deleted_in_one_request(wire: Wire) -> None:
    names = [f"gone-{number}" for number in range(5000)]
    found = wire.ask(DELETE_GROUPS, 0, groups_names=names).results
    assert [each.group_id for each in found] == names


def test_members_over_the_limit_get_group_max_size_reached(tmp_path: Path) -> None:
    broker = ServerThread(
        tmp_path / "data", {"group.max.size": "1", "group.initial.rebalance.delay.ms": "0"}
    )
    broker.start()
    try:
        with Wire(broker.port) as wire:
            _join(wire, "small")
            refused = wire.ask(
                JOIN_GROUP,
                2,
                group_id="small",
                session_timeout=30_000,
                rebalance_timeout=30_000,
                member_id="",
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b""}],
            )
            assert refused.error_code == 81
    finally:
        broker.stop()
