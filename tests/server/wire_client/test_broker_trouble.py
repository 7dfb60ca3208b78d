"""A broker that dies, is unreachable, does not respond, or is no broker."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.wire_client.records import batch_of, numbered, values_of, visible
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.errors import AuthenticationError, ClosedError, UnreachableError
from strandlog.model import TopicPartition

pytestmark = pytest.mark.slow


class InterruptedByTestError(BaseException):
    """As Ctrl-C, or the end of a Spark task."""


HASTY = {"default.api.timeout.ms": "1000", "request.timeout.ms": "300"}
# Shorter than the default time-outs, which apply if the options of a test have no effect.
GIVE_UP_SECONDS = 25


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that the test may kill."""
    running = BrokerProcess(tmp_path / "data", {"log.segment.bytes": "1048576"})
    running.start()
    yield running
    if running.process is not None:
        running.stop()


def _filled(client: WireClient, name: str = "t") -> TopicPartition:
    tp = TopicPartition(name, 0)
    client.create_topic(name, 1)
    sender = client.sender()
    for first in range(0, 5000, 100):
        sender.send(tp, batch_of(numbered(first, 100, size=1000)))
    assert sender.flush()[tp].error is None
    return tp


@contextlib.contextmanager
def _listening(answer: bytes | None) -> Iterator[str]:
    """A server that is not a broker: it sends `answer` to every client, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    peers.append(peer)
                    if answer is not None:
                        peer.recv(1000)
                        peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for peer in peers:
            peer.close()


def test_a_range_is_read_on_when_the_broker_was_killed_and_started_again(
    mortal: BrokerProcess,
) -> None:
    with WireClient(mortal.address, {"max.partition.fetch.bytes": "500000"}) as client:
        tp = _filled(client)
        reading = client.read_range(tp, 0, 5000)
        pieces = [next(reading), next(reading)]
        mortal.stop(signal.SIGKILL)
        restart = threading.Timer(1.0, mortal.start)
        restart.start()
        pieces += reading
        restart.join()
        assert [r.value for r in visible(pieces, 0, 5000)] == numbered(0, 5000, size=1000)


def test_batches_arrive_once_when_the_broker_was_killed_and_started_again(
    mortal: BrokerProcess,
) -> None:
    with WireClient(mortal.address, {"buffer.memory": "2MiB"}) as client:
        tp = TopicPartition("t", 0)
        client.create_topic("t", 1)
        producer = client.init_producer_id()
        sender = client.sender()
        restart = threading.Timer(0.5, mortal.start)
        for first in range(0, 20_000, 100):
            sender.send(tp, batch_of(numbered(first, 100, size=1000), producer, first))
            if first == 10_000:
                mortal.stop(signal.SIGKILL)
                restart.start()
        result = sender.flush()[tp]
        restart.join()
        assert (result.batch_count, result.error) == (200, None)
        assert values_of(client, tp) == numbered(0, 20_000, size=1000)


def test_batches_do_not_change_places_when_the_last_one_cannot_be_sent(
    mortal: BrokerProcess,
) -> None:
    """The failure of a send is known before that of the batches that are under way."""
    with WireClient(mortal.address) as client:
        tp = TopicPartition("t", 0)
        client.create_topic("t", 1, {"max.message.bytes": "3000000"})
        producer = client.init_producer_id()
        values = [b"%d" % number * 1_100_000 for number in range(9)]
        sender = client.sender()
        for number, value in enumerate(values):
            if number == 3:
                mortal.stop(signal.SIGKILL)
            sender.send(tp, batch_of([value], producer, number))
        mortal.start()
        result = sender.flush()[tp]
        assert (result.batch_count, result.error) == (9, None)
        assert values_of(client, tp) == values


def test_a_transaction_is_committed_by_a_client_that_comes_after_the_kill(
    mortal: BrokerProcess,
) -> None:
    with WireClient(mortal.address) as task:
        tp = TopicPartition("t", 0)
        task.create_topic("t", 1)
        producer = task.init_producer_id("x")
        task.add_partitions_to_txn("x", *producer, [tp])
        batch = batch_of(numbered(0, 10), producer, is_transactional=True)
        assert task.produce({tp: [batch]}, transactional_id="x")[tp].error is None
        mortal.stop(signal.SIGKILL)
        mortal.start()
        with WireClient(mortal.address) as driver:
            driver.end_txn("x", *producer, commit=True)
        assert values_of(task, tp) == numbered(0, 10)


def test_a_read_that_was_interrupted_does_not_spoil_the_next_one(mortal: BrokerProcess) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedByTestError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with WireClient(mortal.address) as client:
            tp = _filled(client)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(InterruptedByTestError):
                client.fetch(tp, 5000, max_wait_ms=20_000)
            assert values_of(client, tp) == numbered(0, 5000, size=1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_range_of_a_client_that_was_closed_ends_with_an_error(mortal: BrokerProcess) -> None:
    with WireClient(mortal.address, {"max.partition.fetch.bytes": "100000"}) as client:
        reading = client.read_range(_filled(client), 0, 5000)
        next(reading)
    with pytest.raises(ClosedError):
        list(reading)


@pytest.mark.timeout(GIVE_UP_SECONDS)
def test_what_cannot_be_delivered_is_given_up_in_time_and_named(mortal: BrokerProcess) -> None:
    options = {"delivery.timeout.ms": "800", "reconnect.backoff.max.ms": "100"}
    with WireClient(mortal.address, options) as client:
        tp = _filled(client)
        mortal.stop(signal.SIGKILL)
        result = client.produce({tp: [batch_of([b"x"])]})[tp]
        assert isinstance(result.error, UnreachableError)
        assert mortal.address in str(result.error)


@pytest.mark.timeout(GIVE_UP_SECONDS)
def test_an_unreachable_address_is_named_with_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        WireClient(f"127.0.0.1:{port}", HASTY) as client,
        pytest.raises(UnreachableError, match=f"127.0.0.1:{port}.*bootstrap.servers"),
    ):
        client.topics()


def test_a_host_that_does_not_resolve_is_reported() -> None:
    with (
        WireClient("no.such.host.invalid:9092", HASTY) as client,
        pytest.raises(UnreachableError, match=r"no\.such\.host\.invalid:9092"),
    ):
        client.topics()


def test_of_several_addresses_one_that_answers_is_enough(mortal: BrokerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with WireClient(f"127.0.0.1:{port},{mortal.address}", HASTY) as client:
        assert client.topics() == {}


@pytest.mark.timeout(GIVE_UP_SECONDS)
def test_a_broker_that_does_not_answer_is_given_up_in_time() -> None:
    with (
        _listening(None) as address,
        WireClient(address, HASTY) as client,
        pytest.raises(UnreachableError, match="no response in time"),
    ):
        client.topics()


def test_a_server_that_expects_tls_is_found_out_at_once() -> None:
    with (
        _listening(b"\x15\x03\x03\x00\x02\x02\x46") as address,
        WireClient(address) as client,
        pytest.raises(AuthenticationError, match=f"{address} expects TLS"),
    ):
        client.topics()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_is_no_broker_is_found_out(answer: bytes) -> None:
    with (
        _listening(answer) as address,
        WireClient(address, HASTY) as client,
        pytest.raises(UnreachableError, match=address),
    ):
        client.topics()
