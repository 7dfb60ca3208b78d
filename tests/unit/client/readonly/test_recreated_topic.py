"""A reader of a topic that the owner deletes and creates again under the same name.

The disk is simulated, so the owner does this between any two file operations of the reader. The
records of both topics have the same size, and so have the files.
"""

from __future__ import annotations

import contextlib
from itertools import count
from typing import cast

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain
from tests.support.interrupted_reader import Interrupting

from strandlog import Consumer, TopicPartition
from strandlog.client.readonly.log import ReadOnlyLog
from strandlog.errors import StorageError, TopicNotFoundError, UnknownTopicIdError
from strandlog.storage.files import Files
from strandlog.testing import SimulatedFiles

RECORDS = 30
PAUSE = 12  # operations until the topic exists again: long enough to notice that it is gone
OLD = [b"old %02d" % number for number in range(RECORDS)]
NEW = [b"new %02d" % number for number in range(RECORDS)]
SETTINGS: dict[str, object] = {"segment.bytes": 1024}
ONE_SEGMENT: dict[str, object] = {}
TP = TopicPartition("t", 0)


def create(embedded: EmbeddedHarness, values: list[bytes], config: dict[str, object]) -> None:
    embedded.log.create_topic("t", 1, config)
    embedded.send("t", *values)
    embedded.log.flush()


def recreate(embedded: EmbeddedHarness, values: list[bytes], config: dict[str, object]) -> None:
    embedded.log.delete_topic("t")
    create(embedded, values, config)


def values_of(consumer: Consumer) -> list[bytes | None]:
    return [record.value for record in drain(consumer, 7)]


@pytest.mark.parametrize("config", [SETTINGS, ONE_SEGMENT], ids=["segments", "one segment"])
@pytest.mark.parametrize("new_count", [0, 3, RECORDS, RECORDS + 5])
@pytest.mark.parametrize("read_count", [7, RECORDS])
def test_a_reader_goes_on_at_its_old_offset_in_a_recreated_topic(
    embedded: EmbeddedHarness, config: dict[str, object], new_count: int, read_count: int
) -> None:
    create(embedded, OLD, config)
    new = [b"new %02d" % number for number in range(new_count)]
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        consumer = reader.consumer(["t"])
        other = reader.consumer(["t"])
        assert [record.value for record in consumer.poll(read_count)] == OLD[:read_count]
        recreate(embedded, new, config)
        # What was read ahead are records of the old topic.
        ahead: list[bytes | None] = []
        with pytest.raises(UnknownTopicIdError, match="'t' was deleted and recreated; seek to"):
            while records := consumer.poll(1):
                ahead += [record.value for record in records]
        assert ahead == OLD[read_count : read_count + len(ahead)]
        with pytest.raises(UnknownTopicIdError):
            consumer.poll()  # again, until the program seeks
        assert values_of(reader.consumer(["t"])) == new
        with pytest.raises(UnknownTopicIdError):
            other.poll()
        consumer.seek("t", 0, 0)
        assert values_of(consumer) == new
        embedded.send("t", b"later")
        assert values_of(consumer) == [b"later"]


@pytest.mark.parametrize("seek", ["seek_all", "seek_to_time"])
def test_a_reader_cannot_seek_in_a_recreated_topic(embedded: EmbeddedHarness, seek: str) -> None:
    create(embedded, OLD, SETTINGS)
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        consumer = reader.consumer(["t"])
        assert consumer.poll(3)
        recreate(embedded, NEW, SETTINGS)
        getattr(consumer, seek)(0)
        assert values_of(consumer) == NEW


def test_a_read_only_log_uses_the_start_offset_of_a_deleted_topic(
    embedded: EmbeddedHarness,
) -> None:
    create(embedded, OLD, ONE_SEGMENT)
    embedded.log.delete_records("t", 0, 20)
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        assert reader.source.offset_range(TP) == (20, RECORDS)
        recreate(embedded, NEW, ONE_SEGMENT)
        embedded.log.delete_records("t", 0, 5)
        assert reader.source.offset_range(TP) == (5, RECORDS)


def test_an_open_read_only_log_shows_deleted_records(embedded: EmbeddedHarness) -> None:
    create(embedded, OLD, ONE_SEGMENT)
    with ReadOnlyLog("data", files=embedded.disk) as reader:
        assert reader.describe_topic("t").partitions[0].start_offset == 0
        embedded.log.delete_records("t", 0, 20)
        assert values_of(reader.consumer(["t"])) == OLD[20:]
        embedded.log.delete_records("t", 0, 25)
        assert reader.describe_topic("t").partitions[0].start_offset == 25


@pytest.mark.slow
def test_a_reader_mixes_the_records_of_a_topic_recreated_during_a_read() -> None:
    """The owner deletes the topic at once, and creates it again some operations later."""
    outcomes = set()
    for pause in (0, 1, PAUSE):
        for moment in count(1):
            outcome, was_reached = read_beside_owner(moment, pause)
            outcomes.add(outcome)
            if not was_reached:
                break
        assert moment > 20
    assert outcomes == {"only old", "only new", "old, then new", "recreated", "no consumer"}


def read_beside_owner(moment: int, pause: int) -> tuple[str, bool]:
    """Recreate the topic before some operation of a reader. Return what the reader found, and
    whether there was such an operation."""
    embedded = EmbeddedHarness()
    create(embedded, OLD, SETTINGS)

    def make_new() -> None:
        create(embedded, NEW, SETTINGS)

    def remove_old() -> None:
        embedded.log.delete_topic("t")
        if not pause:
            make_new()

    files = Interrupting(embedded.disk, moment, remove_old)
    if pause:
        files = Interrupting(cast(SimulatedFiles, files), moment + pause, make_new)
    found: list[bytes | None] = []
    outcome = ""
    with ReadOnlyLog("data", files=cast(Files, files)) as reader:
        try:
            consumer = reader.consumer(["t"])
            empty = 0
            while empty <= PAUSE:
                with contextlib.suppress(StorageError):  # the files changed; the next poll works
                    records = consumer.poll(7)
                    found += [record.value for record in records]
                    empty = 0 if records else empty + 1
        except UnknownTopicIdError:
            outcome = "recreated"
        except (TopicNotFoundError, StorageError):
            assert not found
            outcome = "no consumer"
    old = [value for value in found if value in OLD]
    new = found[len(old) :]
    assert found == OLD[: len(old)] + new, (moment, pause, found)
    assert new in ([], NEW), (moment, pause, found)
    was_reached = files.operations >= moment
    if outcome:
        assert not new, (moment, pause, found)
        return outcome, was_reached
    if old and new:
        return "old, then new", was_reached
    assert new or old == OLD, (moment, pause, found)
    return "only new" if new else "only old", was_reached


class NotedReads(SimulatedFiles):
    """Notes which files are read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    def read(self, path: str) -> bytes:
        self.paths.append(path)
        return super().read(path)


def test_a_reader_reads_the_topic_id_for_each_record(embedded: EmbeddedHarness) -> None:
    disk = NotedReads()
    log = embedded.use(disk)
    log.create_topic("t", 1)
    embedded.send("t", *OLD * 20)
    log.flush()
    disk.paths.clear()
    with ReadOnlyLog("data", files=disk) as reader:
        assert len(list(reader.consumer(["t"]))) == 20 * RECORDS
    assert sum(path.endswith("partition.metadata") for path in disk.paths) < 12
