"""Requests whose partitions get errors: a hundred thousand of them may not stop the event loop."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.reads.fetch import FetchPartition, FetchRequest
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.model import OffsetAndMetadata, PartitionRecords, TopicPartition
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()
MANY = 1000
BATCH = batch(b"v", keys=[b"k"])


@pytest.fixture
def broker() -> Iterator[Broker]:
    opened = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids())
    opened.create_topic(CONTEXT, "t", 1).result()
    yield opened
    opened.close()


def fetch_unknown(broker: Broker) -> None:
    parts = [FetchPartition("t", number, 0, 1000) for number in range(1, MANY)]
    broker.fetch(CONTEXT, FetchRequest(parts, 1, 1000, 0))


def fetch_out_of_range(broker: Broker) -> None:
    broker.fetch(CONTEXT, FetchRequest([FetchPartition("t", 0, 9, 1000)] * 30, 1, 1000, 0))


def produce(broker: Broker) -> None:
    parts = [PartitionRecords("t", number, BATCH) for number in range(1, MANY)]
    broker.produce(CONTEXT, parts, 1)


def produce_durably(broker: Broker) -> None:
    parts = [PartitionRecords("t", number, BATCH) for number in range(1, MANY)]
    broker.produce(CONTEXT, parts, -1)


def delete_records(broker: Broker) -> None:
    broker.delete_records(CONTEXT, {TopicPartition("t", number): 0 for number in range(1, MANY)})


def commit_offsets(broker: Broker) -> None:
    offsets = {TopicPartition("t", number): OffsetAndMetadata(1) for number in range(1, MANY)}
    broker.commit_offsets(CONTEXT, CommitRequest(group_id="g", offsets=offsets))


@pytest.mark.parametrize(
    "ask",
    [fetch_unknown, fetch_out_of_range, produce, produce_durably, delete_records, commit_offsets],
)
def test_errors_of_partitions_are_not_left_to_the_garbage_collector(
    broker: Broker, ask: Callable[[Broker], None]
) -> None:
    """The traceback of each error referred to the list of errors. To free 100,000 of them, the
    garbage collector stopped the event loop for half a second."""
    ask(broker)  # the first request may create topics
    gc.collect()
    gc.disable()
    try:
        ask(broker)
        assert gc.collect() < 25
    finally:
        gc.enable()


def test_each_topic_of_a_large_produce_request_is_looked_up_once_to_decide_about_checks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop stopped while every partition was looked up."""
    looked_up: list[str] = []
    logs_of = TopicCatalog.logs

    def logs(self: TopicCatalog, name: str) -> object:
        looked_up.append(name)
        return logs_of(self, name)

    monkeypatch.setattr(TopicCatalog, "logs", logs)
    names = ["t", "unknown"]
    parts = [PartitionRecords(name, number, BATCH) for name in names for number in range(MANY)]
    assert broker.record_checks(CONTEXT, parts) is None
    assert sorted(looked_up) == names
