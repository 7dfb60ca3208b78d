"""Produces to a broker through librdkafka, which batches, compresses, retries and preserves order.

A send returns when all its records are acknowledged according to `acks`; `send_batch` waits once
for all its records. Threads may share a producer: one waiting thread polls librdkafka for all.

Differences from the embedded producer:

    batches        librdkafka divides records into batches, so `send_batch` is not atomic. Errors
                   report how many records were written. Batches that are too large for the topic
                   are split in half and resent, possibly after later records of the same call
    no key         librdkafka chooses a random partition and keeps it for a few milliseconds to form
                   larger batches
    acks="all"     makes the producer idempotent: a retried batch is written only once
    timestamp 0    means "now" to librdkafka
    acks=0         offsets are unknown and returned as -1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from strandlog.client.arguments import (
    Acks,
    BatchItem,
    Fields,
    GivenHeaders,
    check_acks,
    fields_of,
    listed,
    waits_for_disk,
)
from strandlog.client.arrow.table import items_of
from strandlog.client.lifecycle import Closable, state_of
from strandlog.client.remote.errors import (
    BAD_TEXT,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    confluent,
    error_of,
    is_intact,
    rejection,
    too_large,
    translated,
)
from strandlog.client.remote.login import Login
from strandlog.config.setting import Value
from strandlog.errors import (
    ClosedError,
    InvalidRecordError,
    StrandlogError,
    TopicNotFoundError,
)
from strandlog.model import RecordMetadata
from strandlog.record.codecs import codec_named
from strandlog.record.partitioner import key_hash

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

BATCH_BYTES = 2 * 1024 * 1024
SERVE_SECONDS = 0.1  # interval between checks for Ctrl-C
DELIVERY_TIMEOUT_MS = 30_000
QUEUE_RECORDS = 500_000
QUEUE_FULL = -184
PURGED = -152  # a record that was discarded before it was sent
BULK_RECORDS = 20_000
# produce_batch rejects messages with other fields, and ignores the partition of a message, which
# must be specified for the entire batch.
_BULK_FIELDS = frozenset({"value", "key", "partition", "callback"})
ANY_PARTITION = -1
_VALUES = {bytes, type(None)}
LIBRDKAFKA_PARTITIONER = "murmur2"


class Failure(NamedTuple):
    """The index and the error of a record that failed."""

    place: int
    error: Any


class Deliveries(Sequence[RecordMetadata]):
    """The results of one call, in record order; delivery reports fill them in."""

    def __init__(self, count: int) -> None:
        self._messages: list[Any] = [None] * count
        self.answered: list[int] = []  # the thread that polls librdkafka appends to it
        self.failures: list[Failure] = []

    def answer(self, index: int, error: Any, message: Any) -> None:
        if error is None:
            self._messages[index] = message
        else:
            self.failures.append(Failure(index, error))
        self.answered.append(index)

    @property
    def kept(self) -> int:
        return len(self._messages) - self._messages.count(None)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(index, slice):
            return list(map(_metadata, self._messages[index]))
        return _metadata(self._messages[index])

    def __iter__(self) -> Iterator[RecordMetadata]:
        return map(_metadata, self._messages)


def _metadata(message: Any) -> RecordMetadata:
    offset = message.offset()
    return RecordMetadata(
        message.topic(),
        message.partition(),
        -1 if offset is None or offset < 0 else offset,
        message.timestamp()[1],
    )


class RemoteProducer(Closable):
    """A producer, created by `RemoteLog.producer`. Threads may share it."""

    internal_names = frozenset({"send_each"})

    is_atomic = False
    batch_bytes = BATCH_BYTES

    def __init__(
        self,
        log: RemoteLog,
        acks: Acks | str = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> None:
        check_acks(acks)
        hashes = key_hash(partitioner)
        self._hash = None if partitioner == LIBRDKAFKA_PARTITIONER else hashes
        if compression is not None:
            codec_named(compression)  # raises an error if there is no such codec
        config = {
            "acks": str(acks),
            "enable.idempotence": waits_for_disk(acks),
            "compression.type": "none",
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            **log.client_config,
        }
        if compression is not None:
            config["compression.type"] = compression
        self._config = config
        self._created: Login | None = None
        self._creating = Lock()
        self._log = log
        self._counts: dict[str, int] = {}
        self._serving = Condition()
        self._is_served = False
        self._is_closed = False
        self._rejection: StrandlogError | None = None  # the error of the last rejected login
        self._settings = f"acks={acks!r}, partitioner={partitioner!r}, compression={compression!r}"

    def __repr__(self) -> str:
        state = state_of(self._log, is_closed=self._is_closed)
        return f"<strandlog.RemoteProducer of {self._log.bootstrap!r}, {self._settings}, {state}>"

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: GivenHeaders = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send one record; return its topic, partition, offset and timestamp."""
        item = {
            "value": value,
            "key": key,
            "headers": headers,
            "partition": partition,
            "timestamp": timestamp,
        }
        return self.send_batch(topic, [item])[0]

    def send_batch(self, topic: str, records: Iterable[BatchItem]) -> Sequence[RecordMetadata]:
        """Send many records and wait for all of them; return their metadata in order.

        A record is a value, a (key, value) pair, or a mapping with `value` and optionally `key`,
        `headers`, `partition` and `timestamp`.
        """
        items = records if isinstance(records, list) else listed(records)
        self._check_open()
        if not items:
            return []
        calls = self._calls(topic, items)
        deliveries = Deliveries(len(items))
        try:
            self._send(topic, calls, list(range(len(items))), deliveries)
        except StrandlogError as error:
            error.records_kept = deliveries.kept
            if error.records_kept:
                error.add_note(f"{error.records_kept} of {len(items)} records were written")
            raise
        return deliveries

    def send_arrow(self, topic: str, table: Any) -> Sequence[RecordMetadata]:
        """Send the rows of an Arrow table or data frame.

        The columns have the names and types that `poll_arrow` returns. Only `value` is required;
        `topic` and `offset` are ignored.
        """
        return self.send_batch(topic, items_of(table))

    def _calls(self, topic: str, items: list[BatchItem]) -> list[dict[str, Any]]:
        """Return the arguments to pass to librdkafka's `produce` for each record."""
        self._know(topic)
        kinds = set(map(type, items))
        if kinds <= _VALUES:
            return [{"value": item} for item in items]
        if kinds == {tuple} and self._hash is None:
            pairs = [item for item in items if isinstance(item, tuple) and len(item) == 2]
            if (
                len(pairs) == len(items)
                and {type(part) for pair in pairs for part in pair} <= _VALUES
            ):
                return [{"key": key, "value": value} for key, value in pairs]
        return [self._call(topic, item) for item in items]

    def _know(self, topic: str) -> None:
        """Check that the topic exists and that the user may write to it, before the first send."""
        if topic not in self._counts:
            count = self._log.partition_count_to_write(topic)
            self._create_client()
            self._counts[topic] = count

    def _create_client(self) -> None:
        """Create librdkafka's client, unless it exists. The client immediately requests a producer
        id, and prints a fatal error if the user may not write to any topic; `_know` therefore
        checks the permission first."""
        with self._creating:
            if self._created is None:
                self._created = Login(confluent().Producer, self._config, self._log.credentials)

    @property
    def _login(self) -> Login:
        assert self._created is not None, "`_know` comes before every other use of the client"
        return self._created

    @property
    def _producer(self) -> Any:
        return self._login.client

    def _call(self, topic: str, item: BatchItem) -> dict[str, Any]:
        fields = fields_of(item, 0)
        call: dict[str, Any] = {"value": fields.value, "key": fields.key}
        partition = self._partition(topic, fields)
        if partition != ANY_PARTITION:
            call["partition"] = partition
        for name, _ in fields.headers:
            if not is_intact(name):
                raise InvalidRecordError(f"invalid header name {name!r}: {BAD_TEXT}")
        if fields.headers:
            call["headers"] = list(fields.headers)
        if fields.timestamp:
            call["timestamp"] = fields.timestamp
        return call

    def _partition(self, topic: str, fields: Fields) -> int:
        count = self._counts[topic]
        if fields.partition is None:
            if self._hash is None or fields.key is None:
                return ANY_PARTITION
            return self._hash.up_to(len(fields.key))(fields.key) % count
        if not isinstance(fields.partition, int):
            raise TypeError(f"a partition must be an int, got {fields.partition!r}")
        if not 0 <= fields.partition < count:
            count = self._grown(topic)
            if not 0 <= fields.partition < count:
                raise TopicNotFoundError(topic, fields.partition, count)
        return fields.partition

    def _grown(self, topic: str) -> int:
        """Return the current number of partitions, and make librdkafka refresh its metadata."""
        self._counts[topic] = self._log.partition_count_to_write(topic)
        with translated(topic=topic, to=self._log.bootstrap):
            self._producer.list_topics(topic, timeout=self._log.timeout_ms / 1000)
        return self._counts[topic]

    def _send(
        self,
        topic: str,
        calls: list[dict[str, Any]],
        indexes: list[int],
        deliveries: Deliveries,
    ) -> None:
        """Send the records at `indexes` and wait until all of them are acknowledged."""
        failures = self._attempt(topic, calls, indexes, deliveries)
        for failure in failures:
            if failure.error.code() != MESSAGE_TOO_LARGE:
                raise self._error_of(failure, topic, self._settings_of)
        if not failures:
            return
        large = sorted(failure.place for failure in failures)
        if len(large) == 1:
            raise _too_large(calls[large[0]])
        middle = len(large) // 2
        self._send(topic, calls, large[:middle], deliveries)
        self._send(topic, calls, large[middle:], deliveries)

    def _attempt(
        self,
        topic: str,
        calls: list[dict[str, Any]],
        indexes: list[int],
        deliveries: Deliveries,
    ) -> list[Failure]:
        """Send the records at `indexes`, wait for the responses, and return the failures."""
        wanted = len(deliveries.answered) + len(indexes)
        fields = set().union(*calls)
        if "partition" not in fields and fields <= _BULK_FIELDS:
            self._produce_bulk(topic, ANY_PARTITION, calls, indexes, deliveries)
        elif fields <= _BULK_FIELDS:
            by_partition: dict[int, list[int]] = {}
            for index in indexes:
                partition = calls[index].get("partition", ANY_PARTITION)
                by_partition.setdefault(partition, []).append(index)
            for partition, some in by_partition.items():
                self._produce_bulk(topic, partition, calls, some, deliveries)
        else:
            for index in indexes:
                calls[index]["callback"] = partial(deliveries.answer, index)
                self._produce(topic, calls[index])
        self._wait(deliveries, wanted)
        failures, deliveries.failures = deliveries.failures, []
        if not failures:
            self._login.succeeded()
        return failures

    # -- independent records -------------------------------------------------------------------

    def send_each(self, topic: str, items: list[BatchItem]) -> list[RecordMetadata | Exception]:
        """Send independent records together, for the asyncio API; a failed record does not affect
        the others. Return the metadata or the error of each."""
        self._check_open()
        try:
            self._know(topic)
        except StrandlogError as error:
            return [error] * len(items)
        results: dict[int, RecordMetadata | Exception] = {}
        calls: list[dict[str, Any]] = []
        places: list[int] = []
        for place, item in enumerate(items):
            try:
                calls += self._calls(topic, [item])
            except (StrandlogError, TypeError) as error:
                results[place] = error
            else:
                places.append(place)
        deliveries = Deliveries(len(calls))
        if calls:
            errors = self._send_valid(topic, calls, list(range(len(calls))), deliveries)
            for index, place in enumerate(places):
                results[place] = errors.get(index) or deliveries[index]
        return [results[place] for place in range(len(items))]

    def _send_valid(
        self,
        topic: str,
        calls: list[dict[str, Any]],
        indexes: list[int],
        deliveries: Deliveries,
    ) -> dict[int, Exception]:
        """Send the records at `indexes`; return the errors by index."""
        errors: dict[int, Exception] = {}
        large = []
        settings_of = cache(self._settings_of)  # one request, however many records fail
        for failure in self._attempt(topic, calls, indexes, deliveries):
            if failure.error.code() == MESSAGE_TOO_LARGE:
                large.append(failure.place)
            else:
                errors[failure.place] = self._error_of(failure, topic, settings_of)
        if len(large) == 1:
            errors[large[0]] = _too_large(calls[large[0]])
        elif large:
            middle = len(large) // 2
            large.sort()
            errors |= self._send_valid(topic, calls, large[:middle], deliveries)
            errors |= self._send_valid(topic, calls, large[middle:], deliveries)
        return errors

    def _error_of(
        self, failure: Failure, topic: str, settings_of: Callable[[str], Mapping[str, Value]]
    ) -> StrandlogError:
        if failure.error.code() == PURGED and self._rejection is not None:
            return self._rejection
        if failure.error.code() == INVALID_RECORD:
            return InvalidRecordError(rejection(topic, settings_of(topic)))
        return error_of(
            failure.error,
            topic=topic,
            to=self._log.bootstrap,
            needs="WRITE",
            principal=self._log.principal,
        )

    def _settings_of(self, topic: str) -> dict[str, Value]:
        """Return the settings of a topic; none if they cannot be read, for an error message."""
        try:
            return self._log.topic_settings(topic)
        except StrandlogError:
            return {}

    def _produce_bulk(
        self,
        topic: str,
        partition: int,
        calls: list[dict[str, Any]],
        indexes: list[int],
        deliveries: Deliveries,
    ) -> None:
        """Send records without headers and timestamps in bulk, which is twice as fast."""
        for index in indexes:
            calls[index]["callback"] = partial(deliveries.answer, index)
        for begin in range(0, len(indexes), BULK_RECORDS):
            while len(self._producer) > QUEUE_RECORDS - BULK_RECORDS:
                self._serve()
            some = indexes[begin : begin + BULK_RECORDS]
            batch = [calls[index] for index in some]
            if self._producer.produce_batch(topic, batch, partition=partition) < len(batch):
                for index in some:
                    self._handle_rejected(topic, index, calls[index], deliveries)

    def _handle_rejected(
        self, topic: str, index: int, call: dict[str, Any], deliveries: Deliveries
    ) -> None:
        """If librdkafka rejected a record, retry it if the queue was full, or note its failure."""
        error = call.pop("_error", None)
        if error is None:
            return
        if error.code() == QUEUE_FULL:
            self._produce(topic, call)
        else:
            deliveries.answer(index, error, None)

    def _produce(self, topic: str, call: Mapping[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(topic, **call)
            except BufferError:  # the queue is full: delivery reports free space
                self._serve()
            except confluent().KafkaException as error:
                call["callback"](error.args[0], None)
                return
            else:
                return

    # -- delivery reports ----------------------------------------------------------------------

    def _wait(self, deliveries: Deliveries, wanted: int) -> None:
        while len(deliveries.answered) < wanted:
            self._serve()

    def _serve(self) -> None:
        """Process delivery reports, or wait for the thread that is processing them."""
        with self._serving:
            if self._is_served:
                self._serving.wait(SERVE_SECONDS)
                return
            self._is_served = True
        try:
            with translated():
                self._producer.poll(SERVE_SECONDS)
            self._check_login()
        finally:
            with self._serving:
                self._is_served = False
                self._serving.notify_all()

    def _check_login(self) -> None:
        """If the broker rejects the login, discard the queued records: their sends then fail."""
        try:
            self._login.check()
        except StrandlogError as error:
            self._rejection = error
            self._producer.purge(in_flight=False)

    # -- close ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed or self._log.is_closed:
            raise ClosedError("producer")

    def flush(self) -> None:
        """Wait until all records are acknowledged according to `acks`."""
        self._check_open()
        self._flush()

    def close(self) -> None:
        """Send the remaining records of interrupted sends, and close. This method is idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._flush()

    def _flush(self) -> None:
        if self._created is None:
            return  # nothing was sent
        before = self._rejection
        with translated():
            while self._producer.flush(SERVE_SECONDS):
                self._check_login()
        if self._rejection is not None and self._rejection is not before:
            raise self._rejection


def _too_large(call: Mapping[str, Any]) -> StrandlogError:
    return too_large(len(call["value"] or b"") + len(call.get("key") or b""))
