"""Tracks the brokers, leaders and connections of a cluster, and reads broker and topic settings.

The metadata of a topic is cached until it expires (metadata.max.age.ms) or a response contradicts
it (`forget_topic`). After a failed connection, the client waits before it connects to that broker
again; the back-off doubles with each failure. The `bootstrap` addresses are used while no broker is
known, and when none of the known brokers can be reached.

`retry` repeats an operation after retriable errors, with increasing pauses, until a deadline; then
it raises the last error. If no broker can be reached for some seconds, it logs why. An answer that
is not Kafka's ends the attempts, unless another address may have a broker.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from strandlog.client.wire.connection import (
    RefusedHandshakeError,
    WireConnection,
    WrongListenerError,
)
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.tls import tls_context
from strandlog.clock import Clock, pause
from strandlog.config.tables.server import EVERY_HOST, Address
from strandlog.errors import (
    ClosedError,
    RemoteError,
    StrandlogError,
    TopicNotFoundError,
    UnreachableError,
    error_for_kafka_code,
)
from strandlog.model import TopicPartition
from strandlog.protocol.kafka.api import DESCRIBE_CONFIGS, METADATA
from strandlog.protocol.kafka.schemas import kio

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

QUIET_RETRY_MS = 5_000  # after this time, `retry` logs what it waits for

NO_LEADER = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
READ_OR_WRITE = "READ on the topic to read it, WRITE to write to it"
DENIED = {29, 30, 31, 53}  # authorization errors: topic, group, cluster and transactional id
RESOURCE_TOPIC, RESOURCE_BROKER = 2, 4
DEFAULT_BROKER = ""  # settings for all brokers; the node id may be unknown
HTTP_LISTENER = "http.listener"


class TopicMetadata(NamedTuple):
    """Cached metadata of a topic. `leaders` lists the node id of each partition's leader, or -1."""

    name: str
    topic_id: UUID | None  # None if the broker is older than Kafka 2.8
    leaders: tuple[int, ...]
    is_internal: bool
    read_ms: int

    @property
    def partition_count(self) -> int:
        return len(self.leaders)


class RetriableBrokerError(UnreachableError):
    """The broker returned a retriable error code: refresh the metadata and retry."""


def broker_error(
    code: int, about: str, text: str | None = None, *, needs: str = ""
) -> StrandlogError:
    """Return the error for a Kafka error code; `RetriableBrokerError` if the code is retriable.

    `needs` is the permission that the request needs.
    """
    codes = kio("schema.errors").ErrorCode
    known = code in {each.value for each in codes}
    name = codes(code).name.upper() if known else f"code {code}"
    message = f"{about}: {text or name}"
    if code in DENIED:
        wanted = needs or name
        message = f"{about}: this client lacks a permission ({wanted}); see `strandlog acl check`"
    if known and codes(code).retriable:
        return RetriableBrokerError(message, code)
    return error_for_kafka_code(code, message)


class Cluster:
    """The brokers, topics and connections of one cluster."""

    def __init__(self, options: WireOptions, clock: Clock) -> None:
        self.options = options
        self.controller_id = NO_LEADER
        self.cluster_id: str | None = None  # from the newest metadata response
        self._clock = clock
        self._is_closed = False
        self._tls = tls_context(options) if options.wants_tls else None
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._connections: dict[Address, WireConnection] = {}
        self._failures: dict[Address, tuple[int, int]] = {}  # (count, time of the next attempt)

    # -- retries --------------------------------------------------------------------------------

    def retry(self, attempt: Callable[[], Result], timeout_ms: int | None = None) -> Result:
        """Call `attempt` until it succeeds or time is up; retry only after `UnreachableError`."""
        if timeout_ms is None:
            timeout_ms = self.options.number("default.api.timeout.ms")
        began_ms = self._clock.monotonic_ms()
        deadline_ms = began_ms + timeout_ms
        is_quiet = True
        for seconds in self._pauses():
            try:
                return attempt()
            except WrongListenerError:
                raise
            except UnreachableError as error:
                is_late = self._clock.monotonic_ms() - began_ms >= QUIET_RETRY_MS
                if is_late and is_quiet and not isinstance(error, RetriableBrokerError):
                    is_quiet = False
                    logger.warning("%s; retrying for up to %d ms", error, timeout_ms)
                if self._clock.monotonic_ms() + seconds * 1000 >= deadline_ms:
                    raise _final(error, timeout_ms) from error
            pause(seconds)
        raise AssertionError("_pauses is infinite")

    def _pauses(self) -> Iterator[float]:
        seconds = self.options.seconds("retry.backoff.ms")
        while True:
            yield seconds
            seconds = min(2 * seconds, self.options.seconds("retry.backoff.max.ms"))

    # -- connections -----------------------------------------------------------------------------

    def connection_to(self, node_id: int) -> WireConnection:
        """Return the connection to a broker, opening it if necessary."""
        if node_id not in self._nodes:
            self.read_metadata(())
        address = self._nodes.get(node_id)
        if address is None:
            raise UnreachableError(f"broker {node_id} is not in the cluster's metadata")
        return self._connection(address)

    def set_address(self, node_id: int, address: Address) -> None:
        """Store the address of a broker from a response other than Metadata."""
        self._nodes[node_id] = address

    def node_ids(self) -> list[int]:
        """Refresh the metadata and return the ids of all brokers."""
        self.read_metadata(())
        return sorted(self._nodes)

    def any_connection(self) -> WireConnection:
        """Return an open connection to any broker, opening one if there is none."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        reasons: list[str] = []
        errors: list[UnreachableError] = []
        for address in dict.fromkeys((*self._nodes.values(), *self.options.bootstrap)):
            try:
                return self._connection(address)
            except UnreachableError as error:
                errors.append(error)
                reasons.append(str(error))
        is_wrong = all(isinstance(error, WrongListenerError) for error in errors)
        kind = WrongListenerError if is_wrong else UnreachableError
        raise kind("; ".join(reasons)) from errors[-1]

    def check_reachable(self) -> None:
        """Raise if every bootstrap address refuses the connection or the TLS handshake, has an
        unknown host or is not a Kafka listener.

        Other failures, such as a timeout, may be temporary and are left to `retry`.
        """
        reasons: list[str] = []
        for address in dict.fromkeys(self.options.bootstrap):
            try:
                self._connection(address)
                return
            except UnreachableError as error:
                if not _is_refused(error):
                    return
                reasons.append(str(error))
        raise UnreachableError("; ".join(reasons))

    def _connection(self, address: Address) -> WireConnection:
        if self._is_closed:
            raise ClosedError("client")
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        count, not_before_ms = self._failures.get(address, (0, 0))
        wait_ms = not_before_ms - self._clock.monotonic_ms()
        if wait_ms > 0:
            pause(wait_ms / 1000)
        try:
            connection = WireConnection(address, self.options, self._clock, self._tls)
        except UnreachableError:
            first_ms = self.options.number("reconnect.backoff.ms")
            max_ms = self.options.number("reconnect.backoff.max.ms")
            wait_ms = min(first_ms << min(count, 20), max_ms)
            self._failures[address] = (count + 1, self._clock.monotonic_ms() + wait_ms)
            raise
        self._failures.pop(address, None)
        self._connections[address] = connection
        return connection

    def close(self) -> None:
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- metadata --------------------------------------------------------------------------------

    def read_metadata(
        self, topics: Iterable[str] | None, *, may_create: bool = False
    ) -> dict[str, TopicMetadata]:
        """Request metadata: None for all topics, an empty iterable for the brokers only.

        With `may_create`, a broker with auto.create.topics.enable creates missing topics.
        """
        wanted = None if topics is None else [{"name": name, "topic_id": None} for name in topics]
        connection = self.any_connection()
        body = {"topics": wanted, "allow_auto_topic_creation": may_create}
        response = connection.send(METADATA.key, body).parsed()
        self._nodes = {node.node_id: Address(node.host, node.port) for node in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = getattr(response, "cluster_id", None)
        found: dict[str, TopicMetadata] = {}
        now_ms = self._clock.monotonic_ms()
        for topic in response.topics:
            self._topics.pop(topic.name, None)
            if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if topic.error_code not in {0, LEADER_NOT_AVAILABLE}:
                raise broker_error(topic.error_code, f"topic {topic.name!r}", needs=READ_OR_WRITE)
            rows = {row.partition_index: row for row in topic.partitions}
            found[topic.name] = TopicMetadata(
                topic.name,
                getattr(topic, "topic_id", None),
                tuple(
                    rows[number].leader_id if number in rows else NO_LEADER
                    for number in range(max(rows, default=-1) + 1)
                ),
                topic.is_internal,
                now_ms,
            )
        self._topics |= found
        return found

    def topic(self, name: str) -> TopicMetadata:
        """Return the cached or fresh metadata of a topic; raise `TopicNotFoundError` if the topic
        does not exist."""
        known = self._topics.get(name)
        max_age_ms = self.options.number("metadata.max.age.ms")
        if known is not None and self._clock.monotonic_ms() - known.read_ms <= max_age_ms:
            return known
        found = self.read_metadata([name]).get(name)
        if found is None:
            raise TopicNotFoundError(name)
        return found

    def forget_topic(self, name: str) -> None:
        """Drop the cached metadata of a topic because a response contradicts it."""
        self._topics.pop(name, None)

    def leader_of(self, tp: TopicPartition) -> int:
        """Return the leader of a partition; raise `RetriableBrokerError` if it has none, and
        `TopicNotFoundError` if it does not exist."""
        topic = self.topic(tp.topic)
        if not 0 <= tp.partition < topic.partition_count:
            self.forget_topic(tp.topic)
            count = self.topic(tp.topic).partition_count
            if tp.partition >= count or tp.partition < 0:
                raise TopicNotFoundError(tp.topic, tp.partition, count)
            topic = self.topic(tp.topic)
        leader = topic.leaders[tp.partition]
        if leader == NO_LEADER:
            self.forget_topic(tp.topic)
            raise RetriableBrokerError(f"{tp} has no leader", LEADER_NOT_AVAILABLE)
        return leader

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Group partitions by the node id of their leader."""
        found: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            found.setdefault(self.leader_of(tp), []).append(tp)
        return found


def http_address(cluster: Cluster) -> str | None:
    """Return the URL of a broker's HTTP listener, or None if there is no reachable one.

    strandlog reports it as the broker setting `http.listener`, with the actual port; the value is
    empty if the listener is not open. Apache Kafka has no such setting.
    """
    connection = cluster.any_connection()
    found = _config(connection, RESOURCE_BROKER, DEFAULT_BROKER, [HTTP_LISTENER])
    listener = found.get(HTTP_LISTENER)
    if not listener:
        return None
    return reachable_url(listener, connection.peer_host, connection.address.host)


def topic_config(cluster: Cluster, topic: str, names: Sequence[str]) -> dict[str, str | None]:
    """Return the settings in `names` that the broker reports for a topic."""
    return _config(cluster.any_connection(), RESOURCE_TOPIC, topic, names)


def _config(
    connection: WireConnection, kind: int, name: str, keys: Sequence[str]
) -> dict[str, str | None]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}
    [response] = connection.send(DESCRIBE_CONFIGS.key, {"resources": [resource]}).parsed().results
    if response.error_code:
        what = "the broker settings" if kind == RESOURCE_BROKER else f"the settings of {name}"
        raise broker_error(response.error_code, f"reading {what}", response.error_message)
    return {row.name: row.value for row in response.configs}


def reachable_url(listener: str, peer_host: str, name: str = "") -> str | None:
    """Return the URL of a listener for a client that reached the broker at `peer_host`.

    A wildcard host is replaced by the address that the client connected to or, with TLS, by its
    host `name`, which the certificate contains. A loopback host is only reachable if the client
    connected to a loopback address too; otherwise the result is None.
    """
    url = urlsplit(listener)
    host, port = url.hostname or "", url.port
    if host in EVERY_HOST:
        host = name if name and url.scheme == "https" else peer_host
    elif _is_loopback(host) and not _is_loopback(peer_host):
        return None
    return f"{url.scheme}://{Address(host, port or 0)}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_refused(error: UnreachableError) -> bool:
    if isinstance(error, WrongListenerError | RefusedHandshakeError):
        return True
    cause = error.__cause__
    if isinstance(cause, socket.gaierror):
        return cause.errno == socket.EAI_NONAME
    return isinstance(cause, ConnectionRefusedError)


def _final(error: UnreachableError, timeout_ms: int) -> StrandlogError:
    """Return the error to raise after the last attempt."""
    text = f"{error} (retried for {timeout_ms} ms)"
    if isinstance(error, RetriableBrokerError):
        known = error_for_kafka_code(error.code, text)
        if not isinstance(known, RemoteError):
            return known
    return UnreachableError(text, error.code)
