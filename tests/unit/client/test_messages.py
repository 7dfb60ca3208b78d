"""What a program that uses the library in the wrong way, or looks at its objects, gets to read."""

from __future__ import annotations

import inspect
import logging
import os
import queue
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from tests.support.embedded_harness import EmbeddedHarness

import strandlog
from strandlog import ClosedError, Log, TopicPartition
from strandlog.client.api import OpenLog, ReadableLog
from strandlog.errors import InvalidGroupError, InvalidSettingError


def in_child(work: Callable[[], object]) -> str:
    """Return the text of the error that `work` raises in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            work()
            os.write(write, b"no error")
        except Exception as error:  # noqa: BLE001 - its text is the result
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answers:
        return answers.read()


def test_a_forked_child_learns_that_the_log_belongs_to_its_parent(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        producer, consumer = log.producer(), log.consumer(["t"])
        calls: dict[str, Callable[[], object]] = {
            "log": log.topics,
            "producer": lambda: producer.send("t", b"v"),
            "consumer": consumer.poll,
        }
        for what, work in calls.items():
            text = in_child(work)
            assert f"this {what} belongs to the parent process" in text
            assert "strandlog serve" in text
        producer.send("t", b"v")
    with pytest.raises(ClosedError, match="this producer is closed; open a new one"):
        producer.send("t", b"v")


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("text", r"not str; encode it first: value\.encode\(\)"),
        (bytearray(b"v"), r"not bytearray; pass an immutable copy: bytes\(value\)"),
        (memoryview(b"v"), r"not memoryview; .* bytes\(value\)"),
        ({"a": 1}, r"not dict; encode it first, for example as JSON: json\.dumps"),
    ],
)
def test_a_value_of_a_wrong_type_gets_advice(
    embedded: EmbeddedHarness, value: bytes, advice: str
) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    with pytest.raises(TypeError, match=advice):
        producer.send("t", value)
    with pytest.raises(TypeError, match=advice):
        producer.send_batch("t", [(None, value)])


@pytest.mark.parametrize("value", [b"v", "v"])
def test_a_value_instead_of_a_batch_names_send(embedded: EmbeddedHarness, value: bytes) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(TypeError, match=r"send_batch takes a list, got \w+; use send"):
        embedded.log.producer().send_batch("t", value)  # type: ignore[arg-type]
    assert embedded.log.describe_topic("t").partitions[0].end_offset == 0


def test_an_offset_that_is_no_number_is_not_reported_as_out_of_range(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t")
    consumer = embedded.log.consumer(["t"])
    with pytest.raises(TypeError, match="an offset must be an int, got 'earliest'"):
        consumer.seek("t", 0, "earliest")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["t", ("t",), ("t", 0, 1)])
def test_an_assignment_without_partitions_says_what_it_needs(
    embedded: EmbeddedHarness, given: tuple[str, int]
) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(TypeError, match="assign takes pairs of topic and partition number, got"):
        embedded.log.consumer(["t"]).assign([given])


def test_a_group_name_that_is_no_text_is_not_called_empty(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(InvalidGroupError, match="invalid group name 3: it must be a str"):
        embedded.log.consumer(["t"], group=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_ms", ["1s", None, -1, float("nan"), True])
def test_a_time_out_that_is_no_number_of_ms(embedded: EmbeddedHarness, timeout_ms: int) -> None:
    embedded.log.create_topic("t")
    with pytest.raises(InvalidSettingError, match="timeout_ms: expected a number of ms, such as"):
        embedded.log.consumer(["t"]).poll(timeout_ms=timeout_ms)


def test_a_committed_offset_past_the_end_is_reported(
    embedded: EmbeddedHarness, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"0", b"1")
    embedded.log.commit_offsets("g", {TopicPartition("t", 0): 99})
    with caplog.at_level(logging.WARNING), embedded.log.consumer(["t"], group="g") as consumer:
        assert len(consumer.poll()) == 2
    assert caplog.messages == [
        "the committed offset 99 of t-0 is outside the valid range [0, 2]; auto_offset_reset "
        "moves the consumer to offset 0"
    ]


def test_a_position_that_was_deleted_is_reported(
    embedded: EmbeddedHarness, caplog: pytest.LogCaptureFixture
) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"0", b"1", b"2")
    consumer = embedded.log.consumer(["t"])
    embedded.log.delete_records("t", 0, 2)
    assert [record.offset for record in consumer.poll()] == [2]
    assert "the position 0 of t-0 is outside the valid range [2, 3]" in caplog.text


def test_iteration_ends_at_the_last_record_or_waits(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    embedded.send("t", b"0", b"1")
    assert [record.value for record in embedded.log.consumer(["t"])] == [b"0", b"1"]
    found: queue.Queue[bytes | None] = queue.Queue()

    def follow() -> None:
        for record in embedded.log.consumer(["t"], consumer_timeout_ms=None):
            found.put(record.value)
            if record.value == b"2":
                break

    following = Thread(target=follow)
    following.start()
    assert [found.get(), found.get()] == [b"0", b"1"]
    embedded.send("t", b"2")
    following.join()
    assert found.get() == b"2"
    with pytest.raises(InvalidSettingError, match="consumer_timeout_ms"):
        embedded.log.consumer(["t"], consumer_timeout_ms="1s")  # type: ignore[arg-type]


def test_the_reprs_say_what_an_object_is_and_whether_it_is_open(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with strandlog.open(folder) as log:
        log.create_topic("t", 2)
        producer = log.producer(compression="zstd")
        consumer = log.consumer(["t"], group="g")
        assert repr(log) == f"<strandlog.Log '{folder}', open>"
        assert repr(producer) == (
            f"<strandlog.Producer of '{folder}', acks='all', partitioner='murmur2', "
            "compression='zstd', open>"
        )
        assert repr(consumer) == (
            f"<strandlog.Consumer of '{folder}', topics=['t'], group='g', 2 partitions, open>"
        )
        sent = producer.send("t", b"v", partition=1, timestamp=log.clock.now_ms())
        text = f"RecordMetadata(topic='t', partition=1, offset=0, timestamp={sent.timestamp})"
        assert repr(sent) == text
        producer.close()
        assert repr(producer).endswith(", closed>")
    assert repr(log) == f"<strandlog.Log '{folder}', closed>"
    assert repr(consumer).endswith(", closed>")
    with strandlog.read(folder) as reader:
        assert repr(reader) == f"<strandlog.ReadOnlyLog '{folder}', open>"


def verbs(protocol: type) -> set[str]:
    return {name for name in dir(protocol) if not name.startswith("_")}


def test_dir_shows_the_public_api(embedded: EmbeddedHarness, tmp_path: Path) -> None:
    own = {"client_quotas", "alter_client_quotas", "compact", "enforce_retention", "flush"}
    own |= {"problems", "run_maintenance", "is_closed", "path"}
    embedded.log.create_topic("t")
    assert set(dir(embedded.log)) == verbs(OpenLog) | own
    assert {"broker", "lock"} <= set(vars(embedded.log))  # there, but not public
    with strandlog.open(tmp_path / "data"), strandlog.read(tmp_path / "data") as reader:
        assert set(dir(reader)) == verbs(ReadableLog) | {"is_closed", "path"}
    assert dir(embedded.log.producer()) == [
        *("batch_bytes", "close", "flush", "is_atomic", "send", "send_arrow", "send_batch")
    ]
    assert dir(embedded.log.consumer(["t"])) == [
        *("assign", "assignment", "close", "commit", "committed", "group", "poll", "poll_arrow"),
        *("position", "seek", "seek_all", "seek_to_time", "skipped"),
    ]


@pytest.mark.parametrize("owner", [Log, strandlog.RemoteLog, strandlog.ReadOnlyLog])
def test_every_parameter_of_producers_and_consumers_is_documented(owner: type) -> None:
    for name in ("producer", "consumer"):
        method = getattr(owner, name, None)
        if method is not None:
            text = inspect.getdoc(method) or ""
            names = [each for each in inspect.signature(method).parameters if each != "self"]
            assert not [each for each in names if f"`{each}`:" not in text]
