"""Records that must be decoded before the append are decoded outside of the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.log_builders import START_MS, batch, uuids
from tests.support.undecodable_batches import BAD_RECORDS

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.produce import QUICK_BATCHES, QUICK_CHECKED_BYTES
from strandlog.errors import InvalidRecordError
from strandlog.model import PartitionRecords
from strandlog.record.codecs import Codec
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.record_checks import QUICK_RECORDS
from strandlog.storage.partition.time_lookup import find_latest, find_timestamp
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()
MANY = QUICK_RECORDS + 1


@pytest.fixture
def broker() -> Iterator[Broker]:
    opened = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids())
    rules = {"cleanup.policy": ("compact",), "max.message.bytes": 2 * QUICK_CHECKED_BYTES}
    opened.create_topic(CONTEXT, "keyed", 2, rules).result()
    opened.create_topic(CONTEXT, "plain", 1).result()
    yield opened
    opened.close()


def keyed(count: int, codec: Codec = Codec.NONE) -> bytes:
    return batch(*[b"v"] * count, keys=[b"k"] * count, codec=codec)


LARGE = batch(bytes(QUICK_CHECKED_BYTES), keys=[b"k"])
LARGE_PART = batch(bytes(QUICK_CHECKED_BYTES // 2), keys=[b"k"])


def log(broker: Broker, topic: str) -> PartitionLog:
    return broker._catalog.log(topic, 0)


def checks(
    broker: Broker, *parts: bytes, topic: str = "keyed", is_gone: Any = lambda: False
) -> Any:
    """The work that checks the records of a request, one part per partition; None if quick."""
    records = [PartitionRecords(topic, number % 2, data) for number, data in enumerate(parts)]
    return broker.record_checks(CONTEXT, records, is_gone)


def test_small_batches_are_checked_at_once(broker: Broker) -> None:
    assert checks(broker, keyed(QUICK_RECORDS)) is None
    assert checks(broker, keyed(10, Codec.ZSTD)) is None
    assert checks(broker, LARGE_PART) is None
    assert checks(broker, b"", b"no batch at all") is None


def test_topics_without_a_rule_about_records_have_nothing_decoded(broker: Broker) -> None:
    assert checks(broker, keyed(MANY), topic="plain") is None


@pytest.mark.parametrize(
    "parts",
    [
        [keyed(MANY)],
        [keyed(QUICK_RECORDS), keyed(QUICK_RECORDS)],
        [batch(bytes(1024 * 1024), keys=[b"k"], codec=Codec.ZSTD)],
        [keyed(1)] * (QUICK_BATCHES + 1),
        [LARGE],
        [LARGE_PART, LARGE_PART],
    ],
    ids=[
        "many records",
        "many in several parts",
        "many bytes",
        "many batches",
        "large",
        "large in several parts",
    ],
)
def test_a_request_with_much_to_decode_is_checked_one_batch_in_each_step(
    broker: Broker, parts: list[bytes]
) -> None:
    count, checked = drive(checks(broker, *parts))
    assert count == len(parts)
    assert checked == dict.fromkeys(range(len(parts)))


def drive(steps: Any) -> tuple[int, Any]:
    """Execute every step in another thread; returns their number and the result."""
    count = 0
    error: Exception | None = None
    while True:
        try:
            part = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            return count, end.value
        count, error = count + 1, None
        raised: list[Exception] = []

        def work(part: Any = part, raised: list[Exception] = raised) -> None:
            try:
                part()
            except Exception as problem:  # noqa: BLE001 - thrown into the generator
                raised.append(problem)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        error = raised[0] if raised else None


def test_a_bad_batch_fails_only_its_own_partition(broker: Broker) -> None:
    poison = BAD_RECORDS["garbage inside gzip"]
    count, checked = drive(checks(broker, keyed(MANY), poison))
    assert count == 2
    assert checked[0] is None
    assert isinstance(checked[1], InvalidRecordError)


def test_nothing_more_is_decoded_for_a_client_that_is_gone(broker: Broker) -> None:
    is_gone = iter([False, False, True]).__next__
    assert drive(checks(broker, *[keyed(1)] * 100, is_gone=is_gone)) == (2, {})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_lookup_by_time_decodes_a_large_batch_in_a_step(broker: Broker, codec: Codec) -> None:
    target = log(broker, "plain")
    times = [START_MS] * MANY + [START_MS + 5]
    target.append(batch(*[b"v"] * len(times), timestamps=times, codec=codec))
    target.append(batch(b"v", timestamp=START_MS + 1))
    target.flush()
    for steps in (find_timestamp(target, START_MS + 2), find_latest(target)):
        count, found = drive(steps)
        assert (count, found.offset) == (1, MANY)
    assert drive(find_timestamp(target, START_MS + 6)) == (0, None)
