"""Benchmark producers, which send to a broker with librdkafka, or to a folder.

    KafkaSender    queues records without waiting; librdkafka sends them in batches. Latency is
                   measured up to the delivery report
    FolderSender   sends a batch with the embedded library and waits for it. Latency is measured up
                   to the end of that call

A record that cannot be written counts as an error under its reason; the benchmark does not send it
again. Records that `close` discards after Ctrl-C do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.bench.plan import Plan
from strandlog.client.api import AnyProducer, OpenLog
from strandlog.client.arguments import Acks
from strandlog.client.remote.errors import confluent, error_of, translated
from strandlog.client.remote.log import RemoteLog
from strandlog.client.remote.login import Login
from strandlog.clock import stopwatch
from strandlog.errors import StrandlogError

ACKS: dict[str, Acks] = {"all": "all", "1": 1, "0": 0}
QUEUE_BYTES = 32 * 1024 * 1024
QUEUE_RECORDS = 100_000
DELIVERY_TIMEOUT_MS = 30_000
REPORT_AFTER = 5_000  # add latencies to the measurement after this many, or after 0.2 seconds
_QUEUE_FULL = -184


class Sender(Protocol):
    """Sends records and adds their latencies to a measurement."""

    def send(self, values: list[bytes], times: list[float]) -> None:
        """Send values that were due at these times."""

    def poll(self) -> None:
        """Process the delivery reports that have arrived, without waiting."""

    def finish(self) -> None:
        """Wait until all records are acknowledged or have failed."""

    def close(self) -> None:
        """Discard unacknowledged records, and close the producer."""


def open_sender(
    log: OpenLog, topic: str, plan: Plan, measurement: Measurement, *, linger_ms: int = 5
) -> Sender:
    """Create the sender for one client."""
    if isinstance(log, RemoteLog):
        return KafkaSender(log, topic, plan, measurement, linger_ms)
    producer = log.producer(ACKS[plan.acks], compression=plan.compression)
    return FolderSender(producer, topic, measurement)


class KafkaSender:
    """Sends through librdkafka."""

    def __init__(
        self, log: RemoteLog, topic: str, plan: Plan, measurement: Measurement, linger_ms: int
    ) -> None:
        config = {
            "acks": plan.acks,
            "enable.idempotence": plan.acks == "all",
            "compression.type": plan.compression or "none",
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "queue.buffering.max.kbytes": QUEUE_BYTES // 1024,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            # A Metadata request for the temporary topic can reach the broker after the topic was
            # deleted, and must not create it again.
            "allow.auto.create.topics": False,
            **log.client_config,
        }
        self._login = Login(confluent().Producer, config, log.credentials)
        self._producer = self._login.client
        self._topic = topic
        self._measurement = measurement
        self._is_paced = plan.rate is not None
        self._latencies: list[float] = []
        self._size_bytes = 0
        self._reported = stopwatch()
        self._is_closing = False

    def send(self, values: list[bytes], times: list[float]) -> None:
        calls: Sequence[dict[str, Any]]
        if self._is_paced:
            calls = [
                {"value": value, "callback": partial(self._delivered_since, due)}
                for value, due in zip(values, times, strict=True)
            ]
        else:
            calls = [{"value": value, "callback": self._delivered} for value in values]
        while calls:
            with translated(topic=self._topic):
                written = self._producer.produce_batch(self._topic, calls)
            calls = [] if written == len(calls) else self._rejected(calls)
            self._poll(0.05 if calls else 0)

    def _rejected(self, calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the records that the full queue rejected, to retry them; count other failures."""
        again = []
        for call in calls:
            error = call.pop("_error", None)
            if error is None:
                continue
            if error.code() == _QUEUE_FULL:
                again.append(call)
            else:
                self._failed(error)
        return again

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._size_bytes += len(message)
            self._latencies.append(message.latency())
        else:
            self._failed(error)

    def _delivered_since(self, due: float, error: Any, message: Any) -> None:
        if error is None:
            self._size_bytes += len(message)
            self._latencies.append(stopwatch() - due)
        else:
            self._failed(error)

    def _failed(self, error: Any) -> None:
        if self._is_closing:
            return  # `close` discarded the record
        self._measurement.add_errors(str(error_of(error, topic=self._topic, needs="WRITE")))

    def poll(self) -> None:
        self._poll(0)

    def _poll(self, seconds: float) -> None:
        with translated():
            self._producer.poll(seconds)
        self._login.check()
        if len(self._latencies) >= REPORT_AFTER or stopwatch() - self._reported > 0.2:
            self._report()

    def _report(self) -> None:
        latencies, self._latencies = self._latencies, []
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._reported = stopwatch()
        if latencies:
            self._measurement.add(len(latencies), size_bytes, latencies)

    def finish(self) -> None:
        while len(self._producer):
            self._poll(0.05)
        self._report()

    def close(self) -> None:
        self._report()
        self._is_closing = True
        self._producer.purge()
        self._producer.close()


class FolderSender:
    """Sends to a folder that this process owns."""

    def __init__(self, producer: AnyProducer, topic: str, measurement: Measurement) -> None:
        self._producer = producer
        self._topic = topic
        self._measurement = measurement

    def send(self, values: list[bytes], times: list[float]) -> None:
        if not values:
            return
        try:
            self._producer.send_batch(self._topic, values)
        except StrandlogError as error:
            self._measurement.add_errors(str(error), len(values))
            return
        now = stopwatch()
        size_bytes = sum(map(len, values))
        self._measurement.add(len(values), size_bytes, [now - due for due in times])

    def poll(self) -> None:
        """Do nothing, because `send` waits for its records."""

    def finish(self) -> None:
        """Do nothing, because `send` waits for its records."""

    def close(self) -> None:
        self._producer.close()
