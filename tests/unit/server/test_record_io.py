"""Records that HTTP and gRPC clients produce and read."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.clock import SystemClock
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import TopicNotFoundError, UnknownTopicIdError
from strandlog.server import record_io
from strandlog.server.record_io import Headers, NewRecord, RecordProducer, fetch


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    opened = Broker(str(tmp_path / "data"), None, SystemClock(), uuid.uuid4, broker_settings())
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("headers", "is_in_loop"),
    [
        ([("name", b"value")], True),
        ([("name", bytes(100_000))], False),
        ([("", None)] * 10_000, False),
    ],
)
def test_large_headers_do_not_occupy_the_event_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, headers: Headers, is_in_loop: bool
) -> None:
    threads: list[threading.Thread] = []
    build = record_io.build_records

    def watched(now_ms: int, records: Sequence[NewRecord]) -> bytearray:
        threads.append(threading.current_thread())
        return build(now_ms, records)

    monkeypatch.setattr(record_io, "build_records", watched)
    context = embedded_context()
    broker.create_topic(context, "t", 1).result()
    producing = RecordProducer(broker).produce(
        context, "t", 0, [NewRecord(None, b"value", headers)], acks=1
    )
    assert asyncio.run(producing) == [(0, 0)]
    assert [each is threading.current_thread() for each in threads] == [is_in_loop]


def test_a_fetch_continues_in_a_recreated_topic(broker: Broker) -> None:
    context = embedded_context()
    broker.create_topic(context, "t", 1).result()
    old = broker.topic(context, "t")
    broker.delete_topic(context, "t").result()
    with pytest.raises(TopicNotFoundError):
        asyncio.run(fetch(broker, context, old, 0, 0, max_bytes=1, committed=True))
    broker.create_topic(context, "t", 1).result()
    with pytest.raises(UnknownTopicIdError, match="topic 't' was deleted and recreated"):
        asyncio.run(fetch(broker, context, old, 0, 0, max_bytes=1, committed=True))
