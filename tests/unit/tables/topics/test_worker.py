"""The turns of the process that syncs tables for a broker: what it reports, and when it refuses."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest
from tests.support.lake import counts
from tests.support.samples import one_in
from tests.support.waiting import eventually

import strandlog
from strandlog.broker.topics.lake_tables import WantedTable
from strandlog.tables.table import FORMATS, open_table
from strandlog.tables.topics.worker import Messages, Worker, read_sync_status, run_turns

TOPIC = "orders"


class Harness:
    """A topic, a worker, and the wish of a broker."""

    def __init__(self, folder: Path, log: strandlog.Log) -> None:
        self.log = log
        self.said: list[Mapping[str, Any]] = []
        self.worker = Worker(str(folder / "data"), self.said.append)
        topic = log.create_topic(TOPIC, partitions=2)
        self.wanted = WantedTable(
            TOPIC, topic.topic_id, str(folder / "lake" / TOPIC), "delta", "append", "raw", "day",
            60_000, "",
        )  # fmt: skip

    def produce(self, count: int) -> None:
        with self.log.producer() as producer:
            records = [{"value": b"%d" % n, "partition": n % 2} for n in range(count)]
            producer.send_batch(TOPIC, records)

    def wish(self, **changes: object) -> None:
        self.wanted = self.wanted._replace(**changes)  # type: ignore[arg-type]
        self.worker.receive({"tables": [self.wanted._asdict()]})

    def sync(self) -> Mapping[str, Any]:
        """Let the table take its turn and return the report."""
        self.worker.receive({"check": [TOPIC]})
        self.worker.turn()
        return self.said[-1]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with strandlog.open(tmp_path / "data") as log:
        yield Harness(tmp_path, log)


@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_a_turn_creates_the_table_and_reports_the_offsets_it_has(
    harness: Harness, table_format: str
) -> None:
    harness.produce(10)
    harness.wish(format=table_format)
    report = harness.sync()
    assert (report["error"], report["offsets"], report["rows"]) == ("", {0: 5, 1: 5}, 10)
    harness.wish(table_id=report["table_id"])
    harness.produce(4)
    assert harness.sync()["offsets"] == {0: 7, 1: 7}
    assert counts(open_table(harness.wanted.folder, table_format)) == (14, 14)
    status = read_sync_status(harness.wanted.folder)
    assert status is not None
    assert (status["error"], status["rows"]) == ("", 14)


def test_a_table_that_is_gone_is_not_created_again(harness: Harness) -> None:
    harness.produce(10)
    harness.wish()
    harness.wish(table_id=harness.sync()["table_id"])
    shutil.rmtree(harness.wanted.folder)
    report = harness.sync()
    assert "no longer contains the table of the topic" in report["error"]
    assert report["offsets"] == {}
    assert not Path(harness.wanted.folder).exists()
    harness.wish(table_id="")  # as the error says
    assert harness.sync()["offsets"] == {0: 5, 1: 5}


def test_a_table_is_not_created_again_before_the_broker_has_bound_it(harness: Harness) -> None:
    harness.produce(10)
    harness.wish()
    harness.sync()
    shutil.rmtree(harness.wanted.folder)
    harness.wish(interval_ms=1000)
    assert "no longer contains the table of the topic" in harness.sync()["error"]


def test_a_table_that_replaces_the_bound_one_is_refused(harness: Harness) -> None:
    harness.produce(10)
    harness.wish()
    harness.wish(table_id=harness.sync()["table_id"])
    shutil.rmtree(harness.wanted.folder)
    other = Worker(str(harness.log.path), lambda _: None)
    other.receive({"tables": [harness.wanted._replace(table_id="")._asdict()]})
    other.turn()
    report = harness.sync()
    assert "contains another table" in report["error"]
    assert report["offsets"] == {}


def test_a_missing_data_file_and_a_foreign_change_are_refused(harness: Harness) -> None:
    harness.produce(10)
    harness.wish()
    harness.wish(table_id=harness.sync()["table_id"])
    table = deltalake.DeltaTable(harness.wanted.folder)
    table.delete('"offset" = 0')
    assert "another program has changed it" in harness.sync()["error"]
    table.restore(table.version() - 1)
    assert harness.sync()["error"] == ""
    Path(open_table(harness.wanted.folder, "delta").load().data_files()[0]).unlink()
    assert "data files are missing" in harness.sync()["error"]


def test_a_table_of_an_earlier_version_gets_an_id(harness: Harness) -> None:
    harness.produce(4)
    harness.wish()
    harness.sync()
    table = open_table(harness.wanted.folder, "delta")
    table.set_properties({"strandlog.table.id": ""})
    harness.worker = Worker(str(harness.log.path), harness.said.append)
    harness.wish()
    found = harness.sync()
    assert found["error"] == ""
    assert found["table_id"] == table.load().properties["strandlog.table.id"] != ""


def test_wrong_settings_are_reported(harness: Harness) -> None:
    harness.produce(4)
    harness.wish(mode="upsert", format="parquet")
    assert "upsert needs table.format=delta or iceberg" in harness.sync()["error"]
    harness.wish(mode="append", format="delta")
    assert harness.sync()["error"] == ""
    harness.wish(format="iceberg")
    assert "contains a table in the format delta" in harness.sync()["error"]


def test_a_topic_that_is_gone_is_not_a_failure_at_first(harness: Harness) -> None:
    harness.wish(topic_id="another id")
    harness.worker.turn()
    assert harness.said == []


def test_the_other_tables_continue_after_an_error(harness: Harness) -> None:
    harness.produce(4)
    topic = harness.log.create_topic("more")
    more = harness.wanted._replace(
        topic="more", topic_id=topic.topic_id, folder=harness.wanted.folder + "-more"
    )
    broken = harness.wanted._replace(mode="upsert", format="parquet")
    harness.worker.receive({"tables": [broken._asdict(), more._asdict()]})
    harness.worker.turn()
    harness.worker.turn()
    assert {said["topic"]: bool(said["error"]) for said in harness.said} == {
        TOPIC: True,
        "more": False,
    }


def test_records_that_a_power_failure_could_undo_are_not_in_the_table(tmp_path: Path) -> None:
    config = {"flush.ms": 3_600_000}
    with strandlog.open(tmp_path / "data", {"log.durability": "page_cache"}) as log:
        harness = Harness(tmp_path, log)
        log.alter_topic(TOPIC, config)
        harness.produce(4)
        log.flush()
        harness.wish()
        with log.producer(acks=1) as producer:
            producer.send_batch(TOPIC, [{"value": b"new", "partition": n} for n in range(2)])
            with strandlog.read(tmp_path / "data") as folder:
                ends = [each.end_offset for each in folder.describe_topic(TOPIC).partitions]
            assert ends == [3, 3]
            assert harness.sync()["offsets"] == {0: 2, 1: 2}
        log.flush()
        assert harness.sync()["offsets"] == {0: 3, 1: 3}


@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_offsets_that_were_used_again_are_noticed(tmp_path: Path, table_format: str) -> None:
    data = tmp_path / "data"
    with strandlog.open(data) as log:
        harness = Harness(tmp_path, log)
        harness.produce(4)
    shutil.copytree(data, tmp_path / "copy")
    with strandlog.open(data) as log:
        harness.log = log
        harness.produce(6)
        harness.wish(format=table_format)
        harness.wish(table_id=harness.sync()["table_id"])
        assert harness.sync()["offsets"] == {0: 5, 1: 5}
        harness.worker = Worker(str(data), harness.said.append)  # as after a restart
        harness.wish()
        assert harness.sync()["error"] == ""
    shutil.rmtree(data)
    (tmp_path / "copy").rename(data)
    with strandlog.open(data) as log:
        harness.log = log
        with log.producer() as producer:
            records = [{"value": b"other", "partition": n % 2} for n in range(20)]
            producer.send_batch(TOPIC, records)
        harness.worker = Worker(str(data), harness.said.append)
        harness.wish()
        report = harness.sync()
    assert "has a different record in the topic than in the table" in report["error"]
    assert report["offsets"] == {}


def test_a_turn_that_has_just_ended_is_reported_as_hung(harness: Harness) -> None:
    harness.produce(4)
    harness.worker = Worker(str(harness.log.path), harness.said.append, turn_limit_s=0)
    harness.wish()
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    harness.worker.advance(ended.put)
    assert ended.get(timeout=60) == TOPIC
    harness.worker.advance(ended.put)  # the worker has not heard of the end yet
    assert [said["error"] for said in harness.said] == [""]


@pytest.mark.slow
def test_a_hung_table_is_reported_and_does_not_stop_the_others(harness: Harness) -> None:
    """A file of the table is a pipe that nothing writes to, so reading it blocks, as a dead disk
    does."""
    harness.produce(4)
    harness.wish(format="iceberg")
    harness.sync()
    hung: Any = open_table(harness.wanted.folder, "iceberg").load()
    metadata = Path(hung.handle.metadata_location.removeprefix("file://"))
    contents = metadata.read_bytes()
    metadata.rename(metadata.with_suffix(".kept"))
    os.mkfifo(metadata)
    topic = harness.log.create_topic("more")
    more = harness.wanted._replace(
        topic="more", topic_id=topic.topic_id, folder=harness.wanted.folder + "-more",
        format="delta", interval_ms=1,
    )  # fmt: skip
    said: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    messages: Messages = queue.SimpleQueue()
    messages.put({"tables": [harness.wanted._asdict(), more._asdict()]})
    worker = Worker(str(harness.log.path), said.put, turn_limit_s=0.1)
    threading.Thread(target=run_turns, args=(worker, messages), daemon=True).start()

    def next_report(name: str, *, has_error: bool) -> Mapping[str, Any]:
        while True:
            found = said.get(timeout=60)
            if found["topic"] == name and bool(found["error"]) == has_error:
                return found

    assert "has not ended after 0.1 s" in next_report(TOPIC, has_error=True)["error"]

    def status() -> str:
        found = read_sync_status(harness.wanted.folder)
        return "" if found is None else str(found["error"])

    eventually(lambda: "has not ended after 0.1 s" in status(), "the error in table status")
    with harness.log.producer() as producer:
        producer.send("more", b"1")
    while next_report("more", has_error=False)["offsets"] != {0: 1}:
        pass
    messages.put({"check": [TOPIC]})  # it must not start a second turn of the same table
    # The disk answers again. A reader that asks for the size first closes the pipe at once, and
    # the next turn reads the file.
    with suppress(BrokenPipeError), metadata.open("wb", buffering=0) as pipe:
        metadata.with_suffix(".kept").rename(metadata)
        pipe.write(contents)
    assert next_report(TOPIC, has_error=False)["offsets"] == {0: 2, 1: 2}
    eventually(lambda: status() == "", "a status without the error")
    messages.put({"tables": []})
