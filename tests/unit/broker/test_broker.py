"""The broker: checks before appends, and committed offsets of groups."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import (
    AlreadyOpenError,
    CorruptStateError,
    DiskFullError,
    InvalidTopicError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    PartialAppendError,
    StorageError,
    TooManyProducersError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition
from strandlog.protocol.group_records import GroupKey, encode_key
from strandlog.protocol.transaction_records import encode_key as encode_transaction_key
from strandlog.record.builder import build_batch, build_single
from strandlog.record.codecs import Codec
from strandlog.storage.partition.log import PartitionLog
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()

MIB = 1024 * 1024
OFFSETS_LOG = f"__consumer_offsets-0/{0:020d}.log"


def open_broker(disk: SimulatedFiles, **settings: object) -> Broker:
    ids = itertools.count(1)
    overrides = BROKER_SETTINGS.parse({k.replace("_", "."): v for k, v in settings.items()})
    return Broker(
        "data", disk, FakeClock(), lambda: UUID(int=next(ids)), broker_settings(overrides)
    )


def commit(broker: Broker, topic: str, offset: int, group: str = "g") -> None:
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset)}
    broker._group_coordinator.commit_offsets(CommitRequest(group_id=group, offsets=offsets))


def committed(broker: Broker, group: str = "g") -> dict[TopicPartition, int]:
    found = broker._group_coordinator.fetch_offsets(group)
    return {tp: value.offset for tp, value in found.items() if value}


def batch(value: bytes = b"v", **parts: object) -> bytearray:
    return build_single(1_700_000_000_000, value, **parts)  # type: ignore[arg-type]


def test_a_program_without_groups_has_no_folder_for_them() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    assert broker._group_coordinator.fetch_offsets("g") == {}
    broker.close()
    assert not [path for path in disk.contents() if "__consumer_offsets" in path]


def test_offsets_are_stored_in_a_compacted_topic_and_survive_a_kill() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk, offsets_topic_num_partitions=3)
    broker.create_topic(CONTEXT, "t").result()
    for number in range(10):
        commit(broker, "t", number, group=f"g{number}")
    assert broker._catalog.topic("__consumer_offsets").partitions == 3
    assert broker._catalog.topic("__consumer_offsets").settings.compacts
    used = [log.log_end_offset > 0 for log in broker._catalog.logs("__consumer_offsets")]
    assert sum(used) > 1
    again = open_broker(disk.after_kill())
    for number in range(10):
        assert committed(again, f"g{number}") == {TopicPartition("t", 0): number}


def test_one_undecodable_group_record_does_not_hide_the_others() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    commit(broker, "t", 5)
    log = broker._catalog.log("__consumer_offsets", 0)
    log.append(batch(b"no value of ours", key=b"\x00\x09strange"))
    log.flush()
    assert committed(open_broker(disk.after_kill())) == {TopicPartition("t", 0): 5}


class CountedLogs(dict[TopicPartition, PartitionLog]):
    """Partitions that count how often all of them are visited."""

    visits = 0

    def values(self) -> Any:
        self.visits += 1
        return super().values()


def test_listing_problems_visits_every_partition() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t", partitions=3).result()
    logs = broker._log_dir.logs = CountedLogs(broker._log_dir.logs)
    assert broker.problems == []
    log = broker._catalog.log("t", 2)
    log.report("a batch is damaged")
    log.report("a batch is damaged")
    assert broker.problems == ["t-2: a batch is damaged"]
    assert broker.refresh_metrics().problems == 1
    assert logs.visits == 0
    broker.delete_topic(CONTEXT, "t").result()
    assert broker.problems == []
    broker.close()


def test_records_of_the_coordinators_that_cannot_be_used_are_skipped_silently() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    newer = b"\x00\x63 of a newer release"
    broker._offsets_table.append([(encode_key(GroupKey("g")), newer)], 0)
    broker._transactions_table.append([(encode_transaction_key("x"), newer)], 0)
    broker.close()
    again = open_broker(disk)
    for topic in ("__consumer_offsets", "__transaction_state"):
        assert any(f"{topic} has records that cannot" in each for each in again.problems)
    again.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_flipped_bit_in_the_table_of_offsets_does_not_keep_the_log_from_opening(
    is_clean: bool,
) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    for number in range(10):
        commit(broker, "t", number, group=f"g{number % 3}")
    if is_clean:
        broker.close()
    path = f"data/__consumer_offsets-0/{0:020d}.log"
    size = len(disk.contents()[path])
    for bit in range(0, 8 * size, 8 * size // 40):
        damaged = disk.after_kill()
        damaged.flip_bit(path, bit)
        again = open_broker(damaged)
        kept = [committed(again, f"g{number}") for number in (0, 1, 2)]
        found = [offsets.get(TopicPartition("t", 0), 0) for offsets in kept]
        lost = sum(a - b for a, b in zip((9, 7, 8), found, strict=True))
        assert lost in (0, 3), "at most one commit, and nothing after it"
        assert not lost or any(
            "records of __consumer_offsets were lost" in p for p in again.problems
        )
        commit(again, "t", 42)
        assert committed(again) == {TopicPartition("t", 0): 42}


def test_groups_lose_their_offsets_of_a_deleted_topic() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    broker.create_topic(CONTEXT, "stays").result()
    commit(broker, "t", 5)
    commit(broker, "stays", 3)
    broker.delete_topic(CONTEXT, "t").result()
    assert committed(broker) == {TopicPartition("stays", 0): 3}
    assert committed(open_broker(disk.after_kill())) == {TopicPartition("stays", 0): 3}


def test_a_topic_recreated_after_a_crash_does_not_inherit_old_offsets() -> None:
    whole = SimulatedFiles()
    broker = open_broker(whole)
    broker.create_topic(CONTEXT, "t").result()
    commit(broker, "t", 5)
    first = len(whole.trace) + 1
    broker.delete_topic(CONTEXT, "t").result()
    for step in range(first, len(whole.trace) + 1):
        disk = SimulatedFiles()
        broker = open_broker(disk)
        broker.create_topic(CONTEXT, "t").result()
        commit(broker, "t", 5)
        disk.stop_at(step)
        with pytest.raises(BaseException, match="power"):
            broker.delete_topic(CONTEXT, "t").result()
        again = open_broker(disk.after_kill())
        if "t" in again._catalog:
            assert committed(again) == {TopicPartition("t", 0): 5}
        else:
            again.create_topic(CONTEXT, "t").result()
            assert committed(again) == {}


def test_offsets_that_could_not_be_deleted_are_deleted_when_the_topic_is_recreated() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    commit(broker, "t", 5)
    disk.fail_on("append", "__consumer_offsets", count=2)
    broker.delete_topic(CONTEXT, "t").result()
    with pytest.raises(StorageError):
        broker.create_topic(CONTEXT, "t").result()
    assert "t" not in broker._catalog
    broker.create_topic(CONTEXT, "t").result()
    assert committed(broker) == {}


def test_appends_are_rejected_below_log_min_free_bytes_and_deletion_still_works() -> None:
    disk = SimulatedFiles(capacity_bytes=10 * MIB)
    broker = open_broker(disk, log_min_free_bytes=2 * MIB)
    broker.create_topic(CONTEXT, "t", 1, {"max.message.bytes": 20 * MIB}).result()
    log = broker._catalog.log("t", 0)
    written = 0
    with pytest.raises(DiskFullError, match=r"rejected below 2097152 \(log.min.free.bytes\); free"):
        for _ in range(100):
            broker._appender.append(log, batch(bytes(MIB // 4)))
            written += 1
    assert 28 <= written <= 33
    with pytest.raises(DiskFullError):
        broker._appender.append(log, batch())
    commit(broker, "t", 1)
    broker.delete_topic(CONTEXT, "t").result()
    broker.clock.advance(60_001)  # type: ignore[attr-defined]
    broker.tick()  # removes the files
    broker.create_topic(CONTEXT, "t").result()
    broker._appender.append(broker._catalog.log("t", 0), batch())
    broker.close()


def test_the_reserve_may_be_turned_off() -> None:
    disk = SimulatedFiles(capacity_bytes=MIB)
    broker = open_broker(disk, log_min_free_bytes=0)
    broker.create_topic(CONTEXT, "t").result()
    log = broker._catalog.log("t", 0)
    with pytest.raises(DiskFullError, match="No space left on device; free some space"):
        for _ in range(100):
            broker._appender.append(log, batch(bytes(MIB // 16)))
    end = log.log_end_offset
    assert end >= 15
    disk.capacity_bytes = 2 * MIB
    assert broker._appender.append(log, batch()).base_offset == end


def test_an_append_to_several_partitions_is_all_or_nothing() -> None:
    broker = open_broker(SimulatedFiles())
    broker.create_topic(CONTEXT, "t", 3, {"max.message.bytes": 1_000}).result()
    logs = broker._catalog.logs("t")
    results = broker._appender.append_all([(log, batch()) for log in logs])
    assert [result.base_offset for result in results] == [0, 0, 0]
    with pytest.raises(MessageTooLargeError):
        broker._appender.append_all([(logs[0], batch()), (logs[1], batch(bytes(2_000)))])
    plan = logs[2].flush_plan()
    assert plan is not None
    logs[2].flush_failed(plan, StorageError("the disk is gone"))
    with pytest.raises(StorageError, match="t-2 rejects records: the disk is gone"):
        broker._appender.append_all([(logs[0], batch()), (logs[2], batch())])
    assert [log.log_end_offset for log in logs] == [1, 1, 1]


def test_altering_a_topic_brings_its_flushes_forward() -> None:
    broker = open_broker(SimulatedFiles())
    broker.create_topic(CONTEXT, "t", 1, {"flush.ms": 3_600_000}).result()
    log = broker._catalog.log("t", 0)
    broker._appender.append(log, batch())
    broker.alter_topic(CONTEXT, "t", {"flush.ms": 50}).result()
    broker.clock.advance(50)  # type: ignore[attr-defined]
    broker.tick()
    assert log.flushed_offset == log.log_end_offset == 1


def test_a_disk_that_fills_up_between_two_partitions_does_not_ask_for_a_retry() -> None:
    """It raised the retriable DiskFullError, although some partitions had been written."""
    disk = SimulatedFiles(capacity_bytes=MIB)
    broker = open_broker(disk, log_min_free_bytes=0)
    broker.create_topic(CONTEXT, "t", 2).result()
    first, second = broker._catalog.logs("t")
    free = disk.free_bytes("data")
    parts = [(first, batch(bytes(free // 2))), (second, batch(bytes(free // 2)))]
    with pytest.raises(PartialAppendError, match="already appended: t-0") as caught:
        broker._appender.append_all(parts)
    assert not caught.value.retriable
    assert caught.value.records_kept == 1
    assert (first.log_end_offset, second.log_end_offset) == (1, 0)
    with pytest.raises(DiskFullError):
        broker._appender.append_all([(second, batch(bytes(free))), (first, batch())])
    assert (first.log_end_offset, second.log_end_offset) == (1, 0)


def producer_batch(producer_id: int, sequence: int) -> bytearray:
    parts = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return build_batch(1_700_000_000_000, [b"v"], None, **parts)  # type: ignore[arg-type]


def test_a_wrong_sequence_in_the_second_partition_leaves_the_first_unwritten() -> None:
    broker = open_broker(SimulatedFiles())
    broker.create_topic(CONTEXT, "t", 2).result()
    first, second = broker._catalog.logs("t")
    broker._appender.append(second, producer_batch(7, 0))
    with pytest.raises(OutOfOrderSequenceError):
        broker._appender.append_all([(first, batch()), (second, producer_batch(7, 9))])
    assert (first.log_end_offset, second.log_end_offset) == (0, 1)


def test_an_error_that_only_an_append_can_find_names_the_partitions_already_written() -> None:
    """Each producer is below the limit until the other one is appended."""
    broker = open_broker(SimulatedFiles(), producer_ids_max_count=1)
    broker.create_topic(CONTEXT, "t", 2).result()
    first, second = broker._catalog.logs("t")
    parts = [(first, producer_batch(1, 0)), (second, producer_batch(2, 0))]
    with pytest.raises(PartialAppendError, match="already appended: t-0") as caught:
        broker._appender.append_all(parts)
    assert isinstance(caught.value.__cause__, TooManyProducersError)
    assert caught.value.records_kept == 1
    assert (first.log_end_offset, second.log_end_offset) == (1, 0)


def test_compressed_batches_for_a_compacted_topic_need_keys() -> None:
    broker = open_broker(SimulatedFiles())
    broker.create_topic(CONTEXT, "t", 1, {"cleanup.policy": "compact"}).result()
    log = broker._catalog.log("t", 0)
    broker._appender.append(log, batch(key=b"k", codec=Codec.ZSTD))
    with pytest.raises(Exception, match="t-0 is compacted: every record needs a key"):
        broker._appender.append(log, batch(codec=Codec.ZSTD))
    assert log.log_end_offset == 1


def test_internal_topics_cannot_be_created_or_deleted() -> None:
    broker = open_broker(SimulatedFiles())
    with pytest.raises(InvalidTopicError):
        broker.create_topic(CONTEXT, "__consumer_offsets").result()
    broker.create_topic(CONTEXT, "t").result()
    commit(broker, "t", 1)
    with pytest.raises(InvalidTopicError):
        broker.delete_topic(CONTEXT, "__consumer_offsets").result()
    with pytest.raises(InvalidTopicError):
        broker.add_partitions(CONTEXT, "__consumer_offsets", 5).result()


def test_a_failed_start_releases_the_lock() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    with pytest.raises(AlreadyOpenError):
        open_broker(disk)
    broker.close()
    broker.close()
    for path in ("data/meta.properties", "data/meta.properties.previous"):
        disk.flip_bit(path, 80)
    for _ in range(2):
        with pytest.raises(CorruptStateError):
            open_broker(disk)


LONG_GROUP = "g" * 255


def commit_all(broker: Broker, topic: str, partitions: int, group: str = LONG_GROUP) -> None:
    """Commit an offset for so many partitions in one request."""
    offsets = {
        TopicPartition(topic, n): OffsetAndMetadata(n, metadata="m" * 50) for n in range(partitions)
    }
    broker._group_coordinator.commit_offsets(CommitRequest(group_id=group, offsets=offsets))


def test_a_deleted_topics_name_is_not_blocked_by_the_offsets_of_its_groups() -> None:
    """4,500 tombstones of a group with a long name are more than max.message.bytes together."""
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    commit_all(broker, "t", 4500)
    commit_all(broker, "other", 1)
    assert len(committed(broker, LONG_GROUP)) == 4501
    broker.delete_topic(CONTEXT, "t").result()
    assert len(committed(broker, LONG_GROUP)) == 1
    broker.create_topic(CONTEXT, "t").result()
    broker.close()
    again = open_broker(disk)
    assert len(committed(again, LONG_GROUP)) == 1
    assert not again.problems


def test_a_topic_is_deleted_although_its_offsets_cannot_all_be_deleted() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t").result()
    commit_all(broker, "t", 4500)
    disk.fail_on("append", OFFSETS_LOG, skip=2, count=1)
    broker.delete_topic(CONTEXT, "t").result()
    assert any("the deleted topic 't'" in problem for problem in broker.problems)
    assert "t" not in broker._catalog
    killed = open_broker(disk.after_kill())
    assert 0 < len(committed(killed, LONG_GROUP)) < 4500, "the rest is forgotten at the next chance"
    for each in (broker, killed):
        each.create_topic(CONTEXT, "t").result()
        assert not committed(each, LONG_GROUP)


def test_an_internal_record_may_be_larger_than_clients_may_send() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk, message_max_bytes=1000)
    key, value = encode_key(GroupKey("g")), bytes(3 * MIB)
    broker._offsets_table.append([(key, b"small"), (key, value), (key, value)], 0)
    broker.close()
    again = open_broker(disk, message_max_bytes=1000)
    assert list(again._offsets_table.replay()) == [(key, b"small"), (key, value), (key, value)]


DAMAGES = {
    "flipped": lambda disk, path: disk.flip_bit(path, 80),
    "emptied": lambda disk, path: disk.truncate(path, 0),
    "deleted": lambda disk, path: disk.remove(path),
}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_catalog_does_not_cost_the_groups_their_offsets(how: str, both: bool) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t", 2).result()
    broker._appender.append(broker._catalog.log("t", 1), batch(b"kept"))
    commit(broker, "t", 1)
    topic_id = broker._catalog.topic("t").topic_id
    broker.close()
    for path in ("data/topics.json", "data/topics.json.previous")[: 1 + both]:
        DAMAGES[how](disk, path)
    for _ in range(2):  # the second start finds everything whole again
        again = open_broker(disk)
        assert again._catalog.names() == ["__consumer_offsets", "t"]
        assert again._catalog.topic("__consumer_offsets").settings.compacts
        assert (again._catalog.topic("t").topic_id, again._catalog.topic("t").partitions) == (
            topic_id,
            2,
        )
        assert again._catalog.log("t", 1).log_end_offset == 1
        assert committed(again) == {TopicPartition("t", 0): 1}
        assert not [path for path in disk.contents() if "-stray" in path]
        if not _:
            assert any("topics.json" in problem for problem in again.problems)
        else:
            assert again.problems == []
        again.close()


def test_an_older_catalog_loses_no_partition_that_was_written_to() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t", 1).result()
    older = disk.contents()["data/topics.json"]
    commit(broker, "t", 1)
    broker.add_partitions(CONTEXT, "t", 3).result()
    broker._appender.append(broker._catalog.log("t", 1), batch(b"kept"))
    broker.create_topic(CONTEXT, "u", 1).result()
    broker._appender.append(broker._catalog.log("u", 0), batch(b"kept"))
    broker.create_topic(CONTEXT, "never-written", 1).result()
    broker.close()
    for path in ("data/topics.json", "data/topics.json.previous"):
        disk.replace(path, older)
    again = open_broker(disk)
    assert again._catalog.names() == ["__consumer_offsets", "t", "u"]
    assert committed(again) == {TopicPartition("t", 0): 1}
    assert [log.log_end_offset for log in again._catalog.logs("t")] == [0, 1]
    assert again._catalog.log("u", 0).log_end_offset == 1
    settings = again._catalog.topic("u").settings
    assert (settings.retention_ms, settings.retention_bytes) == (-1, -1)
    assert not settings.compacts
    assert len([p for p in again.problems if "catalog" in p]) == 3


def test_an_older_catalog_does_not_delete_a_topic_that_was_created_again() -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.create_topic(CONTEXT, "t", 1).result()
    snapshots = list[bytes]()
    disk.watch(lambda _: snapshots.append(disk.contents()["data/topics.json"]))
    broker.delete_topic(CONTEXT, "t").result()
    disk.watch(None)
    older = next(text for text in snapshots if b"deleting" in text)
    broker.create_topic(CONTEXT, "t", 1).result()
    broker._appender.append(broker._catalog.log("t", 0), batch(b"kept"))
    broker.close()
    for path in ("data/topics.json", "data/topics.json.previous"):
        disk.replace(path, older)
    assert open_broker(disk)._catalog.log("t", 0).log_end_offset == 1
