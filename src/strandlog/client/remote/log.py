"""The remote log, which accesses a broker through librdkafka and works with any Kafka cluster.

    with strandlog.connect("127.0.0.1:9092") as log: ...

It has the methods of the embedded log, except `compact`, `enforce_retention`, `run_maintenance`,
`flush` and `problems`, which need the files, and the methods for client quotas, which librdkafka
does not support. Sizes and segment counts are `UNKNOWN`. It requires the `client` extra.
Client settings have the names of librdkafka or of the Java client, with dots or with underscores:
`connect("host:9093", security_protocol="ssl")`. They can also come from a file and the environment
(client/settings.py).

An administrative request raises `UnreachableError` if it takes longer than `timeout_ms`. The
constructor sends a request to the cluster, so that a wrong address fails immediately rather than in
the first call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakSet

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.permission import Operation
from strandlog.broker.access.scram import DEFAULT_ITERATIONS
from strandlog.broker.groups.requests import GroupDescription
from strandlog.broker.topics.topic import INTERNAL_TOPICS
from strandlog.client.addresses import wrong_protocol
from strandlog.client.api import (
    EVERY_ACL,
    EVERY_MECHANISM,
    UNKNOWN,
    PartitionInfo,
    TopicInfo,
    UserInfo,
)
from strandlog.client.arguments import Acks, OffsetReset, deletion_error
from strandlog.client.lifecycle import Closable, state_of
from strandlog.client.remote.client_config import client_config, credential_sources
from strandlog.client.remote.consumer import RemoteConsumer
from strandlog.client.remote.errors import (
    AUTHENTICATION,
    BAD_TEXT,
    SSL,
    check_names,
    confluent,
    denied,
    error_of,
    is_intact,
    translated,
    without_state,
)
from strandlog.client.remote.groups import RemoteGroups
from strandlog.client.remote.login import USER, Credentials, Login
from strandlog.client.remote.other_protocols import is_grpc
from strandlog.client.remote.producer import RemoteProducer
from strandlog.client.remote.security import RemoteSecurity
from strandlog.client.remote.settings import RemoteSetting, RemoteSettings, kafka_text
from strandlog.clock import Clock, SystemClock
from strandlog.config.setting import Value
from strandlog.errors import (
    AuthenticationError,
    ClosedError,
    InvalidRequestError,
    StrandlogError,
    TopicAuthorizationError,
    TopicNotFoundError,
    UnreachableError,
)
from strandlog.model import OffsetAndMetadata, TopicPartition

REQUEST_TIMEOUT_MS = 15_000
LOOK_SECONDS = 0.05
WRITE, DESCRIBE_CONFIGS = Operation.WRITE.name, Operation.DESCRIBE_CONFIGS.name
ALL_BROKERS_DOWN = -187
# librdkafka's error if an HTTP server answers: it reads the letters HTTP as a size.
HTTP_AS_SIZE = f"response size {int.from_bytes(b'HTTP')}"
NO_OFFSET, LOOK_UP_ATTEMPTS = -1001, 5
# By default, librdkafka forgets all brokers and partition leaders when its last connection closes,
# and its admin client's requests then fail. With "none", they wait for the next connection.
ADMIN_DEFAULTS = {"metadata.recovery.strategy": "none"}
KAFKAS_OWN_TOPICS = INTERNAL_TOPICS | {"__transaction_state", "__share_group_state"}


class RemoteLog(Closable):
    """A remote log, returned by `strandlog.connect`. Threads may share it."""

    internal_names = frozenset(
        {
            "admin",
            "broker_settings",
            "client_config",
            "clock",
            "credentials",
            "offset_ranges",
            "offsets_at",
            "partition_count",
            "partition_count_to_write",
            "principal",
            "request_options",
            "result",
            "topic_setting_rows",
        }
    )

    def __init__(
        self,
        bootstrap: str,
        config: Mapping[str, object] | None = None,
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        clock: Clock | None = None,
        config_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.timeout_ms = timeout_ms
        self.clock: Clock = clock or SystemClock()
        self.client_config = client_config(bootstrap, config or {}, self.clock, config_file)
        self.is_closed = False
        self.credentials = Credentials(credential_sources(config or {}, config_file), self.clock)
        self._troubles: dict[int, Any] = {}
        self._open_things: WeakSet[RemoteProducer | RemoteConsumer] = WeakSet()
        self._login = Login(
            confluent().admin.AdminClient,
            {**ADMIN_DEFAULTS, **self.client_config, "error_cb": self._note_trouble},
            self.credentials,
        )
        self._admin = self._login.client
        self._check_reachable()
        self._groups = RemoteGroups(self)
        self._settings = RemoteSettings(self)
        self._security = RemoteSecurity(self)

    def __repr__(self) -> str:
        return f"<strandlog.RemoteLog {self.bootstrap!r}, {state_of(self)}>"

    def _note_trouble(self, error: Any) -> None:
        self._troubles[error.code()] = error

    def _check_reachable(self) -> None:
        """Check the connection, and do not retry errors until the timeout, as librdkafka would."""
        found = self._admin.describe_cluster(request_timeout=self.timeout_ms / 1000)
        while not found.done():
            self._admin.poll(LOOK_SECONDS)
            for code in (AUTHENTICATION, SSL):
                if code in self._troubles:
                    raise self._login_failure(error_of(self._troubles[code]))
            if ALL_BROKERS_DOWN in self._troubles:
                raise self._unreachable()
        self.result(found)

    def _login_failure(self, error: StrandlogError) -> StrandlogError:
        """Return the error, or a better one if its cause is the port of a gRPC listener."""
        is_tls = isinstance(error, AuthenticationError) and error.code == SSL
        if is_tls and is_grpc(self.bootstrap):
            return self._wrong_protocol("a gRPC listener")
        return error

    def _wrong_protocol(self, found: str) -> UnreachableError:
        return UnreachableError(wrong_protocol(self.bootstrap, found))

    def _unreachable(self) -> StrandlogError:
        del self._troubles[ALL_BROKERS_DOWN]
        for error in self._troubles.values():
            found = error_of(error)
            if isinstance(found, AuthenticationError):
                return self._login_failure(found)
        reasons = [without_state(error.str()) for error in self._troubles.values()]
        if any(HTTP_AS_SIZE in reason for reason in reasons):
            return self._wrong_protocol("an HTTP server")
        if not reasons or any("Disconnected" in reason for reason in reasons):
            # The connection was accepted: librdkafka reports a refused one with its reason.
            if is_grpc(self.bootstrap):
                return self._wrong_protocol("a gRPC listener")
            return UnreachableError(
                f"{self.bootstrap} accepted the connection and closed it; this listener may "
                "require TLS, a login or a client certificate, or may not use TLS: check "
                f"security.protocol, or run: strandlog doctor -b {self.bootstrap}"
            )
        return UnreachableError(
            f"no broker at {self.bootstrap} ({'; '.join(reasons)}); is it running, and is this its "
            "address?"
        )

    # -- requests ------------------------------------------------------------------------------

    @property
    def admin(self) -> Any:
        """The librdkafka admin client."""
        if self.is_closed:
            raise ClosedError("log")
        return self._admin

    @property
    def principal(self) -> str:
        """The principal of the user name with which the client logs in, or an empty string if the
        broker derives the principal from something else: a certificate or a token."""
        user = self.credentials.current.get(USER)
        protocol = str(self.client_config.get("security.protocol", "")).upper()
        return f"User:{user}" if user and protocol.startswith("SASL_") else ""

    @property
    def request_options(self) -> dict[str, float]:
        return {"request_timeout": self.timeout_ms / 1000}

    def result(
        self,
        future: Any,
        *,
        topic: str | None = None,
        group: str | None = None,
        needs: str = "DESCRIBE",
    ) -> Any:
        """Return the result of a request, or raise its translated error."""
        with translated(
            topic=topic, group=group, to=self.bootstrap, needs=needs, principal=self.principal
        ):
            # librdkafka enforces the timeout itself; waiting twice as long leaves it a margin.
            deadline_ms = self.clock.monotonic_ms() + 2 * self.timeout_ms
            while self.clock.monotonic_ms() < deadline_ms:
                try:
                    found = future.result(LOOK_SECONDS)
                except TimeoutError:
                    self.admin.poll(0)
                    self._login.check()
                else:
                    self._login.succeeded()
                    return found
            raise UnreachableError(f"no response from {self.bootstrap} in time")

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic; `partitions` defaults to the broker's num.partitions."""
        check_names([name])
        settings = {key: kafka_text(key, value) for key, value in (config or {}).items()}
        if not all(map(is_intact, [*settings, *settings.values()])):
            raise InvalidRequestError(f"invalid setting of topic {name!r}: {BAD_TEXT}")
        wanted = confluent().admin.NewTopic(
            name, -1 if partitions is None else partitions, -1, config=settings
        )
        with translated(topic=name):
            futures = self.admin.create_topics([wanted], **self.request_options)
        self.result(futures[name], topic=name)
        return self._wait_for(name, partitions or 1)

    def _wait_for(self, name: str, partitions: int) -> TopicInfo:
        """Wait until the topic has this many partitions in the cluster's metadata."""
        deadline_ms = self.clock.monotonic_ms() + self.timeout_ms
        while True:
            try:
                info = self.describe_topic(name)
                if len(info.partitions) >= partitions:
                    return info
            except TopicNotFoundError:
                info = None
            if self.clock.monotonic_ms() >= deadline_ms:
                raise UnreachableError(
                    f"{self.bootstrap} accepted the change to {name!r}, but does not report it yet"
                )
            self._admin.poll(LOOK_SECONDS)

    def topics(self) -> list[str]:
        """Return the names of all topics except internal ones."""
        with translated(to=self.bootstrap):
            found = self.admin.list_topics(timeout=self.timeout_ms / 1000)
        return sorted(set(found.topics) - KAFKAS_OWN_TOPICS)

    def describe_topic(self, name: str) -> TopicInfo:
        """Return the partitions, offsets and (if authorized) settings of a topic."""
        return self.describe_topics([name])[0]

    def describe_topics(self, names: Iterable[str]) -> list[TopicInfo]:
        """Describe several topics, using the same number of requests as for one."""
        wanted = list(names)
        if not wanted:
            return []
        found = self._metadata(wanted, "DESCRIBE", with_operations=True)
        ranges = self.offset_ranges(
            [
                TopicPartition(topic.name, part.id)
                for topic in found.values()
                for part in topic.partitions
            ]
        )
        settings = self._settings.of_topics(
            [name for name in wanted if _may(found[name], DESCRIBE_CONFIGS)], skip_refused=True
        )
        infos = []
        for name in wanted:
            partitions = tuple(
                PartitionInfo(tp.partition, *offsets, UNKNOWN, UNKNOWN)
                for tp, offsets in sorted(ranges.items())
                if tp.topic == name
            )
            changed = {row.name: row.parsed() for row in settings.get(name, ()) if row.is_changed}
            topic_id = str(found[name].topic_id).translate(str.maketrans("+/", "-_"))
            infos.append(TopicInfo(name, topic_id, partitions, changed))
        return infos

    def _metadata(
        self, names: list[str], needs: str, *, with_operations: bool = False
    ) -> dict[str, Any]:
        check_names(names)
        with translated():
            topics = confluent().TopicCollection(names)
            futures = self.admin.describe_topics(
                topics, include_authorized_operations=with_operations, **self.request_options
            )
        return {
            name: self.result(future, topic=name, needs=needs) for name, future in futures.items()
        }

    def topic_settings(self, name: str) -> dict[str, Value]:
        """Return all settings of a topic, including defaults."""
        return {row.name: row.parsed() for row in self.topic_setting_rows(name)}

    def topic_setting_rows(self, name: str) -> list[RemoteSetting]:
        """Return all settings of a topic and their sources."""
        return self._settings.of_topics([name])[name]

    def broker_settings(self, node_id: int | None = None) -> list[RemoteSetting]:
        """Return all settings of a broker (default: lowest node id) and their sources."""
        return self._settings.of_broker(node_id)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings (None resets a setting to its default), and increase the number of
        partitions to `partitions` if given."""
        self.partition_count(name)
        if config:
            self._settings.alter_topic(name, config)
        if partitions is not None:
            wanted = confluent().admin.NewPartitions(name, partitions)
            with translated(topic=name):
                futures = self.admin.create_partitions([wanted], **self.request_options)
            self.result(futures[name], topic=name)
        return self._wait_for(name, partitions or 1)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        with translated(topic=name):
            futures = self.admin.delete_topics([name], **self.request_options)
        self.result(futures[name], topic=name, needs="DELETE")

    def delete_records(self, name: str, partition: int, before_offset: int) -> None:
        """Delete the records of a partition below an offset; the end offset deletes all."""
        if before_offset < 0:
            tp = TopicPartition(name, partition)
            raise deletion_error(before_offset, tp, *self.offset_ranges([tp])[tp])
        check_names([name])
        wanted = confluent().TopicPartition(name, partition, before_offset)
        with translated(topic=name):
            futures = self.admin.delete_records([wanted], **self.request_options)
        for future in futures.values():
            self.result(future, topic=name, needs="DELETE")

    # -- offsets -------------------------------------------------------------------------------

    def partition_count(self, topic: str, needs: str = "DESCRIBE") -> int:
        """Return the number of partitions; raise `TopicNotFoundError` if the topic is unknown.

        `needs` is the operation that the caller is about to perform; authorization errors name it.
        """
        return len(self._metadata([topic], needs)[topic].partitions)

    def partition_count_to_write(self, topic: str) -> int:
        """Return the number of partitions; raise an error if the user may not write to the topic.

        This is checked before the first send, because librdkafka's idempotent producer fails
        permanently without the permission, with a misleading error about the cluster.
        """
        found = self._metadata([topic], WRITE, with_operations=True)[topic]
        if not _may(found, WRITE):
            raise TopicAuthorizationError(denied(WRITE, "topic", topic, self.principal))
        return len(found.partitions)

    def offset_ranges(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the log start offset and the end offset of each partition."""
        spec = confluent().admin.OffsetSpec
        wanted = list(tps)
        starts = self._look_up(wanted, spec.earliest())
        ends = self._look_up(wanted, spec.latest())
        return {tp: (starts[tp], ends[tp]) for tp in wanted}

    def offsets_at(
        self, tps: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return each partition's first offset at or after a time, or else its end offset."""
        wanted = list(tps)
        spec = confluent().admin.OffsetSpec
        found = self._look_up(wanted, spec.for_timestamp(timestamp_ms))
        late = [tp for tp, offset in found.items() if offset < 0]
        return found | self._look_up(late, spec.latest())

    def _look_up(self, tps: list[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        left = tps
        for _ in range(LOOK_UP_ATTEMPTS):
            found |= self._look_up_once(left, spec)
            left = [tp for tp in tps if tp not in found]
            if not left:
                return found
        raise UnreachableError(f"{self.bootstrap} closed the connection while offsets were read")

    def _look_up_once(self, tps: list[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        """Return the offsets that the broker reports. If it closes the connection, librdkafka
        returns `NO_OFFSET` without an error, and the result omits these partitions."""
        if not tps:
            return {}
        make = confluent().TopicPartition
        with translated():
            futures = self.admin.list_offsets(
                {make(*tp): spec for tp in tps}, **self.request_options
            )
        offsets = {
            TopicPartition(tp.topic, tp.partition): self.result(future, topic=tp.topic).offset
            for tp, future in futures.items()
        }
        return {tp: offset for tp, offset in offsets.items() if offset != NO_OFFSET}

    # -- producing and consuming ---------------------------------------------------------------

    def producer(
        self,
        acks: Acks = "all",
        partitioner: str = "murmur2",
        compression: str | None = None,
    ) -> RemoteProducer:
        """Create a producer.

        `acks`: what a send waits for. With "all", a strandlog broker has the records on disk, and
        they survive a power failure (unless its log.durability is "page_cache"); in a Kafka
        cluster, all in-sync replicas have them. With 1, the broker has written them, and they
        survive a crash of its process. With 0, a send waits for nothing, because the broker does
        not respond, and offsets are -1.
        `partitioner`: the hash that assigns keys to partitions: "murmur2" (as in Java clients),
        "md5" or "fnv1a".
        `compression`: "gzip", "snappy", "lz4", "zstd" or "none"; with None, the client setting
        `compression.type` applies, which is "none" by default.
        """
        self._check_open()
        producer = RemoteProducer(self, acks, partitioner, compression)
        self._open_things.add(producer)
        return producer

    def consumer(
        self,
        topics: Iterable[str] = (),
        group: str | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        auto_commit: bool = False,
        assignors: Iterable[str] = ("range", "roundrobin"),
        max_poll_interval_ms: int = 300_000,
        consumer_timeout_ms: int | None = 0,
    ) -> RemoteConsumer:
        """Create a consumer, either standalone or as a member of a group.

        `topics`: the names of the topics to read; leave it empty to set partitions with `assign`.
        `group`: the group whose members share the partitions and whose offsets are committed; with
        None, the consumer reads all partitions and commits nothing.
        `auto_offset_reset`: where to read if there is no committed offset or the position is out of
        range: "earliest", "latest", or "none" for an error. Without a group, "none" starts at the
        earliest offset.
        `auto_commit`: each poll commits the records of earlier polls, and close commits the rest.
        Without it, only `commit` commits.
        `assignors`: how the group may distribute partitions, in order of preference: "range",
        "roundrobin" or "cooperative-sticky".
        `max_poll_interval_ms`: a member that does not poll for this long is removed from the group.
        `consumer_timeout_ms`: how long `for record in consumer` waits for the next record before
        it ends: 0 ends at the last record, None waits indefinitely.
        """
        self._check_open()
        consumer = RemoteConsumer(
            self,
            topics,
            group,
            auto_offset_reset,
            auto_commit,
            assignors,
            max_poll_interval_ms,
            consumer_timeout_ms,
        )
        self._open_things.add(consumer)
        return consumer

    # -- groups --------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the names of all groups."""
        return self._groups.names()

    def describe_group(self, group: str) -> GroupDescription:
        """Return the state and members of a group; its generation is not available remotely."""
        return self._groups.describe(group)

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        return self._groups.committed_offsets(group)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""
        self._groups.commit_offsets(group, offsets)

    def delete_group(self, group: str) -> None:
        """Delete an empty group and its committed offsets."""
        self._groups.delete(group)

    # -- permissions ---------------------------------------------------------------------------

    def acls(self, wanted: AclFilter = EVERY_ACL) -> list[Acl]:
        """Return the ACLs that a filter selects, by default all of them."""
        return self._security.acls(wanted)

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Create ACLs; existing ACLs are kept."""
        self._security.create_acls(acls)

    def delete_acls(self, filters: Iterable[AclFilter | Acl]) -> list[Acl]:
        """Delete the ACLs that any of the filters selects, and return them. An `Acl` selects
        itself."""
        return self._security.delete_acls(filters)

    # -- users ---------------------------------------------------------------------------------

    def users(self) -> list[UserInfo]:
        """Return all users that can log in with a password, with their SCRAM mechanisms."""
        return self._security.users()

    def set_password(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = EVERY_MECHANISM,
        iterations: int = DEFAULT_ITERATIONS,
    ) -> None:
        """Create a user, or replace its password, for the given SCRAM mechanisms; credentials for
        other mechanisms are deleted.

        The broker receives a salted hash that is as good as the password for logging in, so connect
        with TLS unless the broker runs on this machine.
        """
        self._security.set_password(user, password, mechanisms, iterations)

    def delete_user(self, user: str) -> None:
        """Delete a user; raise `ResourceNotFoundError` if there is none with this name."""
        self._security.delete_user(user)

    # -- close ---------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError("log")

    def close(self) -> None:
        """Close all producers, consumers and connections. This method is idempotent."""
        if self.is_closed:
            return
        try:
            with contextlib.ExitStack() as closing:
                for thing in list(self._open_things):
                    closing.callback(thing.close)
        finally:
            self.is_closed = True
            self._admin = self._login.client = None


def _may(topic: Any, operation: str) -> bool:
    """Return whether a topic description lists an operation as authorized.

    Brokers before Kafka 2.3 do not list operations; for these, the result is True.
    """
    allowed = {each.name for each in topic.authorized_operations or ()}
    return not allowed or operation in allowed
