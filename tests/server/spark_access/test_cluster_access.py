"""The time-outs of Spark's Kafka source, on a real broker that goes away and comes back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
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

METADATA, LIST_OFFSETS = 3, 2
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


@pytest.mark.parametrize(("retries", "interval_ms"), [("0", "0"), ("3", "400")])
def test_an_offset_lookup_is_retried_as_often_as_configured(
    mortal: BrokerProcess, retries: str, interval_ms: str
) -> None:
    asked = {"fetchOffset.numRetries": retries, "fetchOffset.retryIntervalMs": interval_ms}
    with closing(ClusterAccess(options(mortal.address, **QUICK, **asked))) as access:
        partitions = access.partitions()
        access.bounds()
        mortal.stop()
        times = dict.fromkeys(partitions, 0)
        began = time.monotonic()
        with pytest.raises(UnreachableError):
            access.offsets_at(times)
        took = time.monotonic() - began
        assert took >= int(retries) * int(interval_ms) / 1000
        if retries == "0":
            assert took < 1.5


def test_a_retried_lookup_finds_a_broker_that_was_restarted(mortal: BrokerProcess) -> None:
    patient = {"fetchOffset.numRetries": "100", "fetchOffset.retryIntervalMs": "100"}
    with closing(ClusterAccess(options(mortal.address, **QUICK, **patient))) as access:
        partitions = access.partitions()
        mortal.stop()
        later = threading.Timer(1.5, mortal.start)  # longer than the client alone would try
        later.start()
        try:
            assert access.offsets_at(dict.fromkeys(partitions, 0)) == dict.fromkeys(partitions, 0)
        finally:
            later.join()


def test_partitions_are_cached_for_their_ttl(topic: str, broker: RunningBroker) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    name = "partition.metadata.cache.ttl.ms"
    counts: dict[str, Callable[[], int]] = {}
    opened = []
    for ttl_ms in ("-1", "1500", "600000"):
        access = ClusterAccess(options(broker.address, subscribe=topic, **{name: ttl_ms}))
        opened.append(access)
        counts[ttl_ms] = lambda access=access: len(access.bounds())  # type: ignore[misc]
    assert [count() for count in counts.values()] == [2, 2, 2]
    began = time.monotonic()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    assert counts["-1"]() == 3
    seen = counts["1500"]()
    if time.monotonic() - began < 1.2:  # else the machine was too slow for a look in time
        assert seen == 2
    time.sleep(1.6)
    assert counts["1500"]() == 3
    assert counts["600000"]() == 2
    for access in opened:
        access.close()


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


def test_a_task_waits_for_records_until_the_poll_timeout(mortal: BrokerProcess) -> None:
    asked = options(mortal.address, **{"kafkaConsumer.pollTimeoutMs": "700"})
    wanted = OffsetRange(TopicPartition("t", 0), 0, 51)  # one more than there are
    with closing(ClusterAccess(asked, in_task=True)) as access:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"kafkaConsumer\.pollTimeoutMs") as failed:
            assert len(list(access.read(wanted))) == 1
        assert 0.6 < time.monotonic() - began < 10
        assert "is readable up to offset 50" in str(failed.value)
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
