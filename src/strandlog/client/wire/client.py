"""Blocking Kafka client for raw batches, and for requests that librdkafka does not support.

    with WireClient("localhost:9092", {"security.protocol": "SSL", …}) as client:
        partitions = client.partitions(["orders"])
        ends = client.latest_offsets(partitions)
        for chunk in client.read_range(tp, 0, ends[tp]):
            decode(chunk.data, chunk.aborted)

    producer = client.init_producer_id("job-7", timeout_ms=60_000)      in a task
    client.add_partitions_to_txn("job-7", *producer, [tp])
    client.produce({tp: [batch]}, transactional_id="job-7")
    other.end_txn("job-7", *producer, commit=True)                      in the driver

It works with strandlog and with Apache Kafka 2.4 or later. Options have the same names as in
Kafka's clients (config/tables/client.py); a settings file and the environment supply the others
(client/settings.py). Batches are bytes; the client does not decode records.

A client is not thread-safe. It starts no threads and cannot be pickled: pickle the options instead.
Connections are opened on first use. Calls retry retriable errors for `default.api.timeout.ms`
(sending batches: `delivery.timeout.ms`). They raise, for example, `UnreachableError` with the
address, `AuthenticationError`, `TopicNotFoundError`, or `OffsetOutOfRangeError` with the valid
range.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import NoReturn, Self

from strandlog.broker.access.quota_entity import Entity, FilterPart, QuotaChange
from strandlog.client.settings import client_settings
from strandlog.client.wire.cluster import (
    LEADER_NOT_AVAILABLE,
    NO_LEADER,
    UNKNOWN_TOPIC_OR_PARTITION,
    Cluster,
    RetriableBrokerError,
    TopicMetadata,
    broker_error,
    http_address,
    topic_config,
)
from strandlog.client.wire.coordinator import (
    GROUP,
    TRANSACTION,
    CoordinatorClient,
    TransactionDescription,
)
from strandlog.client.wire.fetch import RangeFetcher, RawFetch
from strandlog.client.wire.offsets import EARLIEST, LATEST, list_offsets, offsets_at
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.produce import BatchSender, ProduceResult
from strandlog.client.wire.quotas import alter_quotas, describe_quotas
from strandlog.clock import Clock, SystemClock
from strandlog.errors import ClosedError, MissingExtraError, StrandlogError, TopicNotFoundError
from strandlog.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Buffer,
    IsolationLevel,
    OffsetAndMetadata,
    ProducerIdentity,
    TimestampOffset,
    TopicPartition,
)
from strandlog.protocol.kafka.produce_fetch_client import FetchAsk

CREATE_TOPICS = 19
AUTO_CREATE_TIMEOUT_MS = 5_000


class WireClient:
    """A client of one cluster."""

    def __init__(
        self,
        bootstrap: str,
        options: Mapping[str, object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if find_spec("kio") is None:
            raise MissingExtraError("client", "kio")
        self.options = WireOptions.parse(bootstrap, client_settings(options or {}))
        self._clock = clock or SystemClock()
        self._open_cluster: Cluster | None = Cluster(self.options, self._clock)
        self._coordinator_client = CoordinatorClient(self._open_cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a WireClient cannot be pickled: pickle its options instead")

    def close(self) -> None:
        """Close the connections. Open transactions are neither committed nor aborted."""
        if self._open_cluster is not None:
            self._open_cluster.close()
            self._open_cluster = None

    @property
    def _cluster(self) -> Cluster:
        if self._open_cluster is None:
            raise ClosedError("client")
        return self._open_cluster

    def check_reachable(self) -> None:
        """Raise `UnreachableError` immediately if every bootstrap address refuses the connection or
        the TLS handshake, has an unknown host or is not a Kafka listener.

        Other calls retry, because a broker may be restarting; a new job should fail early.
        """
        self._cluster.check_reachable()

    def http_address(self) -> str | None:
        """Return the URL of the broker's HTTP listener, or None if it has no reachable one."""
        return self._cluster.retry(lambda: http_address(self._cluster))

    def cluster_id(self) -> str:
        """Return the id of the cluster, or "" if its brokers do not send one."""
        self._cluster.retry(lambda: self._cluster.read_metadata(()))
        return self._cluster.cluster_id or ""

    def topic_config(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return the settings in `names` that the broker reports for a topic."""
        return self._cluster.retry(lambda: topic_config(self._cluster, topic, names))

    # -- quotas ----------------------------------------------------------------------------------

    def client_quotas(
        self, parts: Sequence[FilterPart] = ()
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Return the entities that match all parts of a filter, with their client quotas."""
        return self._cluster.retry(lambda: describe_quotas(self._cluster, parts))

    def alter_client_quotas(self, changes: Sequence[QuotaChange]) -> None:
        """Set and delete client quotas."""
        self._cluster.retry(lambda: alter_quotas(self._cluster, changes))

    # -- topics ----------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Return the metadata of all topics, or of the existing topics in `names`."""
        wanted = None if names is None else list(names)
        return self._cluster.retry(lambda: self._cluster.read_metadata(wanted))

    def topic_to_write(self, name: str) -> TopicMetadata:
        """Return the metadata of a topic, which the broker may create (auto.create.topics.enable).

        Raise `TopicNotFoundError` if the topic does not appear in time.
        """
        found = self.topics([name])
        if name in found:
            return found[name]

        def attempt() -> TopicMetadata:
            made = self._cluster.read_metadata([name], may_create=True).get(name)
            if made is None or not made.leaders or NO_LEADER in made.leaders:
                raise RetriableBrokerError(
                    f"topic {name!r} does not exist yet", UNKNOWN_TOPIC_OR_PARTITION
                )
            return made

        try:
            return self._cluster.retry(attempt, AUTO_CREATE_TIMEOUT_MS)
        except TopicNotFoundError:
            raise TopicNotFoundError(name) from None

    def partitions(self, topics: Iterable[str] | re.Pattern[str]) -> list[TopicPartition]:
        """Return all partitions of the given topics, or of all topics that match a pattern."""
        if isinstance(topics, re.Pattern):
            found = {name: row for name, row in self.topics().items() if topics.fullmatch(name)}
        else:
            names = list(dict.fromkeys(topics))
            found = self.topics(names)
            for name in names:
                if name not in found:
                    raise TopicNotFoundError(name)
        return sorted(
            TopicPartition(name, number)
            for name, row in found.items()
            for number in range(row.partition_count)
        )

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
    ) -> None:
        """Create a topic and wait for its leaders; -1 means the broker's default."""
        cluster = self._cluster
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": configs,
        }
        timeout_ms = self.options.number("request.timeout.ms")

        def create() -> None:
            cluster.read_metadata(())
            connection = cluster.connection_to(cluster.controller_id)
            body = {"topics": [topic], "timeout": timeout_ms}
            [made] = connection.send(CREATE_TOPICS, body).parsed().topics
            if made.error_code:
                text = getattr(made, "error_message", None)
                raise broker_error(made.error_code, f"creating topic {name!r}", text)

        def is_led() -> None:
            found = cluster.read_metadata([name]).get(name)
            if found is None or not found.leaders or -1 in found.leaders:
                raise RetriableBrokerError(
                    f"topic {name!r} has no leaders yet", LEADER_NOT_AVAILABLE
                )

        cluster.retry(create)
        cluster.retry(is_led)

    # -- reading ---------------------------------------------------------------------------------

    def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return offsets_at(self._cluster, partitions, EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def latest_offsets(
        self, partitions: Iterable[TopicPartition], isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, int]:
        """Return each partition's last stable offset (read_committed) or high watermark."""
        return offsets_at(self._cluster, partitions, LATEST, self._isolation(isolation))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, TimestampOffset | None]:
        """Look up each partition's first record at or after a time; None if there is no such
        record."""
        found = list_offsets(self._cluster, times, self._isolation(isolation))
        return {tp: row if row.offset >= 0 else None for tp, row in found.items()}

    def fetch(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        max_bytes: int | None = None,
        isolation: IsolationLevel | None = None,
        max_wait_ms: int | None = None,
        min_bytes: int | None = None,
    ) -> RawFetch:
        """Return complete batches from an offset; the result is empty if none arrive in time."""

        def given(value: int | None, name: str) -> int:
            return self.options.number(name) if value is None else value

        ask = FetchAsk(
            *tp,
            offset,
            given(max_bytes, "max.partition.fetch.bytes"),
            self._isolation(isolation),
            given(max_wait_ms, "fetch.max.wait.ms"),
            given(min_bytes, "fetch.min.bytes"),
        )
        return RangeFetcher(self._cluster, self._clock).fetch(tp, ask)

    def read_range(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        isolation: IsolationLevel | None = None,
    ) -> Generator[RawFetch, None, None]:
        """Yield the batches of [start, end) in chunks; see fetch.py for the contents of a chunk."""
        fetcher = RangeFetcher(self._cluster, self._clock)
        return fetcher.read_range(tp, start, end, self._isolation(isolation))

    def _isolation(self, given: IsolationLevel | None) -> IsolationLevel:
        return self.options.isolation if given is None else given

    # -- writing ---------------------------------------------------------------------------------

    def sender(
        self,
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        transactional_id: str | None = None,
    ) -> BatchSender:
        """Return a sender for batches: call `send(tp, batch)` for each, then `flush()`."""
        return BatchSender(
            self._cluster,
            self._clock,
            self.options.acks if acks is None else acks,
            self.options.number("request.timeout.ms") if timeout_ms is None else timeout_ms,
            transactional_id,
        )

    def produce(
        self,
        batches: Mapping[TopicPartition, Sequence[Buffer]],
        *,
        acks: int | None = None,
        timeout_ms: int | None = None,
        transactional_id: str | None = None,
    ) -> dict[TopicPartition, ProduceResult]:
        """Send batches and wait for their responses; the results contain the errors."""
        sender = self.sender(acks=acks, timeout_ms=timeout_ms, transactional_id=transactional_id)
        for tp, rows in batches.items():
            for batch in rows:
                sender.send(tp, batch)
        return sender.flush()

    # -- coordinators ----------------------------------------------------------------------------

    def find_coordinator(self, *, group: str = "", transactional_id: str = "") -> int:
        """Return the id of the node that coordinates a group or a transactional id."""
        assert bool(group) != bool(transactional_id), "pass either group or transactional_id"
        kind, key = (GROUP, group) if group else (TRANSACTION, transactional_id)
        return self._cluster.retry(lambda: self._coordinator_client.find(kind, key))

    def init_producer_id(
        self,
        transactional_id: str | None = None,
        timeout_ms: int = 60_000,
        producer_id: int = NO_PRODUCER_ID,
        epoch: int = NO_PRODUCER_EPOCH,
    ) -> ProducerIdentity:
        """Allocate a producer id, fencing earlier producers with the same transactional id."""
        return self._coordinator.init_producer_id(transactional_id, timeout_ms, producer_id, epoch)

    def add_partitions_to_txn(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Add partitions to the transaction; required before their first batch is sent."""
        self._coordinator.add_partitions_to_txn(transactional_id, producer_id, epoch, partitions)

    def end_txn(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Commit or abort a transaction, from any client that knows its producer id and epoch."""
        self._coordinator.end_txn(transactional_id, producer_id, epoch, commit)

    def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> dict[str, TransactionDescription | StrandlogError]:
        """Return the description of each transactional id, or its error."""
        return self._coordinator.describe_transactions(transactional_ids)

    def list_transactions(self, states: Sequence[str]) -> dict[str, str]:
        """Return the transactional ids in one of these states, with the state of each."""
        return self._coordinator.list_transactions(states)

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members."""
        self._coordinator.commit_offsets(group, offsets)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        return self._coordinator.committed_offsets(group, partitions)

    @property
    def _coordinator(self) -> CoordinatorClient:
        if self._open_cluster is None:
            raise ClosedError("client")
        return self._coordinator_client
