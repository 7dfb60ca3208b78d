"""A bug in a delayed response closes one connection; the server logs it and keeps running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.kafka_requests import (
    Wire,
    build,
    create_topic,
    encode,
    produce,
    request_header,
)

from strandlog.broker.deferred import Deferred
from strandlog.broker.reads import fetch as broker_fetch
from strandlog.protocol.kafka.api import FETCH, TXN_OFFSET_COMMIT
from strandlog.record.builder import build_batch
from strandlog.server.kafka.connections import KafkaConnections
from strandlog.server.kafka.handlers import produce as produce_handler
from strandlog.server.kafka.pending_reply import PendingReply
from strandlog.testing.server import ServerThread

BATCH = bytes(build_batch(1_700_000_000_000, [b"value"]))
LOGGED = "internal error in a request from 127.0.0.1; closing the connection"


def _fail(*_: object, **__: object) -> Any:
    raise RuntimeError("a bug")


def _fetch_frame(topic: str, partitions: Iterable[int], max_wait: int) -> bytes:
    rows = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 10**6} for n in partitions]
    body = build(
        FETCH.key,
        11,
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=10**6,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": rows}],
    )
    return request_header(FETCH.key, 11, 1) + encode(body)


def _wait_for_fetch(server: ServerThread) -> None:
    server.wait_until(
        lambda running: running.broker.refresh_metrics().waiting_fetches == 1, "a fetch waits"
    )


def _check_flushes_continue(server: ServerThread, topic: str) -> None:
    """Produce with acks=all, which is answered only if the flush task still runs."""
    with Wire(server.port) as other:
        assert produce(other, topic, BATCH).error_code == 0


def test_a_bug_in_a_produce_response_does_not_stop_the_server(
    wire: Wire,
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(wire, "produced")
    with monkeypatch.context() as patched:
        patched.setattr(produce_handler, "single_produce_response", _fail)
        with pytest.raises(ConnectionError):
            produce(wire, "produced", BATCH)
    assert LOGGED in caplog.text
    _check_flushes_continue(shared_broker, "produced")


def test_a_bug_in_a_delayed_fetch_response_does_not_stop_the_server(
    wire: Wire,
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(wire, "replied")
    wire.send(_fetch_frame("replied", [0], 60_000))
    _wait_for_fetch(shared_broker)
    with monkeypatch.context() as patched, Wire(shared_broker.port) as producer:
        patched.setattr(PendingReply, "hold", _fail)
        assert produce(producer, "replied", BATCH).error_code == 0
        with pytest.raises(ConnectionError):
            wire.receive()
    assert LOGGED in caplog.text
    _check_flushes_continue(shared_broker, "replied")


@pytest.mark.parametrize("partitions", [1, broker_fetch.FEW_PARTITIONS + 1])
def test_a_fetch_whose_read_raises_a_bug_is_not_left_unanswered(
    wire: Wire,
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    partitions: int,
) -> None:
    topic = f"read-{partitions}"
    create_topic(wire, topic, partitions)
    wire.send(_fetch_frame(topic, range(partitions), 60_000))
    _wait_for_fetch(shared_broker)
    with monkeypatch.context() as patched, Wire(shared_broker.port) as producer:
        patched.setattr(broker_fetch, "read", _fail)
        assert produce(producer, topic, BATCH).error_code == 0
        with pytest.raises(ConnectionError):
            wire.receive()
    assert LOGGED in caplog.text
    _check_flushes_continue(shared_broker, topic)
    with Wire(shared_broker.port) as other:  # later fetches are served
        other.send(_fetch_frame(topic, range(partitions), 60_000))
        assert b"value" in other.receive()


def test_a_fetch_whose_size_estimate_raises_a_bug_is_not_left_unanswered(
    wire: Wire,
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(wire, "estimated")
    wire.send(_fetch_frame("estimated", [0], 60_000))
    _wait_for_fetch(shared_broker)
    with monkeypatch.context() as patched, Wire(shared_broker.port) as producer:
        patched.setattr(broker_fetch.DelayedFetch, "is_enough", _fail)
        assert produce(producer, "estimated", BATCH).error_code == 0
        with pytest.raises(ConnectionError):
            wire.receive()
    assert LOGGED in caplog.text
    _check_flushes_continue(shared_broker, "estimated")


def test_a_transactional_commit_that_fails_with_a_bug_is_logged(
    wire: Wire,
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_topic(wire, "committed")
    broker = shared_broker.call(lambda: shared_broker.server.broker)
    failed: Deferred[Any] = Deferred.failed(RuntimeError("a bug"))
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    with monkeypatch.context() as patched:
        patched.setattr(broker, "commit_transaction_offsets", lambda *_: failed)
        with pytest.raises(ConnectionError):
            wire.ask(
                TXN_OFFSET_COMMIT.key,
                2,
                transactional_id="t",
                group_id="g",
                producer_id=1,
                producer_epoch=0,
                topics=[{"name": "committed", "partitions": [row]}],
            )
    assert LOGGED in caplog.text


@pytest.mark.parametrize("method", ["opened", "begin_sasl"])
def test_a_bug_while_a_connection_opens_does_not_stop_the_server(
    shared_broker: ServerThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(KafkaConnections, method, _fail)
        with Wire(shared_broker.port) as refused, pytest.raises(ConnectionError):
            refused.ask(18, 0)
    assert "internal error while opening a connection from 127.0.0.1" in caplog.text
    shared_broker.wait_until(lambda running: not running.kafka.connections(), "it is closed")
    with Wire(shared_broker.port) as other:
        other.ask(18, 0)
