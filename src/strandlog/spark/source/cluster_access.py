"""`LogAccess` over the Kafka protocol.

The options of Spark's Kafka source map to those of the client as follows:

    fetchOffset.*                     retries of a failed offset lookup, in addition to the client's
                                      own retries
    kafkaConsumer.pollTimeoutMs       how long a task waits for records; if set, overrides the
                                      client's default.api.timeout.ms
    partition.metadata.cache.ttl.ms   how long the list of partitions is cached
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from strandlog.broker.access.permission import GROUP, TOPIC
from strandlog.client.permissions import SPARK_SOURCE, listed_permissions
from strandlog.client.readonly.raw_range import RawChunk
from strandlog.client.wire.client import WireClient
from strandlog.clock import Clock, SystemClock, pause
from strandlog.config.units import parse_duration_ms
from strandlog.errors import TopicNotFoundError, UnreachableError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.spark.options import Options
from strandlog.spark.source.access import chosen
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.planning import OffsetRange, evenly
from strandlog.storage.folder.identity import base64_id

# The assumed record size of a partition that provides no sample, for example because it is empty.
ASSUMED_RECORD_BYTES = 500.0
POLL_TIMEOUT = "kafkaConsumer.pollTimeoutMs"
METADATA_TTL = "partition.metadata.cache.ttl.ms"
# The number of attempts if topics are deleted between the metadata request and the offset request.
MAX_DELETIONS = 10

Result = TypeVar("Result")


def task_client_options(options: Options) -> dict[str, str]:
    """Return the client options for a task, with pollTimeoutMs as the timeout for records.

    A default.api.timeout.ms that the user sets is kept, unless pollTimeoutMs is set too.
    """
    poll_ms: int = options["kafkaConsumer.pollTimeoutMs"]
    found = dict(options.client)
    if POLL_TIMEOUT in options.given:
        found["default.api.timeout.ms"] = str(poll_ms)
        # Do not wait longer than pollTimeoutMs for a single response.
        asked_ms = parse_duration_ms(found.get("request.timeout.ms", str(poll_ms)))
        found["request.timeout.ms"] = str(min(asked_ms, poll_ms))
    else:
        found.setdefault("default.api.timeout.ms", str(poll_ms))
    return found


class ClusterAccess:
    """`LogAccess` over a cluster."""

    def __init__(
        self, options: Options, *, in_task: bool = False, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._known: tuple[int, list[TopicPartition]] | None = None  # (lookup time, partitions)
        self._topic_ids: dict[str, str | None] = {}  # by topic; None if the broker reported no id
        client = task_client_options(options) if in_task else options.client
        client = {"isolation.level": "read_committed", **client}
        self._client = WireClient(options["bootstrap.servers"], client, self._clock)
        if not in_task:
            self._check_reachable()
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if options.is_committed_only
            else IsolationLevel.READ_UNCOMMITTED
        )

    def _check_reachable(self) -> None:
        try:
            self._client.check_reachable()
        except BaseException:
            self._client.close()
            raise

    def partitions(self) -> list[TopicPartition]:
        now_ms, ttl_ms = self._clock.monotonic_ms(), self._options[METADATA_TTL]
        if self._known is not None and now_ms - self._known[0] <= ttl_ms:
            return self._known[1]
        options = self._options
        names: list[str] | None = None
        if options["subscribe"] is not None:
            names = list(options["subscribe"])
        elif options["assign"] is not None:
            names = sorted({tp.topic for tp in options["assign"]})
        existing = chosen(options, self._counts(names))
        self._known = (now_ms, existing)
        return existing

    def bounds(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Bounds]:
        wanted = None if partitions is None else list(partitions)
        for attempt in range(MAX_DELETIONS):
            there = self.partitions() if wanted is None else self._existing(wanted)
            try:
                return self._bounds(there)
            except TopicNotFoundError:
                # A topic was deleted after the metadata request: retry with the remaining ones.
                self._known = None
                if attempt == MAX_DELETIONS - 1:
                    raise
                pause(self._options["fetchOffset.retryIntervalMs"] / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _bounds(self, there: list[TopicPartition]) -> dict[TopicPartition, Bounds]:
        earliest = self._retried(lambda: self._client.earliest_offsets(there))
        latest = self._retried(lambda: self._client.latest_offsets(there, self._isolation))
        return {
            tp: Bounds(earliest[tp], max(earliest[tp], latest[tp]), self._topic_ids.get(tp.topic))
            for tp in there
        }

    def _existing(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        counts = self._counts(sorted({tp.topic for tp in wanted}))
        return [tp for tp in wanted if tp.partition < counts.get(tp.topic, 0)]

    def _counts(self, names: list[str] | None) -> dict[str, int]:
        """Return the partition counts of all topics, or of those in `names` that exist."""
        with self._listed_permissions():
            found = self._client.topics(names)
        self._topic_ids |= dict.fromkeys(names or ())
        for name, row in found.items():
            has_id = row.topic_id is not None and row.topic_id.int != 0
            self._topic_ids[name] = base64_id(row.topic_id) if row.topic_id and has_id else None
        return {name: row.partition_count for name, row in found.items()}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        there = list(partitions)
        isolation = IsolationLevel.READ_UNCOMMITTED
        return self._retried(lambda: self._client.latest_offsets(there, isolation))

    def topic_id(self, tp: TopicPartition) -> str | None:
        if tp.partition >= self._counts([tp.topic]).get(tp.topic, 0):
            raise TopicNotFoundError(tp.topic)
        return self._topic_ids[tp.topic]

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = self._retried(lambda: self._client.offsets_for_times(times, self._isolation))
        return {tp: None if at is None else at.offset for tp, at in found.items()}

    def _retried(self, look_up: Callable[[], Result]) -> Result:
        """Run an offset lookup, with the number of retries that the options allow."""
        with self._listed_permissions():
            for _ in range(self._options["fetchOffset.numRetries"]):
                try:
                    return look_up()
                except UnreachableError:
                    pause(self._options["fetchOffset.retryIntervalMs"] / 1000)
            return look_up()

    def _listed_permissions(self) -> AbstractContextManager[None]:
        """If a permission is missing, let the error list all those that the source needs."""
        options = self._options
        topics = options["subscribe"] or sorted({tp.topic for tp in options["assign"] or ()})
        named = [(TOPIC, name) for name in topics or ["TOPIC"]]  # a pattern names none
        group = options.values.get("groupId")  # only streams have it
        if group is not None:
            named.append((GROUP, group))
        return listed_permissions(self._client.options, SPARK_SOURCE, named)

    def read(self, wanted: OffsetRange) -> Iterator[RawChunk]:
        try:
            with self._listed_permissions():
                for chunk in self._client.read_range(*wanted, self._isolation):
                    yield RawChunk(chunk.data, chunk.aborted)
        except UnreachableError as error:
            raise UnreachableError(f"{error}; see {POLL_TIMEOUT}", error.code) from error

    def record_bytes(self, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, float]:
        """Estimate the record size from a sample in the middle of each partition."""
        found: dict[TopicPartition, float] = {}
        for tp, bound in bounds.items():
            found[tp] = ASSUMED_RECORD_BYTES
            if bound.earliest < bound.latest:
                middle = (bound.earliest + bound.latest) // 2
                chunk = self._client.fetch(tp, middle, isolation=self._isolation, max_wait_ms=0)
                if chunk.next_offset > middle:
                    found[tp] = len(chunk.data) / (chunk.next_offset - middle)
        return found

    def cut(self, wanted: OffsetRange, pieces: int) -> list[int]:
        """Return evenly spaced split points, because a cluster does not expose its indexes."""
        return evenly(wanted, pieces)

    def table_folder(self, topic: str) -> str | None:
        from strandlog.tables.topics.location import table_of_cluster  # noqa: PLC0415 - rarely used

        return table_of_cluster(self._client, topic)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._listed_permissions():
            self._client.commit_offsets(group, offsets)

    def close(self) -> None:
        self._client.close()
