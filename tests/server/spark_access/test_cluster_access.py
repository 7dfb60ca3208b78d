"""The time-outs of Spark's Kafka source, on a real broker that goes away and comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill
from tests.support.server import RunningBroker

from strandlog.client.wire.client import WireClient
from strandlog.client.wire.connection import WireConnection
from strandlog.errors import UnreachableError
from strandlog.model import TopicPartition
from strandlog.spark.options import STREAM, Options, parse_options
from strandlog.spark.source.cluster_access import ClusterAccess, task_client_options
from strandlog.spark.source.planning import OffsetRange
from strandlog.testing.clock import FakeClock

pytestmark = pytest.mark.slow

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
QUICK = {
    "kafka.default.api.timeout.ms": "300",
    "kafka.request.timeout.ms": "300",
    "kafka.retry.backoff.ms": "20",
}


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of this test alone, with a topic of two partitions and a hundred records."""
    running = BrokerProcess(tmp_path / "data")
    running.start()
    with WireClient(running.address) as client:
        client.create_topic("t", 2)
        fill(client, "t", 100)
    yield running
    if running.process is not None:
        running.stop()


def options(address: str, **more: str) -> Options:
    return parse_options(STREAM, {"bootstrap.servers": address, "subscribe": "t"} | more)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_a_refused_connection_is_an_error_at_once(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patient(*_: Any) -> None:
        raise AssertionError("it waits to try again")

    monkeypatch.setattr("strandlog.client.wire.cluster.pause", patient)
    with pytest.raises(UnreachableError, match=f"cannot connect to {host}"):
        ClusterAccess(options(f"{host},127.0.0.1:1"))
    task = ClusterAccess(options(host), in_task=True)
    with closing(task), pytest.raises(AssertionError):  # its broker may be restarting
        task.partitions()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between offset lookups, in seconds; none of them takes time."""
    found: list[float] = []
    monkeypatch.setattr("strandlog.spark.source.cluster_access.pause", found.append)
    return found


@pytest.mark.parametrize(("retries", "interval_ms"), [(0, 0), (3, 400)])
def test_an_offset_lookup_is_retried_as_often_as_configured(
    mortal: BrokerProcess, pauses: list[float], retries: int, interval_ms: int
) -> None:
    asked = {
        "fetchOffset.numRetries": str(retries),
        "fetchOffset.retryIntervalMs": str(interval_ms),
    }
    with closing(ClusterAccess(options(mortal.address, **QUICK, **asked))) as access:
        partitions = access.partitions()
        access.bounds()
        mortal.stop()
        with pytest.raises(UnreachableError):
            access.offsets_at(dict.fromkeys(partitions, 0))
    assert pauses == [interval_ms / 1000] * retries


def test_a_retried_lookup_finds_a_broker_that_was_restarted(
    mortal: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def restart_in_the_third_pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            mortal.start()

    monkeypatch.setattr("strandlog.spark.source.cluster_access.pause", restart_in_the_third_pause)
    patient = {"fetchOffset.numRetries": "100", "fetchOffset.retryIntervalMs": "100"}
    with closing(ClusterAccess(options(mortal.address, **QUICK, **patient))) as access:
        partitions = access.partitions()
        mortal.stop()
        assert access.offsets_at(dict.fromkeys(partitions, 0)) == dict.fromkeys(partitions, 0)
    assert len(pauses) >= 3


@pytest.mark.parametrize(("ttl_ms", "is_cached_ms"), [(-1, None), (1500, 1500)])
def test_partitions_are_cached_for_their_ttl(
    topic: str, broker: RunningBroker, ttl_ms: int, is_cached_ms: int | None
) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    clock = FakeClock()
    asked = options(
        broker.address, subscribe=topic, **{"partition.metadata.cache.ttl.ms": str(ttl_ms)}
    )
    with closing(ClusterAccess(asked, clock=clock)) as access:
        assert len(access.bounds()) == 2
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
        if is_cached_ms is not None:
            clock.advance(is_cached_ms)
            assert len(access.bounds()) == 2
            clock.advance(1)
        assert len(access.bounds()) == 3


def test_a_micro_batch_requests_metadata_once(
    client: WireClient, topic: str, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from strandlog.spark.schema import record_schema
    from strandlog.spark.source.decoder import Decoder
    from strandlog.spark.source.reader import RangeReader, StreamReader

    fill(client, topic, 10)
    asked = options(broker.address, subscribe=topic, startingOffsets="earliest")
    decoder = Decoder(asked, record_schema(asked))
    stream = StreamReader(RangeReader(asked, decoder, 2))
    start = stream.initialOffset()
    sent: Counter[int] = Counter()
    send = WireConnection.send

    def counted(self: WireConnection, api: Any, *rest: Any) -> Any:
        sent[getattr(api, "key", api)] += 1
        return send(self, api, *rest)

    monkeypatch.setattr(WireConnection, "send", counted)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert sum(part.wanted.size for part in stream.partitions(start, end)) == 10
    assert sent == {METADATA: 1, LIST_OFFSETS: 2}
    stream.stop()


def test_a_task_waits_for_records_until_the_poll_timeout(
    mortal: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options(mortal.address, **{"kafkaConsumer.pollTimeoutMs": "700"})
    wanted = OffsetRange(TopicPartition("t", 0), 0, 51)  # one more than there are
    clock = FakeClock()
    clock_at_fetches: list[int] = []
    send = WireConnection.send

    def timed(self: WireConnection, api: Any, *rest: Any) -> Any:
        if api == FETCH:
            clock_at_fetches.append(clock.monotonic_ms())
            clock.advance(100)
        return send(self, api, *rest)

    monkeypatch.setattr(WireConnection, "send", timed)
    with (
        closing(ClusterAccess(asked, in_task=True, clock=clock)) as access,
        pytest.raises(UnreachableError, match=r"kafkaConsumer\.pollTimeoutMs") as failed,
    ):
        list(access.read(wanted))
    assert "is readable up to offset 50" in str(failed.value)
    # The last response arrives 700 ms after that to the first fetch, which has records.
    assert clock_at_fetches == list(range(0, 701, 100))


def test_a_task_gives_up_on_a_stopped_broker_after_the_poll_timeout(mortal: BrokerProcess) -> None:
    asked = options(mortal.address, **{"kafkaConsumer.pollTimeoutMs": "700"})
    wanted = OffsetRange(TopicPartition("t", 0), 0, 51)
    with closing(ClusterAccess(asked, in_task=True)) as access:
        assert access.partitions()
        mortal.stop()
        with pytest.raises(UnreachableError, match=r"700 ms.*kafkaConsumer\.pollTimeoutMs"):
            list(access.read(wanted))


def test_the_poll_timeout_defaults_to_sparks_unless_the_client_has_one() -> None:
    assert task_client_options(options("h:1")) == {"default.api.timeout.ms": "120000"}
    given = {"default.api.timeout.ms": "5"}
    assert task_client_options(options("h:1", **{"kafka.default.api.timeout.ms": "5"})) == given
    both = {"kafka.request.timeout.ms": "9000", "kafkaConsumer.pollTimeoutMs": "400"}
    assert task_client_options(options("h:1", **both)) == {
        "default.api.timeout.ms": "400",
        "request.timeout.ms": "400",
    }
